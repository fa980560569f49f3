"""What the chief shows of itself, read when Prometheus asks."""

from __future__ import annotations

from typing import Callable, Dict, Optional

from services.common.metrics import Metrics
from services.common.run_folder import Evaluation
from services.learner.parameter_service import ParameterServicer, Status
from services.learner.parameter_store import ParameterStore
from services.learner.replay_client import ReplayClient
from shoal.v1 import parameters_pb2

RUN_STATES = {
    "waiting": parameters_pb2.RUN_STATE_WAITING,
    "training": parameters_pb2.RUN_STATE_TRAINING,
    "finished": parameters_pb2.RUN_STATE_FINISHED,
}
WAIT_REASONS = ("batches", "gradients", "checkpoint", "schema", "readers")


class ChiefMetrics:
    """Progress, versions, queues and evaluations."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        status: Status,
        store: ParameterStore,
        servicer: ParameterServicer,
        replay: ReplayClient,
        updates: Callable[[], int],
        max_lag_updates: Optional[int],
    ) -> None:
        """Show the parts of the chief.

        Args:
            metrics: where they are shown.
            status: of the training.
            store: of the parameters.
            servicer: knows the evaluations.
            replay: keeps the batches that wait, and the priorities.
            updates: done over all lives.
            max_lag_updates: staleness.max_lag_updates.
        """
        self._status = status
        metrics.counter_of(
            "updates",
            "Optimizer updates over all lives of the chief; after a crash it goes back to the checkpoint's.",
            updates,
        )
        metrics.gauges_of("run_state", "1 for the state that the run is in, 0 for the others.", "state", self._states)
        metrics.gauge_of(
            "training_seconds",
            "Running time of the chief over all its lives.",
            lambda: status.progress.training_seconds,
        )
        metrics.gauge_of("version", "Newest published version.", lambda: store.newest.version if store.newest else 0)
        metrics.counter_of("published_versions", "Versions published to actors in this life.", lambda: store.published)
        metrics.gauge_of(
            "parameters_bytes",
            "Bytes of the newest published parameters in memory.",
            lambda: store.newest.array_bytes if store.newest else 0,
        )
        metrics.gauge_of("prefetch_depth_batches", "Batches that wait to be trained on.", lambda: replay.depth)
        metrics.gauge_of(
            "priority_queue_depth_batches",
            "Batches whose priorities wait for the next call to the replay.",
            lambda: replay.num_priorities,
        )
        if max_lag_updates is not None:
            metrics.gauge("lag_bound_updates", "Older items are not trained on: staleness.max_lag_updates.").set(
                max_lag_updates
            )
        _show_evaluations(metrics, lambda: servicer.latest, lambda: servicer.best)

    def _states(self) -> Dict[str, float]:
        return {name: float(self._status.run_state == state) for name, state in RUN_STATES.items()}


def _show_evaluations(
    metrics: Metrics, latest: Callable[[], Optional[Evaluation]], best: Callable[[], Optional[Evaluation]]
) -> None:
    def of_latest(read: Callable[[Evaluation], Optional[float]]) -> Callable[[], Optional[float]]:
        def value() -> Optional[float]:
            evaluation = latest()
            return None if evaluation is None else read(evaluation)

        return value

    def best_success() -> Optional[float]:
        evaluation = best()
        return None if evaluation is None else _success(evaluation)

    metrics.gauge_of(
        "evaluated_success_ratio", "Share of episodes with success in the latest evaluation.", of_latest(_success)
    )
    metrics.gauge_of(
        "evaluated_return",
        "Mean return in the latest evaluation.",
        of_latest(lambda evaluation: evaluation.mean_return),
    )
    metrics.gauge_of(
        "evaluated_version",
        "Version of the latest evaluation.",
        of_latest(lambda evaluation: float(evaluation.version)),
    )
    metrics.gauge_of("best_success_ratio", "Share of episodes with success of the best version so far.", best_success)


def _success(evaluation: Evaluation) -> Optional[float]:
    """None where the environment reports no success."""
    return evaluation.success_rate if evaluation.success_rate >= 0.0 else None
