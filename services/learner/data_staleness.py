"""What the learner does about the age of its data: split it, note it in the ledger, and weigh items by it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Callable

import numpy as np
import numpy.typing as npt

from services.common.metrics import Metrics
from services.common.staleness_log import LedgerRow, StalenessLog
from services.learner.drawn_batch import DrawnBatch
from services.learner.staleness import KnownUpdates, StalenessRules, split_lag
from services.learner.staleness_ledger import Ledger
from services.learner.staleness_metrics import LedgerCollector


class DataStaleness:
    """Looks at each batch just before it is used."""

    def __init__(
        self,
        rules: StalenessRules,
        history: KnownUpdates,
        file: Path,
        metrics: Metrics,
        *,
        run: str,
        max_rows: int,
        on_row: Callable[[LedgerRow], None] = lambda _row: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin.

        Args:
            rules: what counts.
            history: of the chief.
            file: of the ledger; one that is there goes on.
            metrics: where the ledger is shown.
            run: its name.
            max_rows: of the file.
            on_row: told each row of the ledger, which is of some seconds of training.
            clock: that of `DrawnBatch.arrived_s`.
            wall_clock: seconds since 1970.
        """
        self._rules = rules
        self._history = history
        self._clock = clock
        self._log = StalenessLog(file, max_rows)
        self._on_row = on_row
        self.ledger = Ledger(bound=rules.max_lag_updates, clock=clock, wall_clock=wall_clock)
        metrics.registry.register(LedgerCollector(run, self.ledger))
        self._breaches = metrics.counter(
            "bound_breaches",
            "Items that were trained on beyond staleness.max_lag_updates; anything but 0 is a fault of shoal.",
        )

    def weigh(self, drawn: DrawnBatch, updates: int, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Note the age of a batch that is used now, and return the weights of its items <float32>[N].

        Args:
            drawn: the batch.
            updates: that the chief has done.
            weights: <float32>[N], for other reasons than age.

        Raises:
            UserError: the ledger cannot be written.
        """
        batch = drawn.batch
        if batch.stamps is None:
            return weights
        prefetch_s = drawn.half_trip_s + max(0.0, self._clock() - drawn.arrived_s)
        lag = split_lag(batch.policy_version, batch.stamps, self._history, updates, prefetch_s)
        weighed = self._rules.weigh(weights, lag.total_updates)
        bound = self._rules.max_lag_updates
        num_refused = 0 if bound is None else int(np.count_nonzero(lag.total_updates > bound))
        if bound is not None and num_refused:
            self._breaches.inc(int(np.count_nonzero(weighed[lag.total_updates > bound])))
        self.ledger.add(lag, batch.stamps, num_refused)
        self._write(updates, is_last=False)
        return weighed

    def close(self, updates: int) -> None:
        """Write what was counted since the last row; the next one begins.

        Raises:
            UserError: the ledger cannot be written.
        """
        self._write(updates, is_last=True)

    def _write(self, updates: int, *, is_last: bool) -> None:
        row = self.ledger.close_row(updates, is_last=is_last)
        if row is not None:
            self._log.append(row)
            self._on_row(row)
