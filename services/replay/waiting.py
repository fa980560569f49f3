"""Waiting: calls that are held back, for how long and why; first come, first served."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from services.common.waits import Waits
from services.replay.table_info import WaiterInfo

INSERT_LIMITER, SAMPLE_LIMITER, SAMPLE_MIN_SIZE = REASONS = ("insert_limiter", "sample_limiter", "sample_min_size")
RESUMED_S = 1.0  # who left without success and comes again within this goes on with the same wait

Place = Tuple[int, int]  # (round, ticket): lower goes first


class _Kept(NamedTuple):
    """What is kept of one who left without success."""

    place: Place
    since_s: float  # when its wait began
    left_s: float


@dataclass
class _Waiter:
    peer_name: str
    call: str
    since_s: float
    reason: str
    place: Place
    woken: threading.Condition
    displaced: bool = False


class WaitingRoom:
    """The calls that wait, one line for each kind of call. Every method is called with the lock held.

    Nobody overtakes: only the first of a line may go on, and who comes while others wait stands behind them. A peer
    with several calls in a line stands in one round with the first and a round later with each further one, so that it
    holds nobody up. A peer that had to leave without success (its time was over, the room was full) keeps its place for
    its next try.
    """

    def __init__(self, lock: threading.RLock, clock: Callable[[], float], waits: Optional[Waits] = None) -> None:
        self._lock = lock
        self._clock = clock
        self._waits = waits or Waits(REASONS, clock)
        self._lines: Dict[str, List[_Waiter]] = {}
        self._kept: Dict[Tuple[str, str], _Kept] = {}  # of those who left without success, by call and peer
        self._tickets = 0
        self._interruption = ""  # why nobody may wait any more; empty while all is well

    def count(self, call: str) -> int:
        """How many calls of this kind wait."""
        return len(self._lines.get(call, ()))

    def wait(
        self,
        peer_name: str,
        call: str,
        reason: Callable[[], str],
        max_wait_s: float,
        room: float = math.inf,
        word: Callable[[], str] = lambda: INSERT_LIMITER,
    ) -> str:
        """Wait until it is this call's turn and `reason` gives an empty string.

        Args:
            peer_name: of the caller.
            call: its kind.
            reason: one sentence why a call of this kind cannot go on, or nothing if it can.
            max_wait_s: how long to wait.
            room: calls of this kind that may wait at once.
            word: one of REASONS, asked while the call waits.

        Returns:
            "" when the call may go on, and else the sentence why not.
        """
        line = self._lines.setdefault(call, [])
        why = reason()
        if not line and not why:
            self._kept.pop((call, peer_name), None)
            return ""
        waiter = self._make_waiter(line, peer_name, call, why)
        standing = [other for other in line if not other.displaced]
        if len(standing) >= room:
            if not standing or standing[-1].place < waiter.place:
                self._keep(waiter)
                return f"{room} other {call.lower()}s wait already, since {why or line[0].reason}"
            # The last of a full line leaves for one who came before it and was turned away then.
            standing[-1].displaced = True
            standing[-1].woken.notify()
        line.append(waiter)
        line.sort(key=lambda other: other.place)
        wait = self._waits.begin(word(), waiter.since_s)
        try:
            if self._stay(line, waiter, reason, max_wait_s, lambda: self._waits.move(wait, word())):
                return ""
            self._keep(waiter)
            return self._interruption or waiter.reason
        finally:
            self._waits.end(wait)
            line.remove(waiter)
            self._wake_first(line)

    def _make_waiter(self, line: List[_Waiter], peer_name: str, call: str, why: str) -> _Waiter:
        now_s = self._clock()
        kept = self._kept.pop((call, peer_name), None)
        if kept is not None:
            since_s = kept.since_s if now_s - kept.left_s <= RESUMED_S else now_s
            return _Waiter(peer_name, call, since_s, why, kept.place, threading.Condition(self._lock))
        self._tickets += 1
        own = [other.place[0] for other in line if other.peer_name == peer_name]
        first = line[0].place[0] if line else 0
        place = (max(own) + 1 if own else first, self._tickets)
        return _Waiter(peer_name, call, now_s, why, place, threading.Condition(self._lock))

    def _keep(self, waiter: _Waiter) -> None:
        """Keep the place of one who leaves without success, and since when it has waited."""
        key = (waiter.call, waiter.peer_name)
        other = self._kept.get(key)  # of another call of this peer
        place = waiter.place if other is None else min(waiter.place, other.place)
        self._kept[key] = _Kept(place, waiter.since_s, self._clock())

    def _stay(
        self,
        line: List[_Waiter],
        waiter: _Waiter,
        reason: Callable[[], str],
        max_wait_s: float,
        note: Callable[[], None],
    ) -> bool:
        """Whether the waiter's turn came; `note` is called whenever it is to wait on."""
        deadline_s = self._clock() + max_wait_s
        while True:
            why = reason()
            if line[0] is waiter and not why:
                return True
            if line[0] is not waiter:
                why = f"{line.index(waiter)} calls came before it: {why or line[0].reason}"
            waiter.reason = why
            left_s = deadline_s - self._clock()
            if self._interruption or waiter.displaced or left_s <= 0.0:
                return False
            note()
            waiter.woken.wait(left_s)

    @staticmethod
    def _wake_first(line: List[_Waiter]) -> None:
        if line:
            line[0].woken.notify()

    def wake(self) -> None:
        """Let the first of each line look again: something has changed."""
        for line in self._lines.values():
            self._wake_first(line)

    def interrupt(self, reason: str) -> None:
        """Wake every waiting call with `reason`; from now on nobody waits."""
        self._interruption = reason
        for line in self._lines.values():
            for waiter in line:
                waiter.woken.notify()

    def waiters(self) -> List[WaiterInfo]:
        """Who waits, those who are next first."""
        now_s = self._clock()
        return [
            WaiterInfo(w.peer_name, w.call, now_s - w.since_s, w.reason) for line in self._lines.values() for w in line
        ]
