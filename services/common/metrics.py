"""Prometheus metrics of one process: its own registry, the `run` label on all, an endpoint on loopback."""

from __future__ import annotations

import threading
from typing import Any, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from services.common.errors import UserError


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
        self._server: Any = None

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

    def serve(self, port: int, option_name: str) -> int:
        """Serve the endpoint on 127.0.0.1 and return its port (any free one for 0).

        Raises:
            UserError: the port is taken.
        """
        try:
            self._server, _thread = start_http_server(port, addr="127.0.0.1", registry=self.registry)
        except OSError as error:
            raise UserError(
                f"cannot serve metrics on port {port}: {error}; choose another with {option_name}"
            ) from None
        return int(self._server.server_port)

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
