"""`shoal audit`: whether every step is accounted for, as a table and an exit code."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import List, Sequence, TextIO

from services.cli.arguments import split_overrides
from services.cli.figures import count
from services.cli.operator import Operator
from services.cli.target import find_target
from services.common.errors import EXIT_OK, UserError
from shoal.v1 import replay_pb2

EXIT_BROKEN = 1


@dataclass(frozen=True)
class Equation:
    """A sum that must hold."""

    left: str
    total: int
    terms: Sequence[str] = ()
    values: Sequence[int] = ()

    @property
    def holds(self) -> bool:
        return self.total == sum(self.values)

    def line(self) -> str:
        """The equation with its numbers."""
        right = " + ".join(f"{count(value)} {term}" for term, value in zip(self.terms, self.values))
        verdict = "holds" if self.holds else f"BROKEN: {self.total - sum(self.values):+,} steps are unaccounted for"
        return f"{count(self.total)} {self.left} = {right}: {verdict}"


def equations(info: replay_pb2.GetReplayInfoResponse) -> List[Equation]:
    """The conservation equations of a replay."""
    steps = info.steps

    def of(left: str, total: int, *terms: str) -> Equation:
        return Equation(
            left, total, terms=[t.replace("_", " ") for t in terms], values=[getattr(steps, t) for t in terms]
        )

    return [
        of("acknowledged", steps.acknowledged, "resident", "overwritten", "reset", "quarantined", "lost_tail"),
        of("acknowledged", steps.acknowledged, "items", "unripe", "unripe_evicted", "quarantined", "lost_tail"),
        Equation(
            "acknowledged",
            steps.acknowledged,
            terms=[f"of {actor.name}" for actor in info.actors],
            values=[actor.acknowledged_steps for actor in info.actors],
        ),
    ]


def run(words: Sequence[str], out: TextIO) -> int:
    """Check, write a line for each equation, and return 0 when all hold.

    Raises:
        UserError: the replay cannot be asked.
    """
    rest, overrides = split_overrides(words)
    options = parser().parse_args(rest)
    with Operator(find_target(options.target, overrides)) as system:
        info = system.replay()
        if info is None:
            raise UserError(f"no replay answers at {system.addresses.replay}: nothing can be checked")
    if not info.HasField("schema"):
        out.write("the replay has no table yet: no actor has introduced itself\n")
        return EXIT_OK
    found = equations(info)
    for equation in found:
        out.write(f"{equation.line()}\n")
    for actor in info.actors:
        for reason, dropped in sorted(actor.counters.dropped_steps.items()):
            out.write(f"{actor.name} dropped {count(dropped)} steps before they were sent: {reason}\n")
    return EXIT_OK if all(equation.holds for equation in found) else EXIT_BROKEN


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="shoal audit",
        description="Check that every step that was acknowledged is accounted for. Exit code 0: it is; 1: it is not.",
        allow_abbrev=False,
    )
    made.add_argument("target", metavar="FILE.toml|RUN_FOLDER", nargs="?", help="a run file, or the folder of a run")
    return made
