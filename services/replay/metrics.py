"""Prometheus metrics of the replay, read from the table when Prometheus asks."""

from __future__ import annotations

from typing import Callable, Iterator, Optional, Tuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.replay.quarantine_dump import QuarantineDump
from services.replay.table import Table
from services.replay.table_info import TableInfo


class TableCollector(Collector):
    """Turns one `Table.info()` into metrics; empty until an actor has introduced itself."""

    def __init__(self, run: str, table: Callable[[], Optional[Table]], dump: Optional[QuarantineDump] = None) -> None:
        self._run = run
        self._table = table
        self._dump = dump

    def collect(self) -> Iterator[Metric]:
        table = self._table()
        if table is None:
            return
        info = table.info()
        for name, text, value in _gauges(info):
            gauge = GaugeMetricFamily(f"shoal_replay_{name}", text, labels=["run"])
            gauge.add_metric([self._run], value)
            yield gauge
        for name, text, value in _counters(info):
            counter = CounterMetricFamily(f"shoal_replay_{name}", text, labels=["run"])
            counter.add_metric([self._run], value)
            yield counter
        yield from self._counts(info)
        waiting = GaugeMetricFamily("shoal_replay_waiting_calls", "Calls held by the limiter.", labels=["run", "call"])
        for call in ("Insert", "Sample"):
            waiting.add_metric([self._run, call], sum(waiter.call == call for waiter in info.waiters))
        yield waiting

    def _counts(self, info: TableInfo) -> Iterator[Metric]:
        dumps = {"written": self._dump.written, "failed": self._dump.failed} if self._dump is not None else {}
        for name, text, label, values in (
            ("priority_updates", "Priorities that came back.", "outcome", info.sampling.updates),
            ("refused_chunks", "Chunks that can never be applied.", "reason", info.refused_chunks),
            ("quarantine_dumps", "Sick lanes that should become a file.", "outcome", dumps),
        ):
            counter = CounterMetricFamily(f"shoal_replay_{name}", text, labels=["run", label])
            for value, count in values.items():
                counter.add_metric([self._run, value], count)
            yield counter


def _gauges(info: TableInfo) -> Iterator[Tuple[str, str, float]]:
    yield "capacity_rows", "Rows that the ring can hold.", info.capacity_rows
    yield "occupied_rows", "Rows in use, final observations included.", info.rows
    yield "items", "Items that can be drawn.", info.num_items
    yield "resident_steps", "Acknowledged steps whose rows are in the ring.", info.steps.resident
    yield "unripe_steps", "Steps whose window is still open.", info.steps.unripe
    yield "living_actors", "Actors that have introduced themselves.", len(info.actors)
    yield "exhausted_items", "Items in the ring that were drawn max_times_sampled times.", info.sampling.num_exhausted
    yield "expired_items", "Items in the ring that are older than staleness.max_lag_updates.", info.sampling.num_expired
    yield "newest_version", "The chief's newest version, as far as the replay heard.", info.newest_version


def _counters(info: TableInfo) -> Iterator[Tuple[str, str, float]]:
    steps = info.steps
    yield "acknowledged_steps", "Steps acknowledged to actors.", steps.acknowledged
    yield "overwritten_steps", "Steps whose rows were reused.", steps.overwritten
    yield "quarantined_steps", "Steps of lanes with values that are not finite.", steps.quarantined
    yield "lost_tail_steps", "Steps whose successor nobody saw.", steps.lost_tail
    yield "inserted_items", "Steps that can start an item, as the limiter counts them.", info.limiter.inserted_items
    yield "sampled_items", "Items drawn.", info.limiter.sampled_items
    yield "left_sampler_items", "Items that left after max_times_sampled draws.", info.sampling.exhausted_items
    yield "item_expirations", "Items that became older than staleness.max_lag_updates.", info.sampling.expired_items
    yield "freshness_rebases", "Times that all leaves were rebased.", info.sampling.freshness_rebases
    yield "clamped_priorities", "Priorities brought into their range.", info.clamped_priorities
