"""Looks on as a person would, by GetInfo alone: how far it is, which versions there are, who waits and why."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional

from typing_extensions import Self

from services.cli.operator import Operator
from services.cli.target import Addresses, Target
from services.cli.waits import waits_of
from services.common.errors import UserError
from shoal.v1 import parameters_pb2, replay_pb2

PERIOD_S = 0.25
STALL_S = 5.0  # nothing learned for so long wants a reason
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
    _moved_s: float = 0.0
    _moved_busy_s: float = 0.0
    _last_updates: int = -1
    _looked_s: float = 0.0
    _unexplained_s: Optional[float] = None

    def __post_init__(self) -> None:
        self._moved_s = self._looked_s = self.began_s

    def see(
        self, now_s: float, replay: Optional[ReplayInfo], learner: Optional[LearnerInfo], busy_s: float = 0.0
    ) -> None:
        """Take in a look.

        Args:
            now_s: when.
            replay: its answer; None: none came.
            learner: likewise.
            busy_s: how long the learner's main thread has computed by now, or waited for a processor. Who does so for
                most of a standstill waits for nobody.
        """
        if learner is not None:
            self._see_versions(learner)
            if learner.run_state == parameters_pb2.RUN_STATE_TRAINING:
                self.first_updates.setdefault(learner.chief_incarnation, learner.updates)
            if learner.updates != self._last_updates:
                self._last_updates, self._moved_s, self._moved_busy_s = learner.updates, now_s, busy_s
                self.updates = max(self.updates, learner.updates)
        waits = waits_of(self.addresses, replay, learner)
        for wait in waits:
            reason = f"{wait.who}: {wait.what}"
            self.reasons[reason] = self.reasons.get(reason, 0.0) + now_s - self._looked_s
        self._looked_s = now_s
        stall_s = now_s - self._moved_s
        self.longest_stall_s = max(self.longest_stall_s, stall_s)
        if waits or stall_s < STALL_S or busy_s - self._moved_busy_s > BUSY_SHARE * stall_s:
            self._unexplained_s = None
            return
        # Answers of the two are not of one instant: a reason that is missing for a moment is none that is missing.
        if self._unexplained_s is None:
            self._unexplained_s = now_s
        elif self._unexplained_s >= 0 and now_s - self._unexplained_s > 2.0:
            self._unexplained_s = -1.0
            self.faults.append(f"for {stall_s:.0f} s nothing was learned, and `shoal why` names nobody who waits")

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


class Observer:
    """Two threads that ask replay and learner; `with` runs them."""

    def __init__(self, target: Target, busy_s: Callable[[], float]) -> None:
        """Prepare.

        Args:
            target: whom to ask.
            busy_s: see `Watch.see`.
        """
        self.watch = Watch(target.addresses, time.monotonic())
        self.replay: Optional[ReplayInfo] = None  # the latest answer; None while there is none
        self.learner: Optional[LearnerInfo] = None
        self._target = target
        self._busy_s = busy_s
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
                    self.watch.see(time.monotonic(), self.replay, self.learner, self._busy_s())


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
