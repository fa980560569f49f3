from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.batch import Stamps
from services.replay.chunk_stamps import ChunkStamp, ChunkStamps

NAMES = ("a", "b")


def _stamp(first_key: int, **changes: Any) -> ChunkStamp:
    facts: Dict[str, Any] = {
        "known_version": 5,
        "arrival_version": 6,
        "inserted_s": 10.0,
        "acting_s": 2.0,
        "transit_s": 0.25,
        "actor": 1,
        "num_lanes": 3,
        "num_steps": 4,
        "num_final": 0,
    }
    return ChunkStamp(first_key=first_key, **{**facts, **changes})


def _look_up(stamps: ChunkStamps, keys: List[int], now_s: float = 12.0) -> Stamps:
    return stamps.look_up(np.array(keys, np.int64), now_s, 1000, NAMES).resolve()


def test_each_row_has_the_stamp_of_its_chunk_and_its_own_share_of_acting() -> None:
    stamps = ChunkStamps(64)
    stamps.add(_stamp(0, num_final=2))
    stamps.add(_stamp(14, actor=0, known_version=7, arrival_version=8, inserted_s=11.0, transit_s=0.5))
    found = _look_up(stamps, [0, 2, 3, 11, 14])
    assert found.actor_index.tolist() == [1, 1, 1, 1, 0]
    assert found.known_version.tolist() == [5, 5, 5, 5, 7]
    assert found.arrival_version.tolist() == [6, 6, 6, 6, 8]
    assert found.acting_s.tolist() == [2.0, 2.0, 1.5, 0.5, 2.0]  # four steps of three lanes
    assert found.transit_s.tolist() == [0.25, 0.25, 0.25, 0.25, 0.5]
    assert found.ring_s.tolist() == [2.0, 2.0, 2.0, 2.0, 1.0]
    assert (found.sampling_version, found.actor_names) == (1000, NAMES)


@pytest.mark.parametrize("nonsense", [float("nan"), -1.0, float("-inf")])
def test_seconds_that_make_no_sense_are_none(nonsense: float) -> None:
    stamps = ChunkStamps(64)
    stamps.add(_stamp(0, acting_s=nonsense, transit_s=nonsense))
    found = _look_up(stamps, [0])
    assert (found.acting_s.tolist(), found.transit_s.tolist()) == ([0.0], [0.0])


@settings(deadline=None)
@given(num_lanes=st.integers(1, 5000), num_steps=st.integers(1, 300), key=st.integers(0, 10**6))
def test_rounding_moves_no_row_to_another_step(num_lanes: int, num_steps: int, key: int) -> None:
    stamps = ChunkStamps(num_lanes * num_steps)
    stamps.add(_stamp(0, num_lanes=num_lanes, num_steps=num_steps, acting_s=float(num_steps)))
    at = key % (num_lanes * num_steps)
    assert _look_up(stamps, [at]).acting_s.tolist() == [num_steps - at // num_lanes]


CHUNKS = st.lists(
    st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=150
)


@settings(deadline=None)
@given(chunks=CHUNKS, capacity=st.integers(430, 1500))
def test_every_resident_row_finds_its_chunk(chunks: List[Tuple[int, int, int, int]], capacity: int) -> None:
    stamps = ChunkStamps(capacity)
    owner: Dict[int, int] = {}
    end = 0
    for number, (num_steps, num_lanes, num_final, hole) in enumerate(chunks):
        stamp = _stamp(end + hole, num_steps=num_steps, num_lanes=num_lanes, num_final=num_final, known_version=number)
        stamps.add(stamp)
        end = stamp.end_key
        owner.update(dict.fromkeys(range(stamp.first_key, stamp.first_key + num_steps * num_lanes), number))
        assert stamps.check_valid() is None
    keys = [key for key in owner if key >= end - capacity]
    assert _look_up(stamps, keys).known_version.tolist() == [owner[key] for key in keys]


def test_what_was_found_holds_when_chunks_come_before_it_is_looked_at() -> None:
    stamps = ChunkStamps(200)
    for first_key in range(0, 192, 12):
        stamps.add(_stamp(first_key, known_version=first_key))
    found = stamps.look_up(np.array([191], np.int64), 12.0, 1000, NAMES)
    for first_key in range(192, 3000, 12):
        stamps.add(_stamp(first_key, known_version=-1))
    assert found.resolve().known_version.tolist() == [180]


def test_few_chunks_take_little_memory_however_many_there_were() -> None:
    stamps = ChunkStamps(120)
    for first_key in range(0, 12 * 5000, 12):
        stamps.add(_stamp(first_key))
    assert len(stamps) <= 64


@settings(deadline=None)
@given(
    versions=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=30),
    thresholds=st.lists(st.integers(0, 11), max_size=4),
)
def test_steps_older_than_a_version_are_named_when_it_is_reached(
    versions: List[List[int]], thresholds: List[int]
) -> None:
    capacity = 60
    stamps, column = ChunkStamps(capacity), np.zeros(capacity, np.int64)
    end = 0
    for of_chunk in versions:
        stamp = _stamp(end, num_lanes=2, num_steps=len(of_chunk))
        column[np.arange(end, stamp.end_key) % capacity] = np.repeat(of_chunk, 2)
        end = stamp.end_key
        stamps.add(stamp, min(of_chunk))
    oldest = max(0, end - capacity)
    resident = np.arange(oldest, end)
    before = 0
    for version in sorted(thresholds):
        found = stamps.take_older(version, column, oldest)
        named, held = set(found.tolist()), column[resident % capacity]
        assert len(named) == len(found)
        assert set(resident[(held >= before) & (held < version)].tolist()) <= named
        assert named <= set(resident[held < version].tolist())
        before = version
    stamps.recount(column, oldest)
    again = stamps.take_older(12, column, oldest)
    assert sorted(again.tolist()) == resident.tolist()
