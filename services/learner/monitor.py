"""What the training loop shows: progress and lag for `GetInfo`, Prometheus metrics, TensorBoard events."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, Dict, Optional

import numpy as np
import numpy.typing as npt

from services.agent.algorithm import Update
from services.agent.health import TEXTS
from services.common.batch import Batch
from services.common.metrics import Metrics
from services.common.run_folder import Evaluation, Progress
from services.common.staleness_log import BOUNDS
from services.learner.claims import ClaimCheck
from services.learner.events import EventLog
from services.learner.parameter_service import Status
from services.learner.parameter_store import ParameterStore

SHOW_PERIOD_S = 0.5
LAG_WINDOW = 64  # batches behind the shown percentiles


class Monitor:
    """Counts on every update, shows twice a second."""

    def __init__(
        self,
        *,
        status: Status,
        store: ParameterStore,
        metrics: Metrics,
        events: EventLog,
        earlier: Progress,
        clock: Callable[[], float],
        env_steps: Callable[[], int],
        latest_evaluation: Callable[[], Optional[Evaluation]],
        max_updates: int,
        claims: Optional[ClaimCheck] = None,
    ) -> None:
        self._status = status
        self._store = store
        self._clock = clock
        self._started_at = clock()
        self._earlier = earlier
        self._env_steps = env_steps
        self._latest_evaluation = latest_evaluation
        self._max_updates = max_updates
        self._claims = claims
        self._lags: Deque[npt.NDArray[np.int64]] = deque(maxlen=LAG_WINDOW)
        self._shown_at = 0.0
        self._shown_version = 0
        self._events = events
        self._lag = metrics.batch_histogram("item_lag_updates", "Lag of trained items, in updates.", BOUNDS)
        metrics.counter_of("trained_items", "Items trained on in this life of the chief.", lambda: self._lag.count)
        self._scalars: Dict[str, Any] = {}
        self._metrics = metrics
        status.progress = earlier

    def progress(self, updates: int) -> Progress:
        """How far the run has come."""
        seconds = self._earlier.training_seconds + self._clock() - self._started_at
        return Progress(
            updates=updates,
            training_seconds=seconds,
            env_steps=self._env_steps(),
            is_finished=updates >= self._max_updates,
        )

    def after_update(self, updates: int, batch: Batch, update: Update) -> None:
        """Count one update."""
        lag = self._store.lag(batch.policy_version, updates)
        self._lags.append(lag)
        self._lag.observe(lag)
        if self._claims is not None:
            self._claims.compare(batch, update.td_error, updates)
        if update.metrics:
            self._show_scalars(updates, update.metrics)
        if self._clock() - self._shown_at >= SHOW_PERIOD_S:
            self.show(updates)

    def rested(self, seconds: float) -> None:
        """The run was at rest for so long, which is no time of training."""
        self._started_at += seconds

    def show(self, updates: int) -> None:
        """Bring `GetInfo`, metrics and events up to date."""
        self._shown_at = self._clock()
        status = self._status
        status.progress = self.progress(updates)
        if self._lags:
            status.lag_p50, status.lag_p95 = np.percentile(np.concatenate(list(self._lags)), [50, 95]).tolist()
        self._events.scalar("lag/p50_updates", status.lag_p50, updates)
        self._events.scalar("lag/p95_updates", status.lag_p95, updates)
        evaluation = self._latest_evaluation()
        if evaluation is not None and evaluation.version != self._shown_version:
            self._shown_version = evaluation.version
            self._events.scalar("evaluation/success_rate", evaluation.success_rate, evaluation.updates)
            self._events.scalar("evaluation/mean_return", evaluation.mean_return, evaluation.updates)

    def close(self) -> None:
        self._events.close()

    def _show_scalars(self, updates: int, values: Dict[str, float]) -> None:
        for name, value in values.items():
            self._events.scalar(f"learning/{name}", value, updates)
            if name not in self._scalars:
                self._scalars[name] = self._metrics.gauge(f"learning_{name}", _help(name))
            self._scalars[name].set(value)


def _help(name: str) -> str:
    """The sentence of a metric of the algorithm."""
    text = TEXTS.get(name, f"{name} of the algorithm, latest")
    return f"{text[0].upper()}{text[1:]}."
