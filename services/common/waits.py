"""Waits: what a service waits for, by a fixed set of words: how long the wait under way has lasted, and all of them.

waits = Waits(("batches", "gradients"))
with waits.on("batches"):
    ...
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from dataclasses import dataclass, field
from typing import Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence

Held = Callable[[], ContextManager[object]]  # what a part enters while it waits; `nullcontext` where nobody counts
WORD = re.compile(r"[a-z]+(_[a-z]+)*")


class Waited(NamedTuple):
    """One reason, as it stands."""

    total_s: float  # in which at least one wait was under way, with the one that is
    now_s: float  # that the oldest wait under way has lasted; 0: there is none


@dataclass(eq=False)
class Wait:
    """A wait under way."""

    reason: str
    since_s: float  # of the clock; earlier than its begin where it goes on with an earlier try


@dataclass
class _Reason:
    ended_s: float = 0.0  # seconds of stretches that are over
    began_s: float = 0.0  # of the stretch under way: since then somebody always waits
    waits: List[Wait] = field(default_factory=list)


class Waits:
    """The waits of one process. Thread-safe; nothing is done while nobody waits."""

    def __init__(self, reasons: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without any.

        Args:
            reasons: words, as in "sample_limiter"; there will be no others.
            clock: monotonic seconds.
        """
        odd = [reason for reason in reasons if not WORD.fullmatch(reason)]
        if odd or len(set(reasons)) != len(reasons):
            raise ValueError(f"reasons to wait are words of small letters, each once; not {odd or list(reasons)}")
        self._clock = clock
        self._lock = threading.Lock()
        self._reasons: Dict[str, _Reason] = {reason: _Reason() for reason in reasons}
        self._read: Dict[str, Callable[[], Waited]] = {}

    def watch(self, reason: str, read: Callable[[], Waited]) -> None:
        """Have `reason` read from the part that waits, where it waits so often that it had better count itself."""
        self._reasons[reason] = _Reason()
        self._read[reason] = read

    @contextlib.contextmanager
    def on(self, reason: str, since_s: Optional[float] = None) -> Iterator[None]:
        """Wait for `reason` inside of the context; see `begin`."""
        wait = self.begin(reason, since_s)
        try:
            yield
        finally:
            self.end(wait)

    def begin(self, reason: str, since_s: Optional[float] = None) -> Wait:
        """Begin to wait; `end` must follow.

        Args:
            reason: one of the words.
            since_s: when the first try began, where this one goes on with it; it does not add to the total.
        """
        with self._lock:
            now_s = self._clock()
            wait = Wait(reason, now_s if since_s is None else min(since_s, now_s))
            self._enter(wait, now_s)
        return wait

    def move(self, wait: Wait, reason: str) -> None:
        """Go on with a wait for another reason."""
        if reason == wait.reason:
            return
        with self._lock:
            now_s = self._clock()  # with the lock held, here as elsewhere: a total must never fall
            self._leave(wait, now_s)
            wait.reason, wait.since_s = reason, now_s
            self._enter(wait, now_s)

    def end(self, wait: Wait) -> None:
        """The wait is over."""
        with self._lock:
            self._leave(wait, self._clock())

    def is_on(self, reason: str) -> bool:
        """Whether somebody waits for `reason` now."""
        return bool(self._reasons[reason].waits)

    def seconds(self) -> Dict[str, Waited]:
        """All reasons as they stand."""
        with self._lock:
            now_s = self._clock()
            found = {
                name: Waited(
                    reason.ended_s + (max(0.0, now_s - reason.began_s) if reason.waits else 0.0),
                    max((now_s - wait.since_s for wait in reason.waits), default=0.0),
                )
                for name, reason in self._reasons.items()
            }
        return {**found, **{name: read() for name, read in self._read.items()}}

    def _enter(self, wait: Wait, now_s: float) -> None:
        reason = self._reasons[wait.reason]
        if not reason.waits:
            reason.began_s = now_s
        reason.waits.append(wait)

    def _leave(self, wait: Wait, now_s: float) -> None:
        reason = self._reasons[wait.reason]
        reason.waits.remove(wait)
        if not reason.waits:
            reason.ended_s += max(0.0, now_s - reason.began_s)
