"""Items beyond `staleness.max_lag_updates` are not drawn, and everything else goes on."""

from __future__ import annotations

import threading
import time
from typing import Any, List

import numpy as np
import pytest

from services.replay.sampler_settings import SamplerSettings
from services.replay.table import InsertStatus, SampleStatus, Table
from tests.conftest import Eventually
from tests.table_states import LIMITED

BOUND = {"sampling": SamplerSettings(max_lag_updates=100), "n_step": 1}


def _insert(table: Table, make_chunk: Any, sequence: int, version: int, **of_chunk: Any) -> InsertStatus:
    chunk = make_chunk(sequence=sequence, **of_chunk)
    chunk.policy_version[:] = version
    return table.insert("a", 1, chunk, max_wait_s=0.0).status


def _publish(table: Table, version: int, updates: int) -> None:
    table.set_newest(version, updates)
    assert table.check_valid() is None


def _versions(table: Table) -> List[int]:
    result = table.sample(4, 16, max_wait_s=0.0)
    return sorted({int(version) for batch in result.batches for version in batch.policy_version})


@pytest.mark.parametrize("selector", ["prioritized", "uniform", "fifo"])
def test_items_beyond_the_bound_are_not_drawn(selector: str, make_table: Any, make_chunk: Any) -> None:
    most = 100 if selector == "fifo" else 0
    sampling = SamplerSettings(selector=selector, max_lag_updates=100, max_times_sampled=most)
    table = make_table(n_step=1, sampling=sampling)
    for version in (1, 2, 3):
        _publish(table, version, 50 * version)
        _insert(table, make_chunk, version - 1, version)
    assert 1 in _versions(table)  # 100 behind
    _publish(table, 3, 151)
    assert _versions(table) == [2, 3]
    info = table.info()
    assert (info.sampling.num_expired, info.sampling.expired_items, info.num_items) == (8, 8, 14)
    assert info.steps.resident == 24
    _publish(table, 3, 201)
    assert _versions(table) == [3]


def test_an_expired_item_stays_so_whatever_priority_comes_back(make_table: Any, make_chunk: Any) -> None:
    table = make_table(**BOUND)
    _publish(table, 1, 0)
    _insert(table, make_chunk, 0, 1)
    _publish(table, 2, 150)
    _insert(table, make_chunk, 1, 2)
    assert table.update_priorities(np.arange(8), np.full(8, 1e6)).applied == 8
    assert table.check_valid() is None
    assert _versions(table) == [2]


def test_steps_that_come_too_late_never_become_drawable(make_table: Any, make_chunk: Any) -> None:
    table = make_table(**BOUND)
    _publish(table, 1, 0)
    _publish(table, 2, 150)
    assert _insert(table, make_chunk, 0, 1) is InsertStatus.APPLIED
    assert table.check_valid() is None
    assert table.info().sampling.num_expired == 6  # the last step of each lane has an open window
    assert table.sample(1, 4, max_wait_s=0.0).status is SampleStatus.WAITING


def test_items_that_were_drawn_up_and_expire_are_counted_once(make_table: Any, make_chunk: Any) -> None:
    sampling = SamplerSettings(max_lag_updates=100, max_times_sampled=16)
    table = make_table(n_step=1, sampling=sampling)
    _publish(table, 1, 0)
    _insert(table, make_chunk, 0, 1)
    while table.sample(1, 16, max_wait_s=0.0).batches:
        assert table.check_valid() is None
    assert table.info().sampling.num_exhausted > 0
    _publish(table, 2, 150)
    assert (table.info().sampling.num_exhausted, table.info().num_items) == (0, 0)
    for sequence in range(1, 12):  # until those rows are overwritten
        _insert(table, make_chunk, sequence, 2)
        assert table.check_valid() is None
    assert table.info().sampling.num_expired == 0


def test_where_all_is_too_old_samples_wait_with_the_reason_and_inserts_go(
    make_table: Any, make_chunk: Any, eventually: Eventually
) -> None:
    table = make_table(**{**LIMITED, **BOUND, "error_buffer": 128.0})
    _publish(table, 1, 0)
    sequence = 0
    while _insert(table, make_chunk, sequence, 1) is InsertStatus.APPLIED:
        sequence += 1
    assert table.sample(1, 16, max_wait_s=0.0).batches
    while _insert(table, make_chunk, sequence, 1) is InsertStatus.APPLIED:
        sequence += 1
    waiting: List[Any] = []
    chunk = make_chunk(sequence=sequence)
    chunk.policy_version[:] = 2
    insert = threading.Thread(target=lambda: waiting.append(table.insert("a", 1, chunk, max_wait_s=60.0).status))
    table._waiting._clock = time.monotonic
    insert.start()
    eventually(lambda: table.info().limiter.insert_blocked)
    _publish(table, 2, 150)
    insert.join(10)  # nobody samples: it is the version that lets it go
    assert waiting == [InsertStatus.APPLIED]
    _publish(table, 3, 300)
    result = table.sample(1, 16, max_wait_s=0.0)
    assert result.status is SampleStatus.WAITING
    assert "older than staleness.max_lag_updates allows: actors must insert steps of newer versions" in result.reason
    assert result.reason in table.info().limiter.explanation
    assert _insert(table, make_chunk, sequence + 1, 3) is InsertStatus.APPLIED
    assert _versions(table) == [3]


def test_the_bound_holds_when_the_replay_comes_back(make_durable: Any, make_chunk: Any) -> None:
    durable = make_durable(n_step=1, sampling=SamplerSettings(max_lag_updates=100))
    for version in (1, 2, 3):
        _publish(durable.table, version, 60 * version)
        _insert(durable.table, make_chunk, version - 1, version)
    table = durable.reopen()  # which asks nobody for the updates
    assert table.info().sampling.num_expired == 8
    versions = {int(v) for batch in table.sample(4, 8, max_wait_s=0.0).batches for v in batch.policy_version}
    assert versions == {2, 3}


def test_the_bound_holds_when_a_crash_took_updates_from_the_chief(make_table: Any, make_chunk: Any) -> None:
    table = make_table(**BOUND)
    _publish(table, 1, 100)
    _insert(table, make_chunk, 0, 1)
    _publish(table, 2, 190)  # of the next life no checkpoint knows
    _insert(table, make_chunk, 1, 2)
    _publish(table, 1001, 110)
    assert _versions(table) == [1, 2]
    _publish(table, 1002, 215)
    assert table.info().sampling.num_expired == 14  # what the lost version did counts as the checkpoint's
    assert table.sample(1, 4, max_wait_s=0.0).status is SampleStatus.WAITING
