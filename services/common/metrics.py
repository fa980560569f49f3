"""Prometheus metrics of one process: its own registry, the `run` label on all, an endpoint."""

from __future__ import annotations

import threading
from typing import Any, Callable, Iterator, Optional, Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from services.common.call_observer import Observe
from services.common.metrics_server import MetricsServer
from services.common.security.certificate_files import CertificateFiles
from services.common.security.transport import LISTEN_IN_THE_CLEAR, ServerSecurity

CALL_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class BatchHistogram(Collector):
    """A Prometheus histogram that observes arrays: one search over the bucket bounds for all values."""

    def __init__(self, name: str, text: str, run: str, buckets: Sequence[float]) -> None:
        self._name, self._text, self._run = name, text, run
        self._bounds = np.array(buckets, np.float64)  # upper, inclusive
        self._counts = np.zeros(len(buckets) + 1, np.int64)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, values: npt.NDArray[Any]) -> None:
        """Count every value of an array of any shape."""
        counts = np.bincount(np.searchsorted(self._bounds, values.reshape(-1)), minlength=len(self._counts))
        with self._lock:
            self._counts += counts
            self._sum += float(values.sum())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """As Prometheus reads it: cumulative counts by upper bound."""
        with self._lock:
            cumulative, total = np.cumsum(self._counts), self._sum
        family = HistogramMetricFamily(self._name, self._text, labels=["run"])
        names = [f"{bound:g}" for bound in self._bounds] + ["+Inf"]
        family.add_metric([self._run], list(zip(names, cumulative.tolist())), total)
        yield family


class Metrics:
    """Makes metrics named `shoal_<service>_<noun>_<unit>` and serves them."""

    def __init__(self, service: str, run: str) -> None:
        self.registry = CollectorRegistry()
        self._prefix = f"shoal_{service}_"
        self._run = run
        self._server: Optional[MetricsServer] = None

    def counter(self, name: str, text: str) -> Counter:
        metric: Counter = Counter(self._prefix + name, text, ["run"], registry=self.registry).labels(self._run)
        return metric

    def gauge(self, name: str, text: str) -> Gauge:
        metric: Gauge = Gauge(self._prefix + name, text, ["run"], registry=self.registry).labels(self._run)
        return metric

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        metric = Histogram(self._prefix + name, text, ["run"], registry=self.registry, buckets=buckets)
        labelled: Histogram = metric.labels(self._run)
        return labelled

    def batch_histogram(self, name: str, text: str, buckets: Sequence[float]) -> BatchHistogram:
        """A histogram that takes whole arrays: hundreds of thousands of values a second."""
        metric = BatchHistogram(self._prefix + name, text, self._run, buckets)
        self.registry.register(metric)
        return metric

    def rejected_calls(self) -> Callable[[str], None]:
        """What counts calls that were rejected at the door, by the reason's word."""
        counter: Counter = Counter(
            self._prefix + "rejected_calls_total",
            "Calls rejected for their token: no_token, unknown_token, wrong_role, false_peer.",
            ["run", "reason"],
            registry=self.registry,
        )
        return lambda reason: counter.labels(self._run, reason).inc()

    def calls(self) -> Observe:
        """What counts calls to the service, and how long they took."""
        counter: Counter = Counter(
            self._prefix + "calls_total",
            "gRPC calls that ended, by method and status code.",
            ["run", "method", "code"],
            registry=self.registry,
        )
        seconds = Histogram(
            self._prefix + "call_seconds",
            "How long gRPC calls took in the service, waits that they asked for included.",
            ["run", "method"],
            registry=self.registry,
            buckets=CALL_BUCKETS,
        )

        def observe(method: str, code: str, took_s: float) -> None:
            counter.labels(self._run, method, code).inc()
            seconds.labels(self._run, method).observe(took_s)

        return observe

    def certificate(self, files: Optional[CertificateFiles]) -> None:
        """Show when the certificate that the service listens with ends: the one in force, also after a replacement."""
        if files is not None:
            shown = files

            def ends() -> float:
                expires_at = shown.now().expires_at
                return expires_at.timestamp() if expires_at else 0.0

            self.gauge(
                "certificate_expires_timestamp_seconds",
                "When the service's certificate ends, in seconds since 1970.",
            ).set_function(ends)

    def serve(
        self,
        port: int,
        option_name: str,
        *,
        host: str = "127.0.0.1",
        security: ServerSecurity = LISTEN_IN_THE_CLEAR,
    ) -> int:
        """Serve the endpoint and return its port (any free one for 0).

        Raises:
            UserError: the port is taken, or the host's name is none of this machine.
        """
        self._server = MetricsServer(host, port, option_name, self.registry, security)
        self._server.start()
        return self._server.port

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
