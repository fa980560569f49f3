"""Who waits, since when, for what, and what would release it: from the answers of replay and learner. No calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, Dict, List, Optional, Sequence, Tuple

from services.cli import figures
from services.cli.target import Addresses
from shoal.v1 import experience_pb2, parameters_pb2, replay_pb2

SILENT_S = 5.0  # an actor that inserted nothing for longer is worth a line
STALE_S = 10.0  # likewise a reader of parameters that asked for nothing
READERS_PER_S = 10.0  # of many readers each asks seldomer than that: their silence says less
JUDGING_S = 60.0  # an evaluator that judges one version for longer
ASKS_AT_ONCE_S = 2.5  # a helper that waits asks many times a second: what it said before is over
PUSH_S = 1.0  # a gradient that waits for its step for longer

# What a sentence of a service begins with, and what would release who says it.
RELEASES: Sequence[Tuple[str, str]] = (
    ("the environment", "its return releases it: look at the simulator (actor.max_step_s: from when on that is said)"),
    ("parked", "the learner's answer releases it: start the learner, or mend the way to it"),
    (
        "waiting for the chief's first parameters",
        "the learner's first version releases it: look at what that waits for",
    ),
    ("waiting for the chief at", "the learner's answer releases it: start it, or mend the way to it"),
    ("waiting for the replay at", "the replay's answer releases it: start it, or mend the way to it"),
    ("at rest", "`shoal drain --undo` lets it act again"),
    ("the run is drained", "`shoal drain --undo` lets the run go on"),
    ("waiting for the gradient of", "the gradient releases it, or the end of the lease: look at that helper"),
    ("waiting for the chief's next step", "the learner's next step releases it: look at what that waits for"),
    ("waiting for the first actor", "an actor's first call to the replay releases it: start one of this run"),
    ("waiting for a version newer", "the learner's next version releases it"),
)
EVERYBODY, EVERY_ACTOR = "everybody", "every actor"  # who wait for a service that does not answer
OTHERWISE = "what it waits for releases it: look at the replay's lines, and at its log"


@dataclass(frozen=True)
class Wait:
    """One thing that does not go on."""

    who: str  # name of a process, or of all that wait likewise
    since_s: Optional[float]  # None: it is not known since when
    what: str
    release: str  # what would end it

    def short(self) -> str:
        """For a table: since when, and what."""
        return f"{figures.duration(self.since_s)} {self.what}" if self.since_s is not None else self.what

    def line(self) -> str:
        """For `shoal why`: two lines."""
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
        what = f"no replay answers at {addresses.replay}"
        waits.append(Wait(EVERYBODY, None, what, "start it, or look at its log"))
    else:
        waits += _of_replay(replay)
    if learner is None:
        what = f"no learner answers at {addresses.learner}"
        waits.append(Wait(EVERY_ACTOR, None, what, "start it; until then actors act on what they have, then park"))
    else:
        told = {actor.name for actor in replay.actors if actor.waiting_for} if replay is not None else set()
        waits += _of_learner(learner)
        waits += _of_readers(learner, told)
    return waits


def _of_replay(info: replay_pb2.GetReplayInfoResponse) -> List[Wait]:
    if not info.HasField("schema"):
        return [Wait("replay", None, "no actor has introduced itself yet", "start an actor of this run")]
    longest: Dict[Tuple[str, str], replay_pb2.Waiter] = {}
    for waiter in info.waiters:
        key = (waiter.peer_name, waiter.call)
        if key not in longest or waiter.seconds > longest[key].seconds:
            longest[key] = waiter
    waits = [
        Wait(waiter.peer_name, waiter.seconds, f"its {waiter.call}: {waiter.reason}", _release(waiter, info))
        for waiter in sorted(longest.values(), key=lambda each: -each.seconds)
    ]
    for actor in info.actors:
        if actor.waiting_for:
            waits.append(Wait(actor.name, actor.waiting_seconds, actor.waiting_for, release_of(actor.waiting_for)))
        elif actor.seconds_since_insert > SILENT_S and (actor.name, "Insert") not in longest:
            what = "it has inserted nothing, and waits for nothing here"
            release = "look at its process: it acts slowly, cannot reach the replay, or is gone"
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
        since_s = info.waiting_seconds or None
        waits.append(Wait("learner", since_s, info.waiting_for, release_of(info.waiting_for)))
    if info.drain.waiting_for:
        release = "`shoal drain --undo` lets the run go on instead"
        waits.append(Wait("the drain", info.drain.seconds, info.drain.waiting_for, release))
    for helper in info.helpers:
        if helper.push_waits_seconds > PUSH_S:
            what = "its gradient is taken up, and waits for the learner's step"
            release = "the step releases it: look at what the learner waits for"
            waits.append(Wait(helper.name, helper.push_waits_seconds, what, release))
    return waits


def _of_readers(info: parameters_pb2.GetLearnerInfoResponse, told: Collection[str]) -> List[Wait]:
    """What readers of parameters said; of those who were `told` of by the replay nothing."""
    waits: List[Wait] = []
    stale_s = max(STALE_S, len(info.readers) / READERS_PER_S)
    for reader in info.readers:
        silent_s, sentence = reader.seconds_since_call, reader.waiting_for
        if reader.role == experience_pb2.ROLE_EVALUATOR:
            if silent_s > JUDGING_S:
                what = f"it has judged nothing: it looks at version {reader.version} for so long, or hangs"
                waits.append(Wait(reader.name, silent_s, what, "look at its process and its environment"))
                continue
            if reader.version != info.version:  # it has got a newer one with its last question
                continue
        elif reader.role == experience_pb2.ROLE_HELPER and silent_s > ASKS_AT_ONCE_S:
            continue
        elif reader.role == experience_pb2.ROLE_ACTOR and silent_s > stale_s:
            what = (
                f"it has not asked for parameters; it runs version {reader.version}, {reader.lag_updates} updates old"
            )
            waits.append(Wait(reader.name, silent_s, what, "look at its process and its network"))
        if sentence and reader.name not in told:
            waits.append(Wait(reader.name, reader.waiting_seconds or None, sentence, release_of(sentence)))
    return waits


def release_of(sentence: str) -> str:
    """What would release who waits for this, as services say it."""
    return next((release for beginning, release in RELEASES if sentence.startswith(beginning)), OTHERWISE)
