from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import numpy as np

from services.common.metrics import Metrics
from services.replay.metrics import TableCollector
from services.replay.quarantine_dump import QuarantineDump
from services.replay.sampler_settings import SamplerSettings
from services.replay.table import Table, TableSettings
from tests.unit.replay.conftest import SCHEMA


def _values(metrics: Metrics) -> Dict[str, float]:
    values = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            labels = ",".join(value for name, value in sorted(sample.labels.items()) if name != "run")
            values[f"{sample.name}{{{labels}}}"] = sample.value
    return values


def test_counts_come_by_reason(make_table: Any, make_chunk: Any, feed: Any, tmp_path: Path) -> None:
    table = make_table(sampling=SamplerSettings(selector="fifo", max_times_sampled=1), max_num_batches=1)
    feed(table, 3)
    table.sample(1, 10, max_wait_s=0.0)
    table.update_priorities(np.array([0, 1, 99]), np.array([np.nan, 2.0, 2.0]))
    table.insert("a", 1, make_chunk(T=33, B=2, sequence=3), max_wait_s=0.0)
    sick = make_chunk(sequence=3)
    sick.reward[0, 0] = np.inf
    dump = QuarantineDump(tmp_path, max_files=1, max_bytes=1 << 20, log=_Silent())
    for lane in table.insert("a", 1, sick, max_wait_s=0.0).sick_lanes:
        dump.write(lane)
    metrics = Metrics("replay", "run")
    metrics.registry.register(TableCollector("run", lambda: table, dump))
    values = _values(metrics)
    expected = {
        "shoal_replay_priority_updates_total{applied}": 1,
        "shoal_replay_priority_updates_total{stale}": 1,
        "shoal_replay_priority_updates_total{rejected}": 1,
        "shoal_replay_refused_chunks_total{too_large}": 1,
        "shoal_replay_quarantine_dumps_total{written}": 1,
        "shoal_replay_quarantine_dumps_total{failed}": 0,
        "shoal_replay_quarantined_steps_total{}": 4,
        "shoal_replay_exhausted_items{}": 10,
        "shoal_replay_left_sampler_items_total{}": 10,
        "shoal_replay_items{}": table.store.num_items,
    }
    assert {name: values[name] for name in expected} == expected


def test_nothing_before_an_actor_has_come() -> None:
    metrics = Metrics("replay", "run")
    metrics.registry.register(TableCollector("run", lambda: None))
    assert not any("acknowledged" in name for name in _values(metrics))


class _Silent:
    def info(self, event: str, **values: Any) -> None: ...

    debug = warning = error = info


def _served(table: Any) -> Dict[str, float]:
    metrics = Metrics("replay", "run")
    metrics.registry.register(TableCollector("run", lambda: table))
    return {name[len("shoal_replay_") :]: value for name, value in _values(metrics).items()}


def test_the_limiter_is_shown_beside_its_bounds(make_table: Any, feed: Any) -> None:
    table = make_table(
        samples_per_insert=2.0, error_buffer=64.0, max_chunk_steps=8, min_size_to_sample=1, max_num_batches=1
    )
    feed(table, 2)
    table.sample(1, 10, max_wait_s=0.0)
    values = _served(table)
    assert values["limiter_surplus_samples{}"] == table.info().limiter.balance != 0
    assert (values["limiter_bound_samples{insert}"], values["limiter_bound_samples{sample}"]) == (64, -64)
    assert values["samples_per_insert{}"] == 10 / 16
    assert values["samples_per_insert_target{}"] == 2


def test_without_a_limit_there_is_no_surplus(make_table: Any, feed: Any) -> None:
    table = make_table()
    feed(table, 2)
    values = _served(table)
    assert values["samples_per_insert_target{}"] == 0
    assert not [name for name in values if name.startswith("limiter_")]


def test_only_actors_that_are_heard_of_live(make_table: Any, feed: Any, clock: Any) -> None:
    table = make_table(max_actor_silence_s=30.0)
    feed(table, 1, actor="a")
    clock.now_s += 31
    feed(table, 1, actor="b")
    values = _served(table)
    assert values["living_actors{}"] == 1
    assert (values["actor_silent_seconds{a}"], values["actor_silent_seconds{b}"]) == (31, 0)
    assert values["actor_acknowledged_steps_total{a}"] == 8


def test_a_count_that_does_not_add_up_is_seen(make_table: Any, feed: Any) -> None:
    table = make_table()
    feed(table, 2)
    assert _served(table)["conservation_error_steps{}"] == 0
    table.store.counters.resident -= 3
    assert _served(table)["conservation_error_steps{}"] == 3


def test_a_ring_that_lasts_shows_its_log_and_its_snapshots(make_durable: Any, feed: Any, tmp_path: Path) -> None:
    durable = make_durable()
    feed(durable.table, 2)
    values = _served(durable.table)
    assert values["chunk_log_bytes{}"] == sum(file.stat().st_size for file in (durable.path / "chunks").iterdir())
    assert values["snapshots_total{}"] == 0
    durable.table.snapshot(tmp_path / "copy")
    assert _served(durable.table)["snapshots_total{}"] == 1
    assert "chunk_log_bytes{}" not in _served(_in_memory(feed))


def _in_memory(feed: Any) -> Table:
    table = Table(TableSettings(capacity=64, max_batch_size=16), SCHEMA, clock=lambda: 0.0)
    feed(table, 1)
    return table
