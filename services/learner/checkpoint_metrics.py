"""What the chief shows of its checkpoints."""

from __future__ import annotations

from typing import Callable

from services.common.metrics import Metrics

WRITE_BUCKETS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # seconds


class CheckpointMetrics:
    """The metrics `shoal_learner_checkpoint*`."""

    def __init__(self, metrics: Metrics, *, period_s: float, clock: Callable[[], float]) -> None:
        """Begin with none written; ages count from now on.

        Args:
            metrics: where they belong.
            period_s: learner.checkpoint_period_s.
            clock: monotonic seconds.
        """
        self._taken_s = clock()
        metrics.gauge_of(
            "checkpoint_age_seconds",
            "Since the state of the last written checkpoint was taken; before the first, since training began.",
            lambda: clock() - self._taken_s,
        )
        metrics.gauge("checkpoint_period_seconds", "Seconds between two checkpoints: learner.checkpoint_period_s.").set(
            period_s
        )
        self._written = metrics.counter("checkpoints", "Checkpoints that were written.")
        self.failed: Callable[[], None] = metrics.counter(
            "checkpoint_failures", "Checkpoints that could not be written; the chief ends with the first."
        ).inc
        self._took = metrics.histogram("checkpoint_write_seconds", "How long a checkpoint was written.", WRITE_BUCKETS)

    def written(self, took_s: float, taken_s: float) -> None:
        """One is written: how long it took, and when its state was taken, on the clock."""
        self._taken_s = taken_s  # first: whoever sees that it is counted reads its age
        self._took.observe(took_s)
        self._written.inc()
