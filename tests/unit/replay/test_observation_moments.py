from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from services.common.chunk import VALID, Chunk
from services.replay import observation_moments
from services.replay.items import StepOutcome
from services.replay.table import Table
from tests.table_states import STAGES, Killed, kill_at


def _assert_of(table: Table, rows: Any) -> None:
    (moments,) = table.moments().values()
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.deviation(), rows.std(axis=0), rtol=1e-9)


def _steps(chunks: List[Chunk], without_lanes: Any = ()) -> Any:
    """Observations of the steps, written out step by step."""
    return np.array(
        [
            chunk.observation["policy"][t, lane]
            for chunk in chunks
            for t in range(chunk.num_steps)
            for lane in range(chunk.num_lanes)
            if chunk.flags[t, lane] & VALID and lane not in without_lanes
        ],
        np.float64,
    )


def _resident(table: Table) -> Any:
    ring = table.store.ring
    return ring.observation["policy"][ring.status != StepOutcome.NO_STEP].astype(np.float64)


def test_they_are_kept_only_if_they_are_asked_for(make_table: Any, feed: Any) -> None:
    table = make_table()
    feed(table, 2)
    assert table.moments() == {}


def test_each_valid_step_counts_once(make_table: Any, make_chunk: Any) -> None:
    """Final observations and rows of a reset are no steps, a resend is no second time, and no ring's end is one."""
    table = make_table(with_moments=True, capacity=32)
    (none,) = table.moments().values()
    assert none.count == 0
    chunks = [
        make_chunk(sequence=0, ends=[(1, 0)], resets=[(2, 0)], final=False),
        *(make_chunk(sequence=k, time_outs=[(1, 1)]) for k in range(1, 9)),
    ]
    for chunk in chunks:
        for _ in range(2):
            table.insert("a", 1, chunk, max_wait_s=0.0)
    assert table.store.counters.overwritten > 0
    _assert_of(table, _steps(chunks))


def test_quarantined_lanes_do_not_count(make_table: Any, make_chunk: Any) -> None:
    table = make_table(with_moments=True)
    sick = make_chunk(sequence=0)
    sick.observation["policy"][2, 1, 0] = np.nan
    table.insert("a", 1, sick, max_wait_s=0.0)
    sound = make_chunk(sequence=1)
    table.insert("a", 1, sound, max_wait_s=0.0)
    _assert_of(table, np.concatenate([_steps([sick], without_lanes=[1]), _steps([sound])]))


@pytest.mark.parametrize("block_rows", [3, 1 << 16])
@pytest.mark.parametrize("num_chunks", [2, 7, 20])
def test_after_a_start_they_are_of_what_is_resident(
    block_rows: int, num_chunks: int, make_durable: Any, feed: Any, make_chunk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation_moments, "BLOCK_ROWS", block_rows)
    durable = make_durable(with_moments=True)
    feed(durable.table, num_chunks, time_outs=[(1, 0)], resets=[(2, 0)])
    table = durable.reopen()
    _assert_of(table, _resident(table))
    if num_chunks == 2:  # nothing was overwritten: the same as before
        _assert_of(table, _steps([make_chunk(sequence=k, time_outs=[(1, 0)], resets=[(2, 0)]) for k in range(2)]))
    table.insert("a", 1, make_chunk(sequence=num_chunks), max_wait_s=0.0)
    assert table.moments()["policy"].count > 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_death_at_any_stage_of_an_insert_leaves_those_of_what_is_acknowledged(
    stage: str, make_durable: Any, feed: Any, make_chunk: Any, monkeypatch: Any
) -> None:
    durable = make_durable(with_moments=True)
    feed(durable.table, 3)
    with monkeypatch.context() as patches:
        kill_at(stage, patches)
        with pytest.raises(Killed):
            durable.table.insert("a", 1, make_chunk(sequence=3), max_wait_s=0.0)
    table = durable.reopen()
    is_there = stage in ("record", "commit")
    _assert_of(table, _steps([make_chunk(sequence=k) for k in range(3 + is_there)]))
    table.insert("a", 1, make_chunk(sequence=3), max_wait_s=0.0)  # a resend, or for the first time
    _assert_of(table, _steps([make_chunk(sequence=k) for k in range(4)]))
