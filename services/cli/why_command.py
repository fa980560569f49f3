"""`shoal why`: who waits, since when, for what, and what would release it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import List, Optional, Sequence, TextIO

from services.cli import figures
from services.cli.arguments import split_overrides
from services.cli.operator import Operator
from services.cli.target import Addresses, find_target
from services.common.errors import EXIT_OK
from shoal.v1 import experience_pb2, parameters_pb2, replay_pb2

SILENT_S = 5.0  # an actor that inserted nothing for longer is worth a line
STALE_S = 10.0  # likewise a reader of parameters that asked for nothing


@dataclass(frozen=True)
class Wait:
    """One thing that does not go on."""

    who: str
    since_s: Optional[float]  # None: it is not known since when
    what: str
    release: str  # what would end it

    def line(self) -> str:
        """As one line."""
        since = f" for {figures.duration(self.since_s)}" if self.since_s is not None else ""
        return f"{self.who} waits{since}: {self.what}\n    {self.release}"


def waits_of(
    addresses: Addresses,
    replay: Optional[replay_pb2.GetReplayInfoResponse],
    learner: Optional[parameters_pb2.GetLearnerInfoResponse],
) -> List[Wait]:
    """Everything that waits, as far as replay and learner know.

    Args:
        addresses: where they were asked.
        replay: its answer; None: there was none.
        learner: likewise.
    """
    waits: List[Wait] = []
    if replay is None:
        waits.append(
            Wait("everybody", None, f"no replay answers at {addresses.replay}", "start it, or look at its log")
        )
    else:
        waits += _of_replay(replay)
    if learner is None:
        what = f"no learner answers at {addresses.learner}"
        waits.append(Wait("every actor", None, what, "start it; until then actors act on what they have, then park"))
    else:
        waits += _of_learner(learner)
    return waits


def _of_replay(info: replay_pb2.GetReplayInfoResponse) -> List[Wait]:
    if not info.HasField("schema"):
        return [Wait("the replay", None, "no actor has introduced itself yet", "start an actor of this run")]
    waits = [
        Wait(waiter.peer_name, waiter.seconds, f"its {waiter.call}: {waiter.reason}", _release(waiter, info))
        for waiter in sorted(info.waiters, key=lambda each: -each.seconds)
    ]
    waiting = {waiter.peer_name for waiter in info.waiters}
    for actor in info.actors:
        if actor.seconds_since_insert > SILENT_S and actor.name not in waiting:
            what = "it has inserted nothing, and waits for nothing here"
            release = "look at its process: it acts slowly, is parked for want of parameters, or is gone"
            waits.append(Wait(actor.name, actor.seconds_since_insert, what, release))
    return waits


def _release(waiter: replay_pb2.Waiter, info: replay_pb2.GetReplayInfoResponse) -> str:
    if waiter.call == "Insert":
        return "samples release it: the learner must draw; raise replay.error_buffer to let actors run further ahead"
    missing = info.limiter.min_size_to_sample - info.num_items
    if missing > 0:
        return f"{figures.count(missing)} more items release it: actors must insert"
    return "inserts release it: actors must act faster, or raise replay.samples_per_insert"


def _of_learner(info: parameters_pb2.GetLearnerInfoResponse) -> List[Wait]:
    waits: List[Wait] = []
    if info.waiting_for:
        release = "what it waits for releases it; the replay's lines say more where it waits for batches"
        waits.append(Wait("the learner", None, info.waiting_for, release))
    for reader in info.readers:
        if reader.seconds_since_call > STALE_S and reader.role == experience_pb2.ROLE_ACTOR:
            what = (
                f"it has not asked for parameters; it runs version {reader.version}, {reader.lag_updates} updates old"
            )
            waits.append(Wait(reader.name, reader.seconds_since_call, what, "look at its process and its network"))
    return waits


def run(words: Sequence[str], out: TextIO) -> int:
    """Ask, and write what waits.

    Raises:
        UserError: what the user can mend.
    """
    rest, overrides = split_overrides(words)
    options = parser().parse_args(rest)
    with Operator(find_target(options.target, overrides)) as system:
        waits = waits_of(system.addresses, system.replay(), system.learner())
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
    made.add_argument("target", metavar="FILE.toml|RUN_FOLDER", nargs="?", help="a run file, or the folder of a run")
    return made
