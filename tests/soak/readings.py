"""What a process holds, read from /proc, and whether a series of readings is flat."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional

import numpy as np

WARM_UP = 0.3  # share of a series that is left out: caches fill, arenas grow
MIB = 1 << 20


@dataclass(frozen=True)
class Tolerance:
    """What counts as flat: growth over the whole series, by its slope.

    Twenty seconds of full speed, on a machine with other work, were seen to come to 0.2 MiB of a replay or an actor and
    to 1 MiB of a learner of 250 MiB; an arena that is taken on the way adds up to 1.5 MiB. In that time a replay takes
    some 5,000 chunks behind the warm-up: 400 bytes that each of them left behind would show.
    """

    share: float = 0.01  # of the median
    least_bytes: int = 2 * MIB  # whatever the median is: allocators take and give back pages


@dataclass
class Series:
    """Readings of one process, in the order of time."""

    times_s: List[float] = field(default_factory=list)
    resident_bytes: List[int] = field(default_factory=list)  # VmRSS
    # PSS: shared pages count by share. Shown and not judged: it grows when a neighbour with the same libraries ends.
    proportional_bytes: List[int] = field(default_factory=list)
    heap_bytes: List[int] = field(default_factory=list)  # anonymous pages, which leaks are made of
    descriptors: List[int] = field(default_factory=list)
    threads: List[int] = field(default_factory=list)

    def read(self, pid: int) -> None:
        """Add a reading of process `pid`."""
        rollup = _sizes(Path(f"/proc/{pid}/smaps_rollup"))
        self.times_s.append(time.monotonic())
        self.resident_bytes.append(rollup["Rss"])
        self.proportional_bytes.append(rollup["Pss"])
        self.heap_bytes.append(rollup["Anonymous"])
        self.descriptors.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
        self.threads.append(len(list(Path(f"/proc/{pid}/task").iterdir())))

    def faults(self, tolerance: Optional[Tolerance] = None) -> List[str]:
        """What grows; empty if nothing does."""
        tolerance = tolerance or Tolerance()
        found = []
        for name in ("resident_bytes", "heap_bytes"):
            values = np.array(getattr(self, name), np.float64)
            growth, allowed = growth_of(values), max(tolerance.least_bytes, tolerance.share * float(np.median(values)))
            if growth > allowed:
                found.append(f"{name} grew by {growth / MIB:.1f} MiB, and may by {allowed / MIB:.1f}")
        for name in ("descriptors", "threads"):
            values = warm(np.array(getattr(self, name), np.float64))
            growth = growth_of(np.array(getattr(self, name), np.float64))
            if growth > max(1.0, 0.05 * float(np.median(values))):
                found.append(f"{name} grew by {growth:.1f} from {values[0]:.0f}")
        return found

    def row(self) -> str:
        """A line of a table: medians, and growth behind the warm-up."""
        cells = []
        for name in ("resident_bytes", "proportional_bytes", "heap_bytes"):
            values = np.array(getattr(self, name), np.float64)
            cells.append(f"{np.median(values) / MIB:7.1f} {growth_of(values) / MIB:+6.2f}")
        for name in ("descriptors", "threads"):
            values = warm(np.array(getattr(self, name), np.float64))
            cells.append(f"{values.min():4.0f}-{values.max():<4.0f}")
        return "  ".join(cells)


def warm(values: np.ndarray) -> np.ndarray:
    """A series without its warm-up."""
    return values[int(len(values) * WARM_UP) :]


def growth_of(values: np.ndarray) -> float:
    """Growth over a series behind its warm-up, by the median of the slopes of all pairs (Theil and Sen).

    A single jump (an arena that was taken) moves it little, a leak in full. Nothing grows by more than the range of its
    readings, as the slopes around a jump of a count would have it.
    """
    values = warm(values)
    n = len(values)
    if n < 3:
        return 0.0
    first, second = np.triu_indices(n, 1)
    slopes = (values[second] - values[first]) / (second - first)
    reach = float(values.max() - values.min())
    return float(np.clip(np.median(slopes) * (n - 1), -reach, reach))


def _sizes(file: Path) -> Dict[str, int]:
    sizes: Dict[str, int] = {}
    for line in file.read_text(encoding="ascii").splitlines()[1:]:
        name, value = line.split()[:2]
        sizes[name.rstrip(":")] = int(value) * 1024
    return sizes
