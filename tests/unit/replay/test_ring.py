from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.schema import ActionSpec, Schema, TensorSpec
from services.replay.ring import Ring

SCHEMA = Schema(
    (TensorSpec("policy", "float32", (2,)), TensorSpec("camera", "uint8", (2, 2))), ActionSpec((-1.0,), (1.0,))
)


@given(st.integers(1, 11), st.lists(st.integers(0, 11), max_size=12))
def test_rows_lie_where_their_keys_say(capacity: int, sizes: List[int]) -> None:
    ring = Ring(capacity, SCHEMA)
    for size in (min(size, capacity) for size in sizes):
        first = ring.reserve(size)
        assert (ring.check_valid() is None) == (size == 0)
        keys = np.arange(first, first + size)
        ring.write(first, {"reward": keys.astype(np.float32), "observation.policy": np.stack([keys, -keys], 1)})
        ring.commit()
        assert ring.check_valid() is None
    resident = np.arange(ring.oldest_key, ring.reserved)
    assert ring.num_rows == len(resident) == min(capacity, ring.reserved)
    assert ring.keys(ring.slots(resident)).tolist() == resident.tolist()
    assert ring.reward[ring.slots(resident)].tolist() == resident.tolist()
    assert ring.observation["policy"][ring.slots(resident), 1].tolist() == (-resident).tolist()
    around = np.arange(ring.oldest_key - 2, ring.reserved + 2)
    assert ring.is_resident(around).tolist() == [False] * 2 + [True] * len(resident) + [False] * 2
    unused = np.setdiff1d(np.arange(capacity), ring.slots(resident))
    assert (ring.keys(unused) < 0).all()


def test_columns_follow_the_schema() -> None:
    names: List[str] = []

    def allocate(name: str, shape: Tuple[int, ...], dtype: Any) -> Any:
        names.append(name)
        return np.zeros(shape, dtype)

    ring = Ring(6, SCHEMA, allocate)
    assert names[:3] == ["observation.camera", "observation.policy", "action"]
    assert ring.observation["camera"].shape == (6, 2, 2)
    assert ring.observation["camera"].dtype == np.uint8
    assert ring.action.shape == (6, 1)


def test_more_rows_than_the_ring_has_are_refused() -> None:
    with pytest.raises(ValueError, match="7 rows do not fit into a ring of 6"):
        Ring(6, SCHEMA).reserve(7)
    with pytest.raises(ValueError, match="capacity is 0 rows"):
        Ring(0, SCHEMA)
