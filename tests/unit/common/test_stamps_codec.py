from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np
import pytest

from services.common.batch import Stamps
from services.common.schema import SchemaError
from services.common.stamps_codec import PackedStamps, StampSource, last_bits

NAMES = ("a", "b")


def stamps_of(n: int, **changes: Any) -> Stamps:
    facts = {
        "actor_index": np.arange(n, dtype=np.uint32) % 2,
        "actor_names": NAMES,
        "known_version": np.arange(n, dtype=np.int64) + 2**40,
        "arrival_version": np.arange(n, dtype=np.int64) + 2**40 + 1,
        "sampling_version": 2**40 + 1000,
        "acting_s": np.linspace(0, 1, n, dtype=np.float32),
        "transit_s": np.linspace(0, 2, n, dtype=np.float32),
        "ring_s": np.linspace(0, 3, n, dtype=np.float32),
    }
    return Stamps(**{**facts, **changes})


def _same(one: Stamps, other: Stamps) -> None:
    for field in dataclasses.fields(Stamps):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), err_msg=field.name)


def packed(stamps: Stamps) -> PackedStamps:
    return PackedStamps(
        source=StampSource(stamps.sampling_version, stamps.actor_names),
        actor_index=stamps.actor_index,
        known_version=np.array([last_bits(v) for v in stamps.known_version.tolist()], np.uint32),
        arrival_version=np.array([last_bits(v) for v in stamps.arrival_version.tolist()], np.uint32),
        acting_seconds=stamps.acting_s,
        transit_seconds=stamps.transit_s,
        age_seconds=stamps.ring_s,
    )


def assert_same_stamps(one: Optional[Stamps], other: Optional[Stamps]) -> None:
    for field in dataclasses.fields(Stamps):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), err_msg=field.name)


@pytest.mark.parametrize("newest", [5, 2**31, 2**32 + 3, 2**40 + 1000])
def test_versions_are_told_by_their_last_bits_and_those_ahead_count_as_newest(newest: int) -> None:
    versions = [newest, newest + 7, newest - 5, max(0, newest - 2**31 + 1)]
    stamps = stamps_of(
        4, known_version=np.array(versions), arrival_version=np.array(versions[::-1]), sampling_version=newest
    )
    found = packed(stamps).unpack()
    want = [newest, newest, newest - 5, max(0, newest - 2**31 + 1)]
    assert found.known_version.tolist() == want
    assert found.arrival_version.tolist() == want[::-1]


def test_an_actor_without_a_name_is_refused() -> None:
    with pytest.raises(SchemaError, match="of actor 1, but only 1 were named"):
        packed(stamps_of(4, actor_names=("a",))).unpack()
    assert len(packed(stamps_of(0, actor_names=())).unpack().actor_index) == 0


def test_stamps_of_some_items_are_theirs() -> None:
    assert stamps_of(7).at(np.array([6, 0])).ring_s.tolist() == [3.0, 0.0]
    assert stamps_of(7).at(slice(2, 4)).actor_index.tolist() == [0, 1]
