"""`shoal why`: who waits, since when, for what, and what would release it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Sequence, TextIO

from services.cli.arguments import add_target, split_overrides
from services.cli.operator import Operator
from services.cli.target import find_target
from services.cli.waits import waits_of
from services.common.errors import EXIT_OK


def run(words: Sequence[str], out: TextIO) -> int:
    """Ask, and write what waits.

    Raises:
        UserError: what the user can mend.
    """
    rest, overrides = split_overrides(words)
    options = parser().parse_args(rest)
    target = find_target(options.target, overrides)
    with Operator(target.addresses, target.security) as system:
        waits = waits_of(system.addresses, system.replay(), system.learner())
    if options.json:
        out.write(json.dumps([asdict(wait) for wait in waits]) + "\n")
        return EXIT_OK
    for wait in waits:
        out.write(f"{wait.line()}\n")
    if not waits:
        out.write("nobody waits\n")
    return EXIT_OK


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="shoal why",
        description="Say who waits, since when, for what, and what would release it.",
        allow_abbrev=False,
    )
    add_target(made)
    made.add_argument("--json", action="store_true", help="a list of objects: who, since_s, what, release")
    return made
