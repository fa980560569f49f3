"""What stands on the command line: a command's own arguments, and overrides of the run file."""

from __future__ import annotations

from typing import List, Sequence, Tuple


def split_overrides(arguments: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Part `--section.key VALUE` from the rest, each in its order.

    argparse cannot: it would take the VALUE of a flag that it does not know for a positional argument.

    Returns:
        What is left for argparse, and the overrides for `services.common.config.load`. An override without a value
        stays one, so that the loader can say what is missing.
    """
    rest: List[str] = []
    overrides: List[str] = []
    remaining = list(arguments)
    while remaining:
        word = remaining.pop(0)
        name, equals, _value = word.partition("=")
        if not (name.startswith("--") and "." in name):
            rest.append(word)
            continue
        overrides.append(word)
        if not equals and remaining:
            overrides.append(remaining.pop(0))
    return rest, overrides
