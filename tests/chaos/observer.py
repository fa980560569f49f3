"""Looks on as a person would, by GetInfo alone: how far it is, which versions there are, who waits and why."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Callable, Collection, Dict, List, Optional, Set, Tuple

from typing_extensions import Self

from services.cli import waits
from services.cli.operator import Operator
from services.cli.target import Addresses, Target
from services.common.errors import UserError
from shoal.v1 import parameters_pb2, replay_pb2

PERIOD_S = 0.25
STALL_S = 5.0  # nothing learned, or nothing of an actor acknowledged, for so long wants a reason
MOMENT_S = 2.0  # answers of the two are not of one instant: a reason may be missing for so long
WINDOW_S = 2.0  # over which the speed of training is taken; what the learner tells of it is half a second old
BUSY_SHARE = 0.3  # of a standstill

ReplayInfo = replay_pb2.GetReplayInfoResponse
LearnerInfo = parameters_pb2.GetLearnerInfoResponse


@dataclass
class Watch:
    """What can be said of a run by looking at it again and again. Pure: answers and times are arguments."""

    addresses: Addresses
    began_s: float
    updates: int = 0  # the most that were seen
    version: int = 0
    versions_by_chief: Dict[int, int] = field(default_factory=dict)  # incarnation -> newest version
    first_updates: Dict[int, int] = field(default_factory=dict)  # incarnation -> updates when it began to train
    reasons: Dict[str, float] = field(default_factory=dict)  # what waited -> for how long it was seen
    faults: List[str] = field(default_factory=list)
    longest_stall_s: float = 0.0
    fastest_per_s: float = 0.0  # updates
    _moved_s: float = 0.0
    _moved_busy_s: float = 0.0
    _last_updates: int = -1
    _looked_s: float = 0.0
    _unexplained: Dict[str, float] = field(default_factory=dict)  # who stands still -> since when without a reason
    _told: Set[str] = field(default_factory=set)  # standstills that are faults already
    _window: Optional[Tuple[float, int, int]] = None  # its begin: seconds, chief, updates

    def __post_init__(self) -> None:
        self._moved_s = self._looked_s = self.began_s

    def see(
        self,
        now_s: float,
        replay: Optional[ReplayInfo],
        learner: Optional[LearnerInfo],
        busy_s: float = 0.0,
        excused: Collection[str] = (),
    ) -> None:
        """Take in a look.

        Args:
            now_s: when.
            replay: its answer; None: none came.
            learner: likewise.
            busy_s: how long the learner's main thread has computed by now, or waited for a processor. Who does so for
                most of a standstill waits for nobody.
            excused: actors whose silence is the harness's own doing.
        """
        if learner is not None:
            self._see_versions(learner)
            self._see_speed(now_s, learner)
            if learner.non_finite_updates and "non-finite" not in self._told:
                self._told.add("non-finite")
                self.faults.append(f"the learner stopped {learner.non_finite_updates} updates that are not finite")
            if learner.run_state == parameters_pb2.RUN_STATE_TRAINING:
                self.first_updates.setdefault(learner.chief_incarnation, learner.updates)
            if learner.updates != self._last_updates:
                self._last_updates, self._moved_s, self._moved_busy_s = learner.updates, now_s, busy_s
                self.updates = max(self.updates, learner.updates)
        found = waits.waits_of(self.addresses, replay, learner)
        for wait in found:
            reason = f"{wait.who}: {wait.what}"
            self.reasons[reason] = self.reasons.get(reason, 0.0) + now_s - self._looked_s
        self._looked_s = now_s
        stall_s = now_s - self._moved_s
        self.longest_stall_s = max(self.longest_stall_s, stall_s)
        is_busy = busy_s - self._moved_busy_s > BUSY_SHARE * stall_s
        is_fine = stall_s < STALL_S or is_busy or any(map(_explains_the_learner, found))
        what = f"for {stall_s:.0f} s nothing was learned, and `shoal why` names nothing that the learner waits for"
        self._demand_a_reason("learner", now_s, what, is_fine)
        self._see_actors(now_s, replay, learner, excused)

    def _see_actors(
        self, now_s: float, replay: Optional[ReplayInfo], learner: Optional[LearnerInfo], excused: Collection[str]
    ) -> None:
        """Each actor whose last chunk is long ago must itself wait for something that has a name."""
        if replay is None:  # everybody waits for it, as `shoal why` says
            self._unexplained.clear()
            return
        said = {waiter.peer_name for waiter in replay.waiters if waiter.call == "Insert"}
        said |= {actor.name for actor in replay.actors if actor.waiting_for}
        readers = learner.readers if learner else ()
        said |= {r.name for r in readers if r.waiting_for and r.seconds_since_call < waits.STALE_S}
        for actor in replay.actors:
            silent_s = actor.seconds_since_insert
            is_fine = silent_s < STALL_S or actor.name in said or actor.name in excused
            what = f"for {silent_s:.0f} s {actor.name} has inserted nothing, and `shoal why` names nothing it waits for"
            self._demand_a_reason(actor.name, now_s, what, is_fine)

    def _demand_a_reason(self, who: str, now_s: float, what: str, is_fine: bool) -> None:
        """A standstill that lasts is a fault, once until it ends."""
        if is_fine:
            self._unexplained.pop(who, None)
            self._told.discard(who)
        elif now_s - self._unexplained.setdefault(who, now_s) > MOMENT_S and who not in self._told:
            self._told.add(who)
            self.faults.append(what)

    def _see_speed(self, now_s: float, learner: LearnerInfo) -> None:
        chief, updates = learner.chief_incarnation, learner.updates
        if self._window is None or self._window[1] != chief or learner.run_state != parameters_pb2.RUN_STATE_TRAINING:
            self._window = (now_s, chief, updates)
        elif now_s - self._window[0] >= WINDOW_S:
            speed = (updates - self._window[2]) / (now_s - self._window[0])
            self.fastest_per_s = max(self.fastest_per_s, speed)
            self._window = (now_s, chief, updates)

    def trains(self, learner: LearnerInfo) -> bool:
        """Whether this life of the learner has made updates of its own."""
        return learner.updates > self.first_updates.get(learner.chief_incarnation, learner.updates)

    def _see_versions(self, learner: LearnerInfo) -> None:
        chief, version = learner.chief_incarnation, learner.version
        if not version:
            return
        if chief not in self.versions_by_chief and version <= self.version:
            self.faults.append(f"a new life of the learner publishes version {version}, after {self.version}")
        elif version < self.versions_by_chief.get(chief, 0):
            self.faults.append(f"the learner's version fell from {self.versions_by_chief[chief]} to {version}")
        self.versions_by_chief[chief] = version
        self.version = max(self.version, version)


def _explains_the_learner(wait: waits.Wait) -> bool:
    """Whether this is why nothing is learned: that others wait excuses no learner that hangs."""
    return (
        wait.who in ("learner", "the drain", waits.EVERYBODY, waits.EVERY_ACTOR)
        or wait.what.startswith("its Sample")
        or (wait.who == "replay" and wait.what.startswith("no actor has introduced itself"))
    )


class Observer:
    """Two threads that ask replay and learner; `with` runs them."""

    def __init__(
        self, target: Target, busy_s: Callable[[], float], excused: Callable[[], Collection[str]] = tuple
    ) -> None:
        """Prepare.

        Args:
            target: whom to ask.
            busy_s: see `Watch.see`.
            excused: see `Watch.see`.
        """
        self.watch = Watch(target.addresses, time.monotonic())
        self.replay: Optional[ReplayInfo] = None  # the latest answer; None while there is none
        self.learner: Optional[LearnerInfo] = None
        self._target = target
        self._busy_s = busy_s
        self._excused = excused
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._ask, args=(name,), name=f"observe-{name}", daemon=True)
            for name in ("replay", "learner")
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(10)

    def _ask(self, name: str) -> None:
        with Operator(self._target.addresses, self._target.security) as operator:
            ask: Callable[[], object] = operator.replay if name == "replay" else operator.learner
            while not self._stopping.wait(PERIOD_S):
                answer = _answer_of(ask)
                with self._lock:
                    setattr(self, name, answer)
                    self.watch.see(time.monotonic(), self.replay, self.learner, self._busy_s(), self._excused())


def ask_replay(target: Target) -> Optional[ReplayInfo]:
    """Ask over a connection of its own: one that waits for its next try would tell of a start too late."""
    with Operator(target.addresses, target.security) as operator:
        answer = _answer_of(operator.replay)
    assert answer is None or isinstance(answer, ReplayInfo)
    return answer


def _answer_of(ask: Callable[[], object]) -> Optional[object]:
    try:
        return ask()
    except UserError:  # an expired certificate, a token that is unknown: no answer either
        return None
