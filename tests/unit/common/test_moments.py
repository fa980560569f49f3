from __future__ import annotations

from functools import reduce
from typing import Any, List

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.moments import Moments, merge_shards, normalized_tensors
from services.common.schema import ActionSpec, Schema, TensorSpec


def _rows(seed: int, count: int, offset: float = 0.0) -> Any:
    return np.random.default_rng(seed).normal(offset, 3.0, (count, 2, 2)).astype(np.float32)


def _assert_of(moments: Moments, rows: Any) -> None:
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, flat.mean(axis=0), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(moments.deviation(), flat.std(axis=0), rtol=1e-9)


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12), offset=st.sampled_from([0.0, -7.0, 1e5]))
def test_chunk_by_chunk_they_are_those_of_all_rows(sizes: List[int], offset: float) -> None:
    chunks = [_rows(seed, size, offset) for seed, size in enumerate(sizes)]
    together = reduce(Moments.merged, map(Moments.of, chunks), Moments.none(4))
    rows = np.concatenate(chunks)
    if len(rows):
        _assert_of(together, rows)
    else:
        assert together.count == 0
        assert together.deviation().tolist() == [0] * 4


@given(cut=st.integers(0, 30))
def test_the_order_of_merging_does_not_matter(cut: int) -> None:
    rows = _rows(0, 30, 1e4)
    one, other = Moments.of(rows[:cut]), Moments.of(rows[cut:])
    _assert_of(one.merged(other), rows)
    _assert_of(other.merged(one), rows)


def test_a_large_mean_does_not_drown_a_small_deviation() -> None:
    """Sums of squares would: 1e8^2 + 1 is 1e8^2 in double precision to eight digits."""
    rows = 1e8 + np.random.default_rng(0).normal(0, 1.0, (5000, 1))
    parts = [Moments.of(part) for part in np.split(rows, 50)]
    np.testing.assert_allclose(reduce(Moments.merged, parts).deviation(), rows.std(axis=0), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "int8", "int64", "float64"])
def test_any_dtype_is_summed_in_double_precision(dtype: str) -> None:
    rows = np.random.default_rng(0).integers(-100, 100, (3000, 2)).astype(dtype)
    _assert_of(Moments.of(rows), rows)


def test_shards_are_merged_by_tensor() -> None:
    rows = [_rows(seed, 10 + seed) for seed in range(3)]
    merged = merge_shards(
        [{"a": Moments.of(part), **({"b": Moments.of(part)} if k else {})} for k, part in enumerate(rows)]
    )
    _assert_of(merged["a"], np.concatenate(rows))
    _assert_of(merged["b"], np.concatenate(rows[1:]))
    assert merge_shards([]) == {}


def test_images_and_flags_have_none() -> None:
    specs = [TensorSpec(f"x{k}", dtype, (2,)) for k, dtype in enumerate(("uint8", "bool", "float32", "int32"))]
    assert normalized_tensors(Schema(tuple(specs), ActionSpec(num_actions=2))) == ("x2", "x3")
