"""Round trips: how long a message is on its way, by one clock alone."""

from __future__ import annotations

from collections import deque
from typing import Deque

WINDOW = 16  # calls; a retried or unlucky one must not count as the way


class RoundTrips:
    """The shortest of the last round trips, less what the server held them for: transit is at most half of it."""

    def __init__(self) -> None:
        self._trips_s: Deque[float] = deque(maxlen=WINDOW)

    def note(self, trip_s: float, held_s: float) -> None:
        """Note one call: seconds from its send to its answer, and those of them that the server says it took."""
        self._trips_s.append(max(0.0, trip_s - max(0.0, held_s)))

    @property
    def half_s(self) -> float:
        """Half a round trip, 0 before the first."""
        return min(self._trips_s, default=0.0) / 2
