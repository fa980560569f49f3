"""Prometheus metrics of one process: its own registry, the `run` label on all, an endpoint."""

from __future__ import annotations

import os
import platform
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple, Type, Union

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.common.call_observer import Observe
from services.common.metrics_server import MetricsServer
from services.common.security.certificate_files import CertificateFiles
from services.common.security.transport import LISTEN_IN_THE_CLEAR, ServerSecurity
from services.common.waits import Waits

Family = Type[Union[CounterMetricFamily, GaugeMetricFamily]]
Values = Mapping[str, float]  # by the value of a label

REJECTIONS = ("no_token", "unknown_token", "wrong_role", "false_peer", "malformed", "slow", "crowded", "untaken")
CALL_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def _installed_version() -> str:
    try:
        return version("shoal")
    except PackageNotFoundError:  # run out of a checkout that was never installed
        return "unknown"


def disk_bytes(folder: Path) -> Tuple[float, float]:
    """Free for this user, and size, of the file system that `folder` lies on or will lie on; NaN if it cannot be read.

    Args:
        folder: need not exist yet.
    """
    for place in (folder, *folder.absolute().parents):
        try:
            stats = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            break
        return float(stats.f_bavail * stats.f_frsize), float(stats.f_blocks * stats.f_frsize)
    return float("nan"), float("nan")


class _Read(Collector):
    """One counter or gauge, read when Prometheus asks."""

    def __init__(
        self, family: Family, name: str, text: str, run: str, label: str, read: Callable[[], Optional[Values]]
    ) -> None:
        self._family, self._name, self._text, self._run = family, name, text, run
        self._labels = ["run", label] if label else ["run"]
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """As Prometheus reads it; nothing where there is no value."""
        values = self._read()
        if values is None:
            return
        family = self._family(self._name, self._text, labels=self._labels)
        for value, number in values.items():
            family.add_metric([self._run, value][: len(self._labels)], number)
        yield family


class _WaitsCollector(Collector):
    """What a process waits for."""

    def __init__(self, prefix: str, run: str, waits: Waits) -> None:
        self._prefix, self._run, self._waits = prefix, run, waits

    def collect(self) -> Iterator[Metric]:
        """As Prometheus reads it."""
        total = CounterMetricFamily(
            self._prefix + "waited_seconds",
            "Time in which at least one wait of this reason was under way.",
            labels=["run", "reason"],
        )
        now = GaugeMetricFamily(
            self._prefix + "waiting_seconds",
            "How long the oldest wait of this reason that is under way has lasted; 0: none is.",
            labels=["run", "reason"],
        )
        for reason, waited in self._waits.seconds().items():
            total.add_metric([self._run, reason], waited.total_s)
            now.add_metric([self._run, reason], waited.now_s)
        yield total
        yield now


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

    @property
    def count(self) -> int:
        """Values that were observed."""
        with self._lock:
            return int(self._counts.sum())

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
        ProcessCollector(registry=self.registry)
        build: Gauge = Gauge(
            self._prefix + "build_info",
            "The release of shoal that runs, and of Python; always 1.",
            ["run", "version", "python"],
            registry=self.registry,
        )
        build.labels(run, _installed_version(), platform.python_version()).set(1)

    def counter(self, name: str, text: str) -> Counter:
        metric: Counter = Counter(self._prefix + name, text, ["run"], registry=self.registry).labels(self._run)
        return metric

    def counters(self, name: str, text: str, label: str, values: Sequence[str]) -> Dict[str, Counter]:
        """A counter for each of `values` of a label, all of them there from the start."""
        metric: Counter = Counter(self._prefix + name, text, ["run", label], registry=self.registry)
        return {value: metric.labels(self._run, value) for value in values}

    def counter_of(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A counter that somebody else keeps; it is read when Prometheus asks."""
        self._add(CounterMetricFamily, name, text, "", lambda: {"": read()})

    def gauge_of(self, name: str, text: str, read: Callable[[], Optional[float]]) -> None:
        """A gauge that is read when Prometheus asks, and left out while it is None."""

        def values() -> Optional[Values]:
            value = read()
            return None if value is None else {"": value}

        self._add(GaugeMetricFamily, name, text, "", values)

    def gauges_of(self, name: str, text: str, label: str, read: Callable[[], Values]) -> None:
        """A gauge for each value of a label, read when Prometheus asks."""
        self._add(GaugeMetricFamily, name, text, label, read)

    def _add(self, family: Family, name: str, text: str, label: str, read: Callable[[], Optional[Values]]) -> None:
        self.registry.register(_Read(family, self._prefix + name, text, self._run, label, read))

    def waits(self, reasons: Sequence[str]) -> Waits:
        """Where the process tells what it waits for, by these words."""
        waits = Waits(reasons)
        self.registry.register(_WaitsCollector(self._prefix, self._run, waits))
        return waits

    def disk(self, folder: Path, what: str) -> None:
        """Show how full the file system is that `folder` lies on; `what` lies there, as in "the ring"."""
        self.gauge_of("disk_free_bytes", f"Free on the file system of {what}.", lambda: disk_bytes(folder)[0])
        self.gauge_of("disk_size_bytes", f"Size of the file system of {what}.", lambda: disk_bytes(folder)[1])

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
        text = "Calls rejected at the door."
        counters = self.counters("rejected_calls", text, "reason", REJECTIONS)
        return lambda reason: counters[reason].inc()

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
