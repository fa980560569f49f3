"""Steps since the table was made, and the two equations that they obey."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass
class StepCounters:
    """Steps since the table was made; two equations hold after every change.

    acknowledged = resident + overwritten + reset + quarantined + lost_tail
    acknowledged = items + unripe + unripe_evicted + lost_tail + quarantined
    """

    acknowledged: int = 0
    resident: int = 0  # in the ring, as an item or with an open window
    overwritten: int = 0  # left the ring, as an item or with an open window
    reset: int = 0
    quarantined: int = 0  # never entered the ring
    lost_tail: int = 0  # no successor was seen; whether the row is still in the ring does not matter
    items: int = 0  # ever became an item
    unripe: int = 0  # window still open, row in the ring
    unripe_evicted: int = 0  # left the ring before the window was complete

    def check_valid(self) -> Optional[str]:
        """Which equation does not hold, or None."""
        kept = self.resident + self.overwritten + self.reset + self.quarantined + self.lost_tail
        if kept != self.acknowledged:
            return f"{self.acknowledged} steps were acknowledged, but {kept} are accounted for: {self}"
        started = self.items + self.unripe + self.unripe_evicted + self.lost_tail + self.quarantined
        if started != self.acknowledged:
            return f"{self.acknowledged} steps were acknowledged, but {started} came to something: {self}"
        return None
