"""The staleness ledger: what the lag of trained items adds up to, by part and by actor, a row every few seconds."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from services.common.batch import Stamps
from services.common.staleness_log import BOUNDS, NUM_BUCKETS, OTHERS, PARTS, TOTAL, ActorLag, LedgerRow, quantile
from services.learner.staleness import Lag

Counts = npt.NDArray[np.int64]

ROW_PERIOD_S = 5.0
MAX_ACTORS = 64  # that a row tells apart
SECONDS_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0)
_BUCKET_OF = np.searchsorted(np.array(BOUNDS), np.arange(BOUNDS[-1] + 2))  # of each lag up to the last bound
_SECONDS_BOUNDS = np.array(SECONDS_BOUNDS, np.float32)


@dataclass(frozen=True)
class Totals:
    """What was counted since the ledger was made."""

    updates: Counts  # [4, buckets], items by part and bucket of updates
    sum_updates: Counts  # [4]
    seconds: Counts  # [4, buckets of seconds]
    sum_seconds: npt.NDArray[np.float64]  # [4]
    lost: int
    refused: int


class Ledger:
    """Adds up batches; the training loop adds, Prometheus reads."""

    def __init__(self, *, bound: Optional[int], clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        """Begin an empty one.

        Args:
            bound: staleness.max_lag_updates, which each row carries.
            clock: monotonic seconds.
            wall_clock: seconds since 1970.
        """
        self._bound = bound
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        shape = (len(PARTS), NUM_BUCKETS)
        self._ever = np.zeros(shape, np.int64)
        self._ever_seconds = np.zeros((len(PARTS), len(SECONDS_BOUNDS) + 1), np.int64)
        self._ever_sum_updates = np.zeros(len(PARTS), np.int64)
        self._ever_sum_seconds = np.zeros(len(PARTS), np.float64)
        self._lost = self._refused = 0
        self._last: Dict[str, ActorLag] = {}
        self._begin()

    def _begin(self) -> None:
        self._began_s = self._clock()
        self._counts = np.zeros((len(PARTS) + 1, NUM_BUCKETS), np.int64)
        self._sum_updates = np.zeros(len(PARTS), np.int64)
        self._sum_seconds = np.zeros(len(PARTS), np.float64)
        self._row_lost = self._row_refused = 0
        self._actors: List[str] = []
        self._actor_counts = np.zeros((MAX_ACTORS + 1, NUM_BUCKETS), np.int64)  # the last for all others
        self._actor_most = np.zeros(MAX_ACTORS + 1, np.int64)
        self._slots: Tuple[Sequence[str], Counts] = ((), np.zeros(0, np.int64))

    def add(self, lag: Lag, stamps: Stamps, num_refused: int) -> None:
        """Count the items of a batch that is about to be used, `num_refused` of them without weight."""
        total = lag.total_updates
        capped = np.minimum(np.concatenate((lag.updates, total[None])), len(_BUCKET_OF) - 1)
        buckets = _BUCKET_OF.take(capped)
        counts = _count(buckets)
        seconds = np.array([_count_seconds(part) for part in lag.seconds])
        sum_updates, sum_seconds = lag.updates.sum(axis=1), lag.seconds.sum(axis=1, dtype=np.float64)
        num_lost = int(np.count_nonzero(lag.is_lost))
        with self._lock:
            self._ever += counts[:-1]
            self._ever_seconds += seconds
            self._ever_sum_updates += sum_updates
            self._ever_sum_seconds += sum_seconds
            self._lost += num_lost
            self._refused += num_refused
            self._counts += counts
            self._sum_updates += sum_updates
            self._sum_seconds += sum_seconds
            self._row_lost += num_lost
            self._row_refused += num_refused
            slots = self._slots_of(stamps.actor_names).take(stamps.actor_index)
            places = slots * NUM_BUCKETS + buckets[-1]
            self._actor_counts += np.bincount(places, minlength=self._actor_counts.size).reshape(-1, NUM_BUCKETS)
            np.maximum.at(self._actor_most, slots, total)

    def _slots_of(self, names: Sequence[str]) -> Counts:
        """The slot of each actor by its index; who comes when all are taken shares the last."""
        known, slots = self._slots
        if known is names:
            return slots
        for name in names:
            if name not in self._actors and len(self._actors) < MAX_ACTORS:
                self._actors.append(name)
        place = {name: slot for slot, name in enumerate(self._actors)}
        slots = np.array([place.get(name, MAX_ACTORS) for name in names], np.int64)
        self._slots = names, slots
        return slots

    def close_row(self, updates: int, *, is_last: bool = False) -> Optional[LedgerRow]:
        """The row since the last one, if it is time for it and anything was counted; the next one begins.

        Args:
            updates: of the chief now.
            is_last: it is time in any case.
        """
        if not is_last and self._clock() - self._began_s < ROW_PERIOD_S:
            return None
        with self._lock:
            items = int(self._counts[-1].sum())
            if items == 0:
                self._began_s = self._clock()
                return None
            row = LedgerRow(
                updates=updates,
                wall_s=round(self._wall_clock(), 3),
                bound=self._bound,
                items=items,
                lost=self._row_lost,
                refused=self._row_refused,
                counts=dict(zip((*PARTS, TOTAL), self._counts.tolist())),
                sum_updates=dict(zip(PARTS, self._sum_updates.tolist())),
                sum_seconds={name: round(value, 6) for name, value in zip(PARTS, self._sum_seconds.tolist())},
                actors=self._by_actor(),
            )
            self._last = row.actors
            self._begin()
            return row

    def _by_actor(self) -> Dict[str, ActorLag]:
        return {
            name: ActorLag(counts, most)
            for name, counts, most in zip(
                [*self._actors, *[""] * (MAX_ACTORS - len(self._actors)), OTHERS],
                self._actor_counts.tolist(),
                self._actor_most.tolist(),
            )
            if any(counts)
        }

    def totals(self) -> Totals:
        """What was counted so far."""
        with self._lock:
            return Totals(
                updates=self._ever.copy(),
                sum_updates=self._ever_sum_updates.copy(),
                seconds=self._ever_seconds.copy(),
                sum_seconds=self._ever_sum_seconds.copy(),
                lost=self._lost,
                refused=self._refused,
            )

    def actor_lags(self) -> Dict[str, Tuple[float, float, float]]:
        """p50, p95 and the largest lag of each actor over the last row's seconds, in updates."""
        with self._lock:
            window = self._last or self._by_actor()
            return {
                name: (quantile(lag.counts, 0.5, lag.most), quantile(lag.counts, 0.95, lag.most), float(lag.most))
                for name, lag in window.items()
            }


def _count(buckets: Counts) -> Counts:
    """Items by row and bucket <int64>[R, NUM_BUCKETS], of buckets <int64>[R, N]."""
    rows = len(buckets)
    places = buckets + np.arange(rows)[:, None] * NUM_BUCKETS
    return np.bincount(places.reshape(-1), minlength=rows * NUM_BUCKETS).reshape(rows, NUM_BUCKETS)


def _count_seconds(values: npt.NDArray[np.float32]) -> Counts:
    """Items by bucket of seconds, of values <float32>[N]: sorted once, the bounds are looked up instead of them."""
    up_to = np.searchsorted(np.sort(values), _SECONDS_BOUNDS, side="right")
    return np.diff(up_to, prepend=0, append=len(values))
