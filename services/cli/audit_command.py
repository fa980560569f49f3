"""`shoal audit`: whether every step is accounted for, as a table and an exit code."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, TextIO

from services.cli.arguments import add_target, split_overrides
from services.cli.figures import count, duration
from services.cli.operator import REPLAY, Operator
from services.cli.target import find_target
from services.common.errors import EXIT_OK, UserError
from shoal.v1 import replay_pb2

EXIT_BROKEN = 1
DEAD_S = 60.0  # an actor that sent no chunk for longer: what it held then, nobody has seen


@dataclass(frozen=True)
class Equation:
    """A sum that must hold."""

    left: str
    total: int
    terms: Sequence[str] = ()
    values: Sequence[int] = ()

    @property
    def difference(self) -> int:
        """Steps that are unaccounted for; negative: steps that are counted twice."""
        return self.total - sum(self.values)

    @property
    def holds(self) -> bool:
        """Whether both sides are equal."""
        return self.difference == 0

    def line(self) -> str:
        """The equation with its numbers."""
        right = " + ".join(f"{count(value)} {term}" for term, value in zip(self.terms, self.values))
        verdict = "holds" if self.holds else f"BROKEN: {self.difference:+,} steps are unaccounted for"
        return f"{count(self.total)} {self.left} = {right}: {verdict}"

    def facts(self) -> Dict[str, Any]:
        """As an object of `--json`."""
        right = dict(zip(self.terms, self.values))
        return {"left": self.left, "total": self.total, "right": right, "difference": self.difference}


def equations(info: replay_pb2.GetReplayInfoResponse) -> List[Equation]:
    """The conservation equations: of the replay, and of each actor's newest life."""
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
        *(_of_life(actor) for actor in info.actors),
    ]


def _of_life(actor: replay_pb2.ActorInfo) -> Equation:
    """What an actor produced in its newest life, up to its last chunk.

    The counters came with that chunk, and the replay counted it at the same instant: they are one cut through actor and
    replay, however fast both go on.
    """
    counters = actor.counters
    terms: Dict[str, int] = {"acknowledged": actor.life_acknowledged_steps}
    if actor.elsewhere_steps:
        terms["acknowledged where this ring does not know of it"] = actor.elsewhere_steps
    terms.update({f"dropped ({reason})": steps for reason, steps in sorted(counters.dropped_steps.items())})
    produced = counters.produced_steps
    if _is_dead(actor):  # what it held was never seen
        produced -= counters.buffered_steps
    else:
        terms["buffered"] = counters.buffered_steps
    return Equation(f"produced by {actor.name}", produced, list(terms), list(terms.values()))


def _is_dead(actor: replay_pb2.ActorInfo) -> bool:
    return actor.seconds_since_insert > DEAD_S and not actor.waiting_for


def notes(info: replay_pb2.GetReplayInfoResponse) -> List[str]:
    """What else there is to know of the actors' lives."""
    found: List[str] = []
    for actor in info.actors:
        earlier = actor.acknowledged_steps - actor.life_acknowledged_steps
        if actor.earlier_lives:
            lives = "life" if actor.earlier_lives == 1 else "lives"
            found.append(
                f"{count(earlier)} more are of {actor.earlier_lives} earlier {lives} of {actor.name}: produced means "
                "the last chunk that was seen of them"
            )
        if _is_dead(actor):
            found.append(
                f"{actor.name} sent its last chunk {duration(actor.seconds_since_insert)} ago: produced means up to "
                f"that one; {count(actor.counters.buffered_steps)} steps were buffered behind it, and nobody has seen "
                "them"
            )
    return found


def run(words: Sequence[str], out: TextIO) -> int:
    """Check, write a line for each equation, and return 0 when all hold.

    Raises:
        UserError: the replay cannot be asked.
    """
    rest, overrides = split_overrides(words)
    options = parser().parse_args(rest)
    target = find_target(options.target, overrides)
    with Operator(target.addresses, target.security) as system:
        info = system.replay()
        if info is None:
            raise UserError(f"{system.silence(REPLAY)}; nothing can be checked without it")
    is_there = info.HasField("schema")
    found = equations(info) if is_there else []
    holds = all(equation.holds for equation in found)
    remarks = notes(info)
    if options.json:
        facts = {"holds": holds, "equations": [equation.facts() for equation in found], "notes": remarks}
        out.write(json.dumps(facts) + "\n")
    elif not is_there:
        out.write("the replay has no table yet: no actor has introduced itself\n")
    else:
        out.write("".join(f"{line}\n" for line in [*(equation.line() for equation in found), *remarks]))
    return EXIT_OK if holds else EXIT_BROKEN


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="shoal audit",
        description="Check that every step is accounted for: those that the replay acknowledged, and those that each "
        "actor produced in its newest life. Exit code 0: they are; 1: they are not; 2: nothing could be checked.",
        allow_abbrev=False,
    )
    add_target(made)
    made.add_argument("--json", action="store_true", help="one object: holds, equations, notes")
    return made
