from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import numpy as np

from services.common.metrics import Metrics
from services.replay.metrics import TableCollector
from services.replay.quarantine_dump import QuarantineDump
from services.replay.sampler import SamplerSettings


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
