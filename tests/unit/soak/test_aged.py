from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.replay.ring_folder import RingFolder
from services.replay.table import Table, TableSettings
from shoal.v1 import replay_pb2
from tests.fakes import FakeClock, make_chunk
from tests.soak.aged import BOUNDS, DISCOUNT, Age, age_before, differences, make_ring
from tests.soak.traffic import CHUNK_LANES, CHUNK_ROWS, CHUNK_STEPS, SCHEMA

CAPACITY = 1024
CHUNKS = 200


@pytest.mark.parametrize("name", BOUNDS)
def test_a_replay_finds_the_ring_and_goes_on_beyond_the_bound(name: str, tmp_path: Path, clock: FakeClock) -> None:
    age = age_before(name, CAPACITY)
    make_ring(tmp_path, CAPACITY, age)
    (path,) = tmp_path.iterdir()
    folder = RingFolder.open(path, "test")
    table = Table(TableSettings(capacity=CAPACITY, n_step=3, discount=DISCOUNT), SCHEMA, clock=clock, folder=folder)
    try:
        assert table.newest_version == 1 + age.first
        for number in range(CHUNKS):
            chunk = make_chunk(
                CHUNK_STEPS, CHUNK_LANES, schema=SCHEMA, version=1 + age.first,
                sequence=age.first + number, first_step=age.first + number * CHUNK_STEPS,
            )  # fmt: skip
            assert table.insert("a", 1, chunk, max_wait_s=0.0).status == 1
            table.set_newest(1 + age.first + number // 20, age.first + number)
        assert table.check_valid() is None
        assert table.store.counters.acknowledged == age.first_key + CHUNKS * CHUNK_ROWS > age.bound
        keys = table.sample(1, 64, max_wait_s=0.0).drawn.keys
        assert keys.max() < age.first_key + CHUNKS * CHUNK_ROWS
        assert keys.min() >= age.first_key + CHUNKS * CHUNK_ROWS - CAPACITY
    finally:
        folder.close()


AGE = Age("2^32", 2**32, 2**32 - 7, 2**32 - 20 * CAPACITY)
NEWEST = AGE.first_key + CHUNKS * CHUNK_ROWS
DRAWN = 1280
KEYS = np.arange(NEWEST - CAPACITY, NEWEST)


def _info(**changes: int) -> Any:
    """What a sound replay tells, but for the changes."""
    values = {
        "acknowledged": NEWEST,
        "resident": CAPACITY,
        "overwritten": NEWEST - CAPACITY,
        "lost_tail": 0,
        "inserted_items": NEWEST,
        "sampled_items": AGE.first_key + DRAWN,
        "newest_version": 2**32 + 3,
        **changes,
    }
    steps = {name: values.pop(name) for name in ("acknowledged", "resident", "overwritten", "lost_tail")}
    limiter = {name: values.pop(name) for name in ("inserted_items", "sampled_items")}
    return replay_pb2.GetReplayInfoResponse(
        capacity_rows=CAPACITY,
        steps=replay_pb2.StepCounters(**steps),
        limiter=replay_pb2.RateLimiterState(**limiter),
        **values,
    )


def test_a_sound_replay_has_no_differences() -> None:
    assert differences(AGE, _info(), CHUNKS, DRAWN, KEYS) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"acknowledged": NEWEST - 2**32}, "steps acknowledged"),
        ({"overwritten": NEWEST}, "steps accounted for"),
        ({"overwritten": NEWEST - CAPACITY - 1, "lost_tail": 1}, "steps lost, damaged or quarantined: 1, and not 0"),
        ({"inserted_items": NEWEST + 1}, "steps the limiter let in"),
        ({"sampled_items": AGE.first_key}, "items drawn"),
        ({"newest_version": 2**32 - 7}, "was not passed"),
    ],
)
def test_what_is_counted_wrongly_is_named(changes: Any, fault: str) -> None:
    assert any(fault in found for found in differences(AGE, _info(**changes), CHUNKS, DRAWN, KEYS))


@pytest.mark.parametrize("keys", [KEYS - 2**32, KEYS + 1, KEYS - 1, KEYS[:0]])
def test_keys_of_other_rows_are_named(keys: Any) -> None:
    (fault,) = differences(AGE, _info(), CHUNKS, DRAWN, keys)
    assert "keys drawn are not among the last" in fault


def test_a_soak_that_is_too_short_to_pass_the_bound_is_named() -> None:
    few = 10
    newest = AGE.first_key + few * CHUNK_ROWS
    info = _info(acknowledged=newest, overwritten=newest - CAPACITY, inserted_items=newest)
    (fault,) = differences(AGE, info, few, DRAWN, KEYS - KEYS.max() - 1 + newest)
    assert "was not passed" in fault
