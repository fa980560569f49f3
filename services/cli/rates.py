"""How fast a counter grows, from readings now and then."""

from __future__ import annotations

from collections import deque
from typing import Deque, Tuple


class RateMeter:
    """Growth of a counter over a sliding window; a counter that falls (its process began anew) starts afresh."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._readings: Deque[Tuple[float, float]] = deque()

    def read(self, now_s: float, count: float) -> float:
        """Take a reading and return the rate per second; 0 until there are two.

        Args:
            now_s: by a monotonic clock.
            count: the counter.
        """
        readings = self._readings
        if readings and count < readings[-1][1]:
            readings.clear()
        readings.append((now_s, count))
        while len(readings) > 2 and now_s - readings[1][0] >= self._window_s:
            readings.popleft()
        first_s, first = readings[0]
        return (count - first) / (now_s - first_s) if now_s > first_s else 0.0
