"""Which version had how many updates and when it was published, in memory that grows by the logarithm of the run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import numpy as np
import numpy.typing as npt

# A row is left out when its neighbours lie closer together than 1 / RESOLUTION of their distance from the newest: a lag
# or an age that is read between them is wrong by less than that share of itself.
RESOLUTION = 256
MIN_ROWS = 4096  # before any row is left out


class VersionRecord(NamedTuple):
    """A version of the history, as a checkpoint keeps it."""

    version: int
    updates: int
    age_s: float = 0.0  # since it was published, by the monotonic clocks of the chief's lives
    published_at_s: float = 0.0  # by the wall clock, seconds since 1970; 0: not known
    is_thinned: bool = False  # versions between this one and the next were left out


@dataclass(frozen=True)
class VersionFacts:
    """What is known of a batch of versions; each array has the batch's shape."""

    updates: npt.NDArray[np.int64]  # those of the newest version where it is not known
    age_s: npt.NDArray[np.float64]  # since it was published; 0 where it is not known
    is_known: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Columns:
    """One array a fact; rows above the history's count are free."""

    version: npt.NDArray[np.int64]
    updates: npt.NDArray[np.int64]
    published_at: npt.NDArray[np.float64]  # by this life's monotonic clock
    wall: npt.NDArray[np.float64]  # by the wall clock
    is_thinned: npt.NDArray[np.bool_]  # rows between this one and the next were left out

    @staticmethod
    def of_size(size: int) -> _Columns:
        return _Columns(
            np.zeros(size, np.int64),
            np.zeros(size, np.int64),
            np.zeros(size, np.float64),
            np.zeros(size, np.float64),
            np.zeros(size, np.bool_),
        )

    def taken(self, rows: Any, size: int) -> _Columns:
        """A copy of `rows` (a slice or indices) with room for `size`."""
        copy = _Columns.of_size(size)
        for mine, its in zip(
            (self.version, self.updates, self.published_at, self.wall, self.is_thinned),
            (copy.version, copy.updates, copy.published_at, copy.wall, copy.is_thinned),
        ):
            chosen = mine[rows]
            its[: len(chosen)] = chosen
        return copy


def _rows_to_keep(columns: _Columns, count: int, exact_from: int) -> npt.NDArray[np.int64]:
    """Indices of the rows that stay: all from `exact_from` on, the first, and as many between as the error needs."""
    updates = columns.updates[:count].tolist()
    published_at = columns.published_at[:count].tolist()
    newer = exact_from
    kept = list(range(count - 1, exact_from - 1, -1))
    for row in range(exact_from - 1, 0, -1):
        spared_updates = (updates[-1] - updates[newer]) / RESOLUTION
        spared_s = (published_at[-1] - published_at[newer]) / RESOLUTION
        older = row - 1
        if updates[newer] - updates[older] > spared_updates or published_at[newer] - published_at[older] > spared_s:
            kept.append(row)
            newer = row
    return np.array([*kept, 0][::-1], np.int64)


class VersionHistory:
    """Version -> (updates, time published), all rising.

    Exact for the newest versions, at least `min_rows` / 2 of them. Of older ones rows are left out, the more the older
    they are, and what lies between two rows is interpolated: the error of a lag (updates now less those of the version)
    and of an age is below 1 / RESOLUTION of itself. n versions leave O(RESOLUTION log n) rows.

    A version that is not there and between no two rows that stand for it (its updates were lost in a crash of the
    chief, or it never was) is not known: it counts as the newest. Thread-safe; look-ups take the lock for an instant.
    """

    def __init__(
        self,
        records: Sequence[VersionRecord] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        min_rows: int = MIN_ROWS,
    ) -> None:
        """Begin with what an earlier life knew.

        Args:
            records: as `records` gave them; ages grow by the wall clock's time since then.
            clock: monotonic seconds.
            wall_clock: seconds since 1970.
            min_rows: below so many rows none is left out.

        Raises:
            ValueError: versions or updates fall.
        """
        records = [VersionRecord(*record) for record in records]  # pairs (version, updates) of older checkpoints too
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._min_rows = min_rows
        self._limit = min_rows
        self._count = len(records)
        self._columns = _Columns.of_size(max(2 * self._count, 64))
        if records:
            # Between two lives of the chief only the wall clock went on; one that was set back adds nothing.
            last = records[-1]
            away_s = max(0.0, wall_clock() - (last.published_at_s + last.age_s)) if last.published_at_s else 0.0
            now = clock()
            columns = self._columns
            columns.version[: self._count] = [record.version for record in records]
            columns.updates[: self._count] = [record.updates for record in records]
            columns.published_at[: self._count] = [now - away_s - record.age_s for record in records]
            columns.wall[: self._count] = [record.published_at_s for record in records]
            columns.is_thinned[: self._count] = [record.is_thinned for record in records]
            if (np.diff(columns.version[: self._count]) <= 0).any() or (
                np.diff(columns.updates[: self._count]) < 0
            ).any():
                raise ValueError("the history of versions does not rise; it is damaged")

    def __len__(self) -> int:
        return self._count

    def append(self, version: int, updates: int) -> None:
        """Note that `version` is published now, with `updates` behind it.

        Raises:
            ValueError: it is not above the last.
        """
        with self._lock:
            columns, count = self._columns, self._count
            if count and (version <= columns.version[count - 1] or updates < columns.updates[count - 1]):
                raise ValueError(f"version {version} with {updates} updates comes after a later one")
            if count == self._limit:
                columns, count = self._thin_out()
            if count == len(columns.version):
                columns = self._columns = columns.taken(slice(count), 2 * count)
            # A look-up that began before reads rows below its own count: these are above it.
            columns.version[count] = version
            columns.updates[count] = updates
            columns.published_at[count] = self._clock()
            columns.wall[count] = self._wall_clock()
            columns.is_thinned[count] = False
            self._count = count + 1

    def look_up(self, versions: npt.NDArray[np.int64]) -> VersionFacts:
        """Updates and ages of `versions`, any shape."""
        with self._lock:
            columns, count = self._columns, self._count
        if count == 0:
            zeros = np.zeros(versions.shape, np.int64)
            return VersionFacts(zeros, zeros.astype(np.float64), zeros.astype(np.bool_))
        # Most batches are of the newest versions: the search is cut to the rows that they can meet.
        first = 0
        if versions.size:
            first = max(0, int(columns.version[:count].searchsorted(versions.min(), side="right")) - 1)
        known, known_updates = columns.version[first:count], columns.updates[first:count]
        known_times = columns.published_at[first:count]
        # Versions of one life follow each other, unless helpers' sets lie between: then no search is needed.
        before = np.clip(versions + (len(known) - 1 - known[-1]), 0, len(known) - 1)
        if not (known.take(before) == versions).all():
            before = np.maximum(known.searchsorted(versions, side="right") - 1, 0)
        versions_before, updates, published_at = (
            known.take(before),
            known_updates.take(before),
            known_times.take(before),
        )
        is_known = versions_before == versions
        now = self._clock()
        if not is_known.all():
            is_between = columns.is_thinned[first:count].take(before) & (versions_before < versions)
            is_known |= is_between
            after = np.minimum(before + 1, len(known) - 1)
            width = np.maximum(known.take(after) - versions_before, 1)
            share = np.where(is_between, (versions - versions_before) / width, 0.0)
            updates = updates + np.rint(share * (known_updates.take(after) - updates)).astype(np.int64)
            published_at = published_at + share * (known_times.take(after) - published_at)
            updates[~is_known] = known_updates[-1]
            published_at[~is_known] = now
        return VersionFacts(updates, np.maximum(now - published_at, 0.0), is_known)

    def published_at_s(self, version: int) -> float:
        """When `version` was published by the wall clock, seconds since 1970; 0 if that is not known exactly."""
        with self._lock:
            columns, count = self._columns, self._count
        at = int(columns.version[:count].searchsorted(version))
        return float(columns.wall[at]) if at < count and columns.version[at] == version else 0.0

    def records(self) -> List[VersionRecord]:
        """What is known, for a checkpoint; the oldest first."""
        with self._lock:
            columns, count = self._columns, self._count
        ages = np.round(self._clock() - columns.published_at[:count], 3)
        return [
            VersionRecord(*row)
            for row in zip(
                columns.version[:count].tolist(),
                columns.updates[:count].tolist(),
                ages.tolist(),
                np.round(columns.wall[:count], 3).tolist(),
                columns.is_thinned[:count].tolist(),
            )
        ]

    def check_valid(self) -> str:
        """One sentence about what is wrong; empty if nothing is."""
        columns, count = self._columns, self._count
        if (np.diff(columns.version[:count]) <= 0).any():
            return "versions do not rise"
        if (np.diff(columns.updates[:count]) < 0).any():
            return "updates fall"
        if count and columns.is_thinned[count - 1]:
            return "the newest version stands for others"
        return ""

    def _thin_out(self) -> Tuple[_Columns, int]:
        """Leave out rows that their neighbours stand for; the newest half stays."""
        columns, count = self._columns, self._count
        kept = _rows_to_keep(columns, count, exact_from=count - self._min_rows // 2)
        taken = columns.taken(kept, max(2 * len(kept), 64))
        taken.is_thinned[: len(kept) - 1] |= np.diff(kept) > 1
        self._columns, self._count = taken, len(kept)
        self._limit = max(self._min_rows, 2 * len(kept))
        return taken, len(kept)
