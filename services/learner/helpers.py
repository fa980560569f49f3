"""Helpers as the chief knows them: leases, lives that fence earlier ones, and pushes that are taken once."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Callable, Deque, Dict, List, Optional

MAX_FENCED = 1024  # lives of one helper that are remembered as over


class PushStatus(enum.IntEnum):
    """The answer to a push; the numbers are those of the wire."""

    ACCEPTED = 1
    SCALED = 2
    TOO_STALE = 3
    BAD_CHECKSUM = 4
    NON_FINITE = 5
    CHIEF_RESTARTED = 6
    FENCED = 7
    PENDING = 8


@dataclass(frozen=True)
class Answer:
    """What a helper is told about a push."""

    status: PushStatus
    reason: str = ""
    weight: float = 1.0


@dataclass(frozen=True)
class HelperView:
    """A helper as it is shown to people."""

    name: str
    incarnation: int
    lease_left_s: float  # 0: it is taken for gone
    sequence: int  # of its last push
    is_awaited: bool  # the step waits for its gradient
    push_waits_s: float  # its last push waits for the step for so long; 0: none does


class HelperFenced(Exception):
    """The call comes from a life of a helper that a newer one has replaced."""


class TooManyHelpers(Exception):
    """As many helpers as may take part do; the message says what to change."""


@dataclass
class Helper:
    """One helper in its newest life."""

    name: str
    incarnation: int
    lease_end_s: float
    sequence: int = 0  # of the last push that was taken up, 0: none
    answer: Optional[Answer] = None  # to that push; None while it waits for its step
    pushed_s: float = 0.0  # when that push was taken up, monotonic
    num_waiting: int = 0  # calls that wait for that answer: a resend may come before its first call is known to be dead
    fenced: Deque[int] = field(default_factory=lambda: deque(maxlen=MAX_FENCED))

    @property
    def is_pending(self) -> bool:
        """Whether its last push waits for its step."""
        return self.sequence > 0 and self.answer is None


class Helpers:
    """The helpers of a chief, by name; each holds a lease that its calls renew.

    An incarnation that was not seen before is the newer one and fences the older for good. One whose lease has ended
    keeps its record, so that a late resend still gets its answer, until the room is needed.
    """

    def __init__(self, clock: Callable[[], float], *, lease_s: float, max_helpers: int) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._max_helpers = max_helpers
        self._helpers: Dict[str, Helper] = {}

    def admit(self, name: str, incarnation: int) -> Helper:
        """The record of a helper that calls, with its lease renewed.

        Raises:
            HelperFenced: a newer life has replaced this one.
            TooManyHelpers: there is no room for a further one.
        """
        known = self._helpers.get(name)
        if known is not None and incarnation in known.fenced:
            raise HelperFenced(f"a newer life of {name} has taken over; stop this one, or give each its own name")
        if known is None:
            self._make_room(name)
            known = self._helpers[name] = Helper(name, incarnation, 0.0)
        elif known.incarnation != incarnation:
            fenced = known.fenced
            fenced.append(known.incarnation)
            known = self._helpers[name] = Helper(name, incarnation, 0.0, fenced=fenced)
        self.renew(known)
        return known

    def renew(self, helper: Helper) -> None:
        """Let the lease run for its whole length again."""
        helper.lease_end_s = self._clock() + self._lease_s

    def leave(self, name: str, incarnation: int) -> None:
        """End the lease of a helper that stops; what it has pushed stays."""
        known = self._helpers.get(name)
        if known is not None and known.incarnation == incarnation:
            known.lease_end_s = self._clock()

    def find(self, name: str) -> Optional[Helper]:
        """What is known of a helper, living or not."""
        return self._helpers.get(name)

    def all(self) -> List[Helper]:
        """Every record, living or not."""
        return list(self._helpers.values())

    def living(self) -> List[Helper]:
        """Those whose lease runs, by name."""
        now_s = self._clock()
        return [h for _, h in sorted(self._helpers.items()) if h.lease_end_s > now_s]

    def lease_left_s(self, helper: Helper) -> float:
        """Seconds until its lease ends."""
        return max(0.0, helper.lease_end_s - self._clock())

    def check_valid(self) -> Optional[str]:
        """What is wrong with this structure; None if nothing is."""
        if len(self._helpers) > self._max_helpers:
            return f"{len(self._helpers)} helpers are known, {self._max_helpers} may be"
        for name, helper in self._helpers.items():
            if name != helper.name:
                return f"{helper.name} is kept as {name}"
            if helper.incarnation in helper.fenced:
                return f"the life of {name} is fenced by itself"
        return None

    def _make_room(self, name: str) -> None:
        if len(self._helpers) < self._max_helpers:
            return
        now_s = self._clock()
        gone = [h for h in self._helpers.values() if h.lease_end_s <= now_s and not h.is_pending]
        if not gone:
            raise TooManyHelpers(
                f"{self._max_helpers} helpers take part, and no more may: {name} is refused; raise "
                "gradients.max_helpers of the chief, or stop another helper"
            )
        del self._helpers[min(gone, key=lambda h: h.lease_end_s).name]
