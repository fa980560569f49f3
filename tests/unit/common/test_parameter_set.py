from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from services.common.errors import UserError
from services.common.parameter_set import ParameterShapes, decode_set, digest_of, encode_set

DTYPES: Any = ["float32", "float16", "bfloat16"]
arrays = hypothesis_numpy.arrays(
    np.float32,
    hypothesis_numpy.array_shapes(max_dims=3, max_side=5),
    elements=st.floats(-60000, 60000, width=32),
)


def _nearest_bfloat16(value: float) -> float:
    """By definition and not by bits: the nearer of the two neighbours, of two as near the even one."""
    bits = int(np.float32(value).view(np.uint32)) & 0xFFFF0000
    low, high = (np.array([b], np.uint32).view(np.float32)[0].astype(np.float64) for b in (bits, bits + 0x10000))
    below, above = abs(value - low), abs(high - value)
    if below != above:
        return float(low if below < above else high)
    return float(low if (bits >> 16) % 2 == 0 else high)


@given(arrays)
def test_float32_comes_back_bit_for_bit(array: Any) -> None:
    decoded = decode_set(encode_set({"policy.0.weight": array}))
    assert list(decoded) == ["policy.0.weight"]
    assert decoded["policy.0.weight"].tobytes() == array.tobytes()
    assert decoded["policy.0.weight"].shape == array.shape


@given(arrays)
def test_float16_is_rounded_to_nearest(array: Any) -> None:
    decoded = decode_set(encode_set({"w": array}, "float16"))["w"]
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, array.astype(np.float16).astype(np.float32))


@given(st.lists(st.floats(-(2.0**126), 2.0**126, width=32), min_size=1))
def test_bfloat16_is_rounded_to_nearest_and_ties_to_even(values: Any) -> None:
    decoded = decode_set(encode_set({"w": np.array(values, np.float32)}, "bfloat16"))["w"]
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, np.array([_nearest_bfloat16(value) for value in values], np.float32))


@pytest.mark.parametrize("wire_dtype", DTYPES)
def test_statistics_of_observations_are_never_rounded(wire_dtype: Any) -> None:
    exact = np.array([1 / 3, 1e-3, 1e30], np.float32)
    decoded = decode_set(encode_set({"normalizer.policy.std": exact, "w": exact[:2]}, wire_dtype))
    assert decoded["normalizer.policy.std"].tobytes() == exact.tobytes()
    assert (decoded["w"].tobytes() == exact[:2].tobytes()) == (wire_dtype == "float32")


def test_bfloat16_rounds_ties_to_even_and_keeps_what_is_no_number() -> None:
    one_and = [1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8), 1 + 2.0**-8 + 2.0**-20]
    odd = np.array([*one_and, np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45], np.float32)
    decoded = decode_set(encode_set({"w": odd}, "bfloat16"))["w"]
    np.testing.assert_array_equal(
        decoded, [1.0, 1 + 2.0**-6, -1.0, 1 + 2.0**-7, np.inf, -np.inf, np.nan, 0.0, -0.0, 0.0]
    )
    assert np.signbit(decoded[8])
    # A NaN whose mark lies in the lower half alone must not become an infinity.
    low_nan = np.array([0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    assert np.isnan(decode_set(encode_set({"w": low_nan}, "bfloat16"))["w"]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_float32_travels_as_it_is(dtype: Any) -> None:
    given = {
        "updates": np.array(7, np.int64),
        "generator": np.arange(5, dtype=np.uint8),
        "halves": np.arange(3, dtype=np.uint16),
        "mean": np.array([1 / 3]),
        "view": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "empty": np.zeros((0, 3), np.float32),
    }
    decoded = decode_set(encode_set(given, dtype))
    assert set(decoded) == set(given)
    for name, array in given.items():
        assert decoded[name].dtype == array.dtype
        np.testing.assert_array_equal(decoded[name], array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nobody_can_write_into_what_was_read(dtype: Any) -> None:
    decoded = decode_set(encode_set({"w": np.zeros(3, np.float32), "n": np.zeros(1, np.int64)}, dtype))
    for array in decoded.values():
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_half_the_bytes() -> None:
    parameters = {"w": np.ones((100, 100), np.float32)}
    sizes = {dtype: len(encode_set(parameters, dtype)) for dtype in DTYPES}
    assert sizes["float16"] < 0.51 * sizes["float32"]
    assert sizes["bfloat16"] < 0.51 * sizes["float32"]


@pytest.mark.parametrize(
    ("dtype", "fits", "too_large", "other"),
    [
        ("float16", 65519.996, 65520.0, "bfloat16"),
        ("bfloat16", 3.3961774e38, 3.3961776e38, "float32"),
    ],
)
def test_a_value_that_would_become_infinite_is_refused(dtype: Any, fits: float, too_large: float, other: str) -> None:
    good = {"critics.1.bias": np.array([-fits, np.inf, np.nan], np.float32)}
    assert np.isfinite(decode_set(encode_set(good, dtype))["critics.1.bias"][0])
    bad = {"policy.0.bias": np.zeros(2, np.float32), "critics.1.bias": np.array([0, -too_large], np.float32)}
    with pytest.raises(UserError, match=rf"'critics.1.bias' .* {dtype} .* set learner.wire_dtype to {other}"):
        encode_set(bad, dtype)


def test_the_digest_is_over_what_travels() -> None:
    parameters = {"w": np.full(3, 1 / 3, np.float32)}
    digests = {digest_of(encode_set(parameters, dtype)) for dtype in DTYPES}
    assert len(digests) == 3
    assert digest_of(encode_set(parameters)) == digest_of(safetensors.numpy.save(parameters))


def test_what_is_no_set_is_told() -> None:
    with pytest.raises(ValueError, match="no safetensors file"):
        decode_set(b"rubbish")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({}, ""),
        ({"normalizer.policy.mean": (4,)}, ""),
        ({"policy.0.weight": (4, 9)}, "'policy.0.weight' is (4, 9) there, and (4, 8) here"),
        ({"policy.0.weight": (4, 8, 1)}, "'policy.0.weight' is (4, 8, 1) there, and (4, 8) here"),
        ({"policy.0.weight": None, "policy.0.bias": (9,)}, "'policy.0.weight' is (4, 8) here, and missing there"),
        ({"policy.1.weight": (8, 8)}, "'policy.1.weight' is (8, 8) there, and missing here"),
        ({"normalizer.policy.mean": (3,)}, "'normalizer.policy.mean' is (3,) there, and (4,) here"),
        ({"normalizer.states.mean": (4,)}, "'normalizer.states.mean' is (4,) there, and missing here"),
    ],
)
def test_a_set_for_another_network_is_told_by_its_first_difference(change: Any, difference: str) -> None:
    shapes = ParameterShapes({"policy.0.weight": (4, 8), "policy.0.bias": (8,)}, {"normalizer.policy.mean": (4,)})
    theirs = {"policy.0.bias": (8,), "policy.0.weight": (4, 8), **change}
    parameters = {name: np.zeros(shape, np.float32) for name, shape in theirs.items() if shape is not None}
    assert shapes.difference(parameters) == difference
