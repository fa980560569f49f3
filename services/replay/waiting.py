"""Waiting: calls that are held back, for how long and why, on the table's one condition."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, Iterator, List

from services.replay.table_info import WaiterInfo


@dataclass
class _Waiter:
    peer_name: str
    call: str
    since_s: float
    reason: str


class WaitingRoom:
    """The calls that wait. Every method is called with the condition's lock held."""

    def __init__(self, condition: threading.Condition, clock: Callable[[], float]) -> None:
        self._condition = condition
        self._clock = clock
        self._waiters: List[_Waiter] = []
        self._interruption = ""  # why nobody may wait any more; empty while all is well

    def count(self, call: str) -> int:
        """How many calls of this kind wait."""
        return sum(waiter.call == call for waiter in self._waiters)

    def wait(self, peer_name: str, call: str, reason: Callable[[], str], max_wait_s: float) -> str:
        """Wait until `reason` gives an empty string; returns "" then, and else the sentence why not."""
        why = reason()
        if not why:
            return ""
        deadline_s = self._clock() + max_wait_s
        with self._waiting(peer_name, call, why) as waiter:
            while not self._interruption:
                left_s = deadline_s - self._clock()
                if left_s <= 0.0:
                    return waiter.reason
                in_time = self._condition.wait(left_s)
                waiter.reason = reason()
                if not waiter.reason or not in_time:
                    return waiter.reason
        return self._interruption

    @contextmanager
    def _waiting(self, peer_name: str, call: str, why: str) -> Iterator[_Waiter]:
        waiter = _Waiter(peer_name, call, self._clock(), why)
        self._waiters.append(waiter)
        try:
            yield waiter
        finally:
            self._waiters = [other for other in self._waiters if other is not waiter]

    def interrupt(self, reason: str) -> None:
        """Wake every waiting call with `reason`; from now on nobody waits."""
        self._interruption = reason
        self._condition.notify_all()

    def waiters(self) -> List[WaiterInfo]:
        """Who waits, the longest first."""
        now_s = self._clock()
        return [WaiterInfo(w.peer_name, w.call, now_s - w.since_s, w.reason) for w in self._waiters]
