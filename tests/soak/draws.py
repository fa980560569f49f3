"""A sampler beside a load, and the longest time that it got nothing."""

from __future__ import annotations

import threading
import time
from typing import Callable, List, Optional

from services.common.rpc import Unavailable

MAX_GAP_S = 5.0  # between two draws
MIN_DRAWS_A_SECOND = 0.5  # while gaps are counted
MIN_COUNTED_S = 2.0
MAX_WAIT_S = 1.0  # of a call, for the limiter
JOIN_S = 60.0  # longer than a call may take


class Draws(threading.Thread):
    """Samples until it is stopped, and notes what each draw took; gaps count between `begin` and `end`.

    A gap is the time without a draw, whether it was ended by one or not, and whatever came in its place: nothing to
    draw, no answer, or a call that was still under way.
    """

    def __init__(
        self,
        draw: Callable[[float], Optional[float]],
        pause_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Sample with `draw(max_wait_s)`: the seconds that it took, or None where there was nothing to draw."""
        super().__init__(name="draws", daemon=True)
        self._draw = draw
        self._pause_s = pause_s
        self._clock = clock
        self._over = threading.Event()
        self._lock = threading.Lock()  # of what follows
        self._last_s = clock()  # when the open gap began
        self._began_s = 0.0
        self._counted_draws = 0
        self._counted_s = 0.0
        self._error = ""
        self.is_counting = False
        self.took_s: List[float] = []
        self.unavailable = 0  # calls that got no answer
        self.longest_gap_s = 0.0

    def run(self) -> None:
        """Sample until the stop, or until a call fails in a way that has nothing to do with load."""
        while not self._over.wait(self._pause_s):
            try:
                took_s = self._draw(MAX_WAIT_S)
            except Unavailable:
                self.unavailable += 1
                continue  # the gap grows
            except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
                self._error = f"{type(error).__name__}: {error}"
                return
            if took_s is not None:
                self._note(took_s)

    def begin(self) -> None:
        """From now on gaps count."""
        with self._lock:
            self._last_s = self._began_s = self._clock()
            self.is_counting = True

    def end(self) -> None:
        """From now on gaps no longer count; the one that is open does."""
        with self._lock:
            if self.is_counting:
                self._close_gap()
                self._counted_s += self._clock() - self._began_s
                self.is_counting = False

    def stop(self, timeout_s: float = JOIN_S) -> None:
        """End the thread."""
        self.end()
        self._over.set()
        self.join(timeout_s)

    def faults(self) -> List[str]:
        """What is wrong with the draws, once it is stopped."""
        found = []
        if self._error:
            found.append(f"the sampler failed: {self._error}")
        if self.is_alive():
            found.append("the sampler's last call does not end")
        if self.longest_gap_s > MAX_GAP_S:
            found.append(f"the sampler got nothing for {self.longest_gap_s:.1f} s")
        if self._counted_s < MIN_COUNTED_S:
            found.append(f"all actors were there for {self._counted_s:.1f} s only, which says nothing of the sampler")
        elif self._counted_draws < MIN_DRAWS_A_SECOND * self._counted_s:
            found.append(f"the sampler got {self._counted_draws} draws in {self._counted_s:.0f} s")
        return found

    def _note(self, took_s: float) -> None:
        with self._lock:
            self.took_s.append(took_s)
            if self.is_counting:
                self._close_gap()
                self._counted_draws += 1

    def _close_gap(self) -> None:
        now_s = self._clock()
        self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
        self._last_s = now_s
