"""Prometheus metrics of the staleness ledger, read when Prometheus asks."""

from __future__ import annotations

from typing import Iterator, List, Sequence, Tuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.common.staleness_log import BOUNDS, PARTS
from services.learner.staleness_ledger import SECONDS_BOUNDS, Ledger

_STATISTICS = ("p50", "p95", "max")


class LedgerCollector(Collector):
    """Histograms by part without labels of actors, and three gauges an actor, whose number the ledger bounds."""

    def __init__(self, run: str, ledger: Ledger) -> None:
        self._run = run
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        totals = self._ledger.totals()
        updates = self._histogram("lag_updates", "Lag of trained items by the part of their way, in updates.")
        seconds = self._histogram("lag_age_seconds", "Age of trained items by the part of their way.")
        for place, part in enumerate(PARTS):
            labels = [self._run, part]
            updates.add_metric(labels, _cumulated(BOUNDS, totals.updates[place]), float(totals.sum_updates[place]))
            seconds.add_metric(
                labels, _cumulated(SECONDS_BOUNDS, totals.seconds[place]), float(totals.sum_seconds[place])
            )
        yield updates
        yield seconds
        lags = GaugeMetricFamily(
            "shoal_learner_actor_lag_updates",
            "Lag of an actor's items over the last seconds.",
            labels=["run", "actor", "statistic"],
        )
        for actor, values in self._ledger.actor_lags().items():
            for statistic, value in zip(_STATISTICS, values):
                lags.add_metric([self._run, actor, statistic], value)
        yield lags
        for name, text, count in (
            ("lost_version_items", "Items whose version a crash of the chief took; they count as fresh.", totals.lost),
            ("stale_items", "Items that were beyond staleness.max_lag_updates at their use.", totals.refused),
        ):
            counter = CounterMetricFamily(f"shoal_learner_{name}", text, labels=["run"])
            counter.add_metric([self._run], count)
            yield counter

    @staticmethod
    def _histogram(name: str, text: str) -> HistogramMetricFamily:
        return HistogramMetricFamily(f"shoal_learner_{name}", text, labels=["run", "part"])


def _cumulated(bounds: Sequence[float], counts: Sequence[int]) -> List[Tuple[str, float]]:
    names = [f"{bound:g}" for bound in bounds] + ["+Inf"]
    total, buckets = 0, []
    for name, count in zip(names, counts):
        total += int(count)
        buckets.append((name, float(total)))
    return buckets
