"""Prometheus metrics of who runs what, made when they are asked for."""

from __future__ import annotations

from typing import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.learner.parameter_service import LISTED_S, Status
from services.learner.parameter_store import ParameterStore
from services.learner.readers import Readers

MAX_LABELS = 256  # readers with a series of their own: those that are furthest behind


class ReaderMetrics(Collector):
    """`shoal_learner_readers`, their lag by name, and how often one did not run what it said."""

    def __init__(self, run: str, readers: Readers, store: ParameterStore, status: Status) -> None:
        self._run = run
        self._readers = readers
        self._store = store
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """As Prometheus reads them."""
        updates = self._status.progress.updates
        living = self._readers.living(LISTED_S)
        lags = [(self._store.lag_of_reader(one.role, one.version, updates), one.peer.name) for one in living]
        readers = GaugeMetricFamily("shoal_learner_readers", "Processes that fetch parameters.", labels=["run"])
        readers.add_metric([self._run], len(living))
        yield readers
        lag = GaugeMetricFamily(
            "shoal_learner_reader_lag_updates", "Updates behind which a reader's version is.", labels=["run", "reader"]
        )
        for updates_behind, name in sorted(lags, reverse=True)[:MAX_LABELS]:
            lag.add_metric([self._run, name], updates_behind)
        yield lag
        differ = CounterMetricFamily(
            "shoal_learner_reader_digest_mismatch",
            "Times that a reader did not run the version that it said.",
            labels=["run"],
        )
        differ.add_metric([self._run], self._readers.mismatches_total)
        yield differ
        unknown = CounterMetricFamily(
            "shoal_learner_unknown_versions",
            "Trained items whose version is not known any more; they count as fresh.",
            labels=["run"],
        )
        unknown.add_metric([self._run], self._store.unknown_versions)
        yield unknown
