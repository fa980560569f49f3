"""What a helper shows: `shoal_helper_*`."""

from __future__ import annotations

from typing import Callable, Optional

from services.common.metrics import Metrics
from services.common.parameter_set import ParameterSet
from services.learner.gradients import EncodedGradients
from shoal.v1 import gradients_pb2

WAIT_REASONS = ("batches", "parameters", "chief", "schema")


class HelperMetrics:
    """Counts pushes by what became of them."""

    def __init__(self, metrics: Metrics, *, queue_depth: Callable[[], int]) -> None:
        self._accepted = metrics.counter("pushes_accepted_total", "Gradients that the chief took.")
        self._refused = metrics.counter("pushes_refused_total", "Gradients that the chief refused; their residual too.")
        self._abstained = metrics.counter("pushes_abstained_total", "Steps without a gradient of this helper.")
        self._bytes = metrics.counter("pushed_bytes_total", "Bytes of gradients, as they travelled.")
        self._raw = metrics.counter("raw_bytes_total", "Bytes of the pushed gradients in float32.")
        self._residual = metrics.gauge("residual_norm", "Norm of what earlier pushes could not say.")
        self._version = metrics.gauge("base_version", "Version of the latest base.")
        self._updates = metrics.gauge("base_updates", "Updates behind the latest base.")
        metrics.gauge("prefetch_depth_batches", "Batches that wait to be used.").set_function(queue_depth)

    def pushed(
        self, base: ParameterSet, encoded: Optional[EncodedGradients], status: int, residual_norm: float
    ) -> None:
        """Count one round."""
        self._version.set(base.version)
        self._updates.set(base.updates)
        self._residual.set(residual_norm)
        if encoded is None:
            self._abstained.inc()
            return
        taken = status in (gradients_pb2.PUSH_STATUS_ACCEPTED, gradients_pb2.PUSH_STATUS_SCALED)
        (self._accepted if taken else self._refused).inc()
        self._bytes.inc(encoded.num_bytes)
        self._raw.inc(encoded.raw_bytes)
