"""Prometheus metrics of the replay, read from the table when Prometheus asks."""

from __future__ import annotations

from typing import Callable, Iterator, List, Optional, Tuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.replay.actor_metrics import actor_families
from services.replay.quarantine_dump import QuarantineDump
from services.replay.table import Table
from services.replay.table_info import RateLimiterState, TableInfo
from services.replay.table_view import PrioritySpread

Named = Tuple[str, str, float]  # name, help, value


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
        info, spread = table.info(), table.spread_priorities()
        for name, text, value in (*_gauges(info), *_ratio(info.limiter)):
            gauge = GaugeMetricFamily(f"shoal_replay_{name}", text, labels=["run"])
            gauge.add_metric([self._run], value)
            yield gauge
        for name, text, value in _counters(info):
            counter = CounterMetricFamily(f"shoal_replay_{name}", text, labels=["run"])
            counter.add_metric([self._run], value)
            yield counter
        yield from self._counts(info)
        yield from self._bounds(info.limiter)
        yield from self._priorities(spread)
        yield from actor_families(self._run, info.actors)
        waiting = GaugeMetricFamily("shoal_replay_waiting_calls", "Calls held by the limiter.", labels=["run", "call"])
        for call in ("Insert", "Sample"):
            waiting.add_metric([self._run, call], sum(waiter.call == call for waiter in info.waiters))
        yield waiting

    def _counts(self, info: TableInfo) -> Iterator[Metric]:
        dumps = {"written": self._dump.written, "failed": self._dump.failed} if self._dump is not None else {}
        for name, text, label, values in (
            (
                "priority_updates",
                "Priorities that came back, by what became of them.",
                "outcome",
                info.sampling.updates,
            ),
            ("refused_chunks", "Chunks refused since they can never be applied.", "reason", info.refused_chunks),
            ("quarantine_dumps", "Lanes with values that are not finite that should become a file.", "outcome", dumps),
        ):
            counter = CounterMetricFamily(f"shoal_replay_{name}", text, labels=["run", label])
            for value, count in values.items():
                counter.add_metric([self._run, value], count)
            yield counter

    def _bounds(self, limiter: RateLimiterState) -> Iterator[Metric]:
        if limiter.samples_per_insert == 0.0:
            return
        bound = GaugeMetricFamily(
            "shoal_replay_limiter_bound_samples",
            "Surplus above which inserts wait (insert), and below which samples wait (sample).",
            labels=["run", "side"],
        )
        bound.add_metric([self._run, "insert"], limiter.error_buffer)
        bound.add_metric([self._run, "sample"], -limiter.error_buffer)
        yield bound

    def _priorities(self, spread: Optional[PrioritySpread]) -> Iterator[Metric]:
        if spread is None:
            return
        priority = GaugeMetricFamily(
            "shoal_replay_priority",
            "Priorities p of the items; p50 and p95 are of rows chosen at random at each scrape.",
            labels=["run", "quantile"],
        )
        for quantile, value in spread.quantiles.items():
            priority.add_metric([self._run, quantile], value)
        yield priority
        effective = GaugeMetricFamily(
            "shoal_replay_effective_items",
            "As many items of one priority would spread the draws as much; estimated at each scrape.",
            labels=["run"],
        )
        effective.add_metric([self._run], spread.effective_items)
        yield effective


def _gauges(info: TableInfo) -> List[Named]:
    steps, limiter, sampling = info.steps, info.limiter, info.sampling
    kept = steps.resident + steps.overwritten + steps.reset + steps.quarantined + steps.lost_tail
    living = sum(actor.seconds_since_insert <= info.max_actor_silence_s for actor in info.actors)
    drawn = limiter.sampled_items / limiter.inserted_items if limiter.inserted_items else 0.0
    gauges: List[Named] = [
        ("capacity_rows", "Rows that the ring can hold.", info.capacity_rows),
        ("occupied_rows", "Rows in use, final observations included.", info.rows),
        ("fill_ratio", "Share of the rows that are in use.", info.rows / info.capacity_rows),
        ("oldest_row_age_seconds", "Since the oldest row came; 0: there is none.", info.oldest_row_age_s),
        ("items", "Items that can be drawn.", info.num_items),
        ("resident_steps", "Acknowledged steps whose rows are in the ring.", steps.resident),
        ("unripe_steps", "Steps whose window is still open.", steps.unripe),
        (
            "conservation_error_steps",
            "Acknowledged steps less those that are accounted for; anything but 0 is a fault of shoal.",
            steps.acknowledged - kept,
        ),
        ("living_actors", "Actors that were heard of within replay.max_actor_silence_s.", living),
        ("exhausted_items", "Items in the ring that were drawn max_times_sampled times.", sampling.num_exhausted),
        ("expired_items", "Items in the ring that are older than staleness.max_lag_updates.", sampling.num_expired),
        ("newest_version", "The chief's newest version, as far as the replay heard.", info.newest_version),
        ("samples_per_insert", "Items drawn for each step inserted, over all lives.", drawn),
        (
            "samples_per_insert_target",
            "replay.samples_per_insert, which the limiter keeps; 0: no limit.",
            limiter.samples_per_insert,
        ),
    ]
    if info.log_bytes is not None:
        gauges.append(("chunk_log_bytes", "Bytes that the files of the chunk log take.", info.log_bytes))
    return gauges


def _ratio(limiter: RateLimiterState) -> List[Named]:
    if limiter.samples_per_insert == 0.0:
        return []
    text = "Samples that are owed to the inserts so far; negative: samples ran ahead."
    return [("limiter_surplus_samples", text, limiter.balance)]


def _counters(info: TableInfo) -> List[Named]:
    steps, limiter, sampling = info.steps, info.limiter, info.sampling
    return [
        ("acknowledged_steps", "Steps acknowledged to actors.", steps.acknowledged),
        ("overwritten_steps", "Steps whose rows were reused.", steps.overwritten),
        ("reset_steps", "Steps whose rows were found damaged after a crash of the machine.", steps.reset),
        ("quarantined_steps", "Steps of lanes with values that are not finite.", steps.quarantined),
        ("quarantined_lanes", "Lanes of chunks taken out for values that are not finite.", info.quarantined_lanes),
        ("lost_tail_steps", "Steps whose successor nobody saw.", steps.lost_tail),
        ("inserted_items", "Steps that can start an item, as the limiter counts them.", limiter.inserted_items),
        ("inserted_bytes", "Bytes of the columns of applied chunks.", info.inserted_bytes),
        ("sampled_items", "Items drawn.", limiter.sampled_items),
        ("left_sampler_items", "Items that left after max_times_sampled draws.", sampling.exhausted_items),
        ("item_expirations", "Items that became older than staleness.max_lag_updates.", sampling.expired_items),
        ("freshness_rebases", "Times that all leaves were rebased.", sampling.freshness_rebases),
        ("clamped_priorities", "Priorities brought into their range.", info.clamped_priorities),
        ("snapshots", "Snapshots taken.", info.snapshots),
    ]
