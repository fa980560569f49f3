"""`shoal doctor env` and `shoal doctor lane`: the actor's own checks, as processes of theirs."""

from __future__ import annotations

from typing import Sequence, TextIO

from services.cli.arguments import split_overrides
from services.cli.modules import DOCTOR, become
from services.common.errors import EXIT_OK, EXIT_USER, UserError

USAGE = """usage: shoal doctor env FILE.toml [--steps N] [--seconds S] [--json] [--section.key VALUE ...]
       shoal doctor lane DUMP [FILE.toml] [--section.key VALUE ...]

Find out what is wrong with an environment.

commands:
  env   run the environment of a run file for a while, and say what of the contract it keeps
  lane  show a quarantined lane, and run it again where that can be done
"""


def run(words: Sequence[str], output: TextIO) -> int:
    """Become the one that is asked for, or show the help.

    Args:
        words: after `shoal doctor`.
        output: takes the help.

    Raises:
        UserError: there is no such command.
    """
    rest, overrides = split_overrides(words)
    if not rest or rest[0] in ("--help", "-h"):
        output.write(USAGE)
        return EXIT_OK if rest else EXIT_USER
    if rest[0] in DOCTOR:
        become(DOCTOR[rest[0]], [*rest[1:], *overrides])
    raise UserError(f"there is no `shoal doctor {rest[0]}`; there are {' and '.join(sorted(DOCTOR))}")
