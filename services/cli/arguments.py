"""What stands on the command line: a command's own arguments, and overrides of the run file."""

from __future__ import annotations

import argparse
from typing import List, Sequence, Set, Tuple

from services.common.errors import UserError


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


def refuse_repeated(words: Sequence[str]) -> None:
    """Refuse a command's own flag that stands twice: argparse would take the last one in silence.

    Raises:
        UserError: names the flag.
    """
    seen: Set[str] = set()
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and name in seen:
            raise UserError(f"{name} is given twice; leave one of them out")
        seen.add(name)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says which running system a command is about."""
    parser.add_argument(
        "target",
        metavar="FILE.toml|RUN_FOLDER",
        nargs="?",
        help="a run file, or the folder of a run that `shoal up` watches over; without it the defaults and variables",
    )
    parser.epilog = (
        "The services' addresses, certificates and token are those of the run file: --replay.addresses, "
        "--learner.address, --security.ca, --security.token, or SHOAL_SECTION__KEY in the environment."
    )
