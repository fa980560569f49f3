"""What the chief shows of its helpers: how their gradients agree, what they cost, what was refused, who waits."""

from __future__ import annotations

from typing import Callable, Optional, Sequence

import numpy as np

from services.common.metrics import Metrics
from services.learner.contributions import Share
from services.learner.helpers import PushStatus

WAIT_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # seconds
LAG_BUCKETS = (0, 1, 2, 4, 8, 16)  # updates
COUNTED = {
    PushStatus.ACCEPTED: "Pushes that became part of a step.",
    PushStatus.SCALED: "Pushes that became part of a step, with a smaller one for their lag.",
    PushStatus.TOO_STALE: "Pushes refused since their base was too old.",
    PushStatus.BAD_CHECKSUM: "Pushes refused since bytes were damaged on the way.",
    PushStatus.NON_FINITE: "Pushes refused since they hold NaN or infinities.",
    PushStatus.CHIEF_RESTARTED: "Pushes refused since their base died with an earlier life of the chief.",
    PushStatus.FENCED: "Calls refused since a newer life of the helper has taken over.",
    PushStatus.PENDING: "Pushes that were told to go on waiting for their step.",
}


class GradientMetrics:
    """The metrics `shoal_learner_gradient_*`."""

    def __init__(self, metrics: Metrics, *, num_helpers: Callable[[], int]) -> None:
        self._answers = {
            status: metrics.counter(f"gradient_{status.name.lower()}_total", text) for status, text in COUNTED.items()
        }
        self._invalid = metrics.counter("gradient_invalid_total", "Pushes refused since their content is wrong.")
        self._packed = metrics.counter("gradient_received_bytes_total", "Bytes of gradients, as they travelled.")
        self._raw = metrics.counter("gradient_raw_bytes_total", "Bytes of the gradients that arrived, in float32.")
        self._abstained = metrics.counter("gradient_abstained_total", "Steps that a helper abstained from.")
        metrics.gauge("gradient_helpers", "Helpers whose lease runs.").set_function(num_helpers)
        self._contributors = metrics.gauge("gradient_contributors", "Gradients in the latest step of several.")
        self._cosine = metrics.gauge("gradient_cosine", "Mean cosine between contributors' gradients, latest step.")
        self._wait = metrics.histogram("gradient_wait_seconds", "Waits of a step for gradients.", WAIT_BUCKETS)
        self._lag = metrics.batch_histogram("gradient_lag_updates", "Lag of gradients at their step.", LAG_BUCKETS)

    def answered(self, status: PushStatus) -> None:
        """A push was answered."""
        self._answers[status].inc()

    def invalid(self) -> None:
        """A push was refused for good."""
        self._invalid.inc()

    def received(self, packed_bytes: int, raw_bytes: int) -> None:
        """A gradient was decoded."""
        self._packed.inc(packed_bytes)
        self._raw.inc(raw_bytes)

    def waited(self, seconds: float) -> None:
        """The loop has waited for gradients."""
        self._wait.observe(seconds)

    def stepped(self, shares: Sequence[Share], cosine: Optional[float]) -> None:
        """A step on several gradients was taken."""
        given = [share for share in shares if share.num_samples]
        self._abstained.inc(len(shares) - len(given))
        self._contributors.set(len(given))
        self._lag.observe(np.array([share.lag for share in given], np.int64))
        if cosine is not None:
            self._cosine.set(cosine)
