from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from services.learner.gradients.codec import (
    LARGEST_CODE,
    LARGEST_VALUE,
    MAX_EXPONENT,
    MIN_EXPONENT,
    block_scales,
    dequantize,
    quantize,
    scale_exponents,
    subtract_decoded,
)
from tests.unit.learner.gradients.arrays import patient

BLOCK = 8
FINITE = st.floats(-LARGEST_VALUE, LARGEST_VALUE, width=32)


def roundtrip(values: np.ndarray) -> tuple:
    """Codes, h, e, s, what is decoded and what is left over of blocks <float32>[blocks, BLOCK]."""
    absmax = np.abs(values).max(axis=1)
    exponents = np.full(len(values), scale_exponents(np.array([absmax.max() / float(LARGEST_CODE)]))[0], np.int32)
    halves, scales, reciprocals = block_scales(absmax, exponents)
    codes, scratch, rest = np.empty(values.shape, np.int8), np.empty_like(values), values.copy()
    quantize(rest, reciprocals, scratch, codes)
    subtract_decoded(rest, scales, scratch)
    out = np.empty(values.size, np.float32)
    dequantize(codes.reshape(-1), scales, BLOCK, out)
    return codes, halves, exponents, scales, out.reshape(values.shape), rest


@patient
@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.just(BLOCK)), elements=FINITE))
def test_an_error_is_half_a_step_at_most_and_what_is_left_is_it_exactly(values: np.ndarray) -> None:
    codes, halves, exponents, scales, out, rest = roundtrip(values)
    exact = values.astype(np.float64) - out.astype(np.float64)
    # 127 x 2^-22 of a step: the reciprocal is rounded, and so is its product with a value.
    assert (np.abs(exact) <= scales[:, None].astype(np.float64) * (0.5 + 127 * 2.0**-22)).all()
    np.testing.assert_array_equal(rest.astype(np.float64), exact)
    assert (np.abs(codes.astype(int)) <= LARGEST_CODE).all()
    np.testing.assert_array_equal(scales.astype(np.float64), halves.astype(np.float64) * 2.0 ** exponents.astype(float))


@patient
@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.just(BLOCK)), elements=FINITE))
def test_every_scale_is_representable_and_no_smaller_than_it_must_be(values: np.ndarray) -> None:
    _, halves, exponents, scales, _, _ = roundtrip(values)
    absmax = np.abs(values).max(axis=1).astype(np.float64)
    assert np.isfinite(halves).all()
    assert ((exponents >= MIN_EXPONENT) & (exponents <= MAX_EXPONENT)).all()
    assert (scales.astype(np.float64) * LARGEST_CODE >= absmax).all()
    np.testing.assert_array_equal(scales == 0, absmax == 0)
    # Where float16 has all of its digits, rounding up costs a thousandth of a step, and no more.
    normal = halves >= np.finfo(np.float16).tiny
    assert (scales[normal].astype(np.float64) * LARGEST_CODE <= absmax[normal] * (1 + 2.0**-10)).all()


def test_zeros_stay_zeros() -> None:
    codes, halves, exponents, _, out, rest = roundtrip(np.zeros((2, BLOCK), np.float32))
    assert not codes.any()
    assert not halves.any()
    assert not exponents.any()
    assert not out.any()
    assert not rest.any()


def test_zeros_beside_others_stay_exact() -> None:
    values = np.array([[0, 1, -1, 0.3, 0, 0, -0.7, 0]], np.float32)
    out = roundtrip(values)[4]
    np.testing.assert_array_equal(out[values == 0], 0.0)


@pytest.mark.parametrize("largest", [1e-45, 1e-38, 1e-12, 6e-5, 1.0, 65504.0, 1e12, LARGEST_VALUE])
def test_scales_survive_where_float16_alone_would_not(largest: float) -> None:
    values = (np.linspace(-1, 1, BLOCK) * largest).astype(np.float32)[None]
    _, halves, _, _, out, _ = roundtrip(values)
    assert (halves > 0).all()
    assert np.isfinite(out).all()
    if largest > 1e-37:  # the least scale is 2^-126: what float32 holds with all of its digits
        np.testing.assert_allclose(out, values, atol=0.51 * largest / LARGEST_CODE)


def test_a_block_far_below_the_tensors_largest_is_sent_as_zeros_and_left_over_whole() -> None:
    values = np.stack([np.full(BLOCK, 1.0), np.full(BLOCK, 2.0**-60)]).astype(np.float32)
    codes, halves, _, _, _, rest = roundtrip(values)
    assert halves[1] > 0
    assert not codes[1].any()
    np.testing.assert_array_equal(rest[1], values[1])


@patient
@given(st.lists(st.floats(0, LARGEST_VALUE), min_size=1, max_size=5))
def test_exponents_put_the_largest_into_the_top_binade_of_float16(largest: list) -> None:
    exponents = scale_exponents(np.array(largest))
    scaled = np.ldexp(np.array(largest), -exponents)
    assert (scaled < 2.0**15).all()
    assert ((scaled >= 2.0**14) | (exponents == MIN_EXPONENT) | (np.array(largest) == 0)).all()


@patient
@given(hnp.arrays(np.float32, (2, BLOCK), elements=FINITE))
def test_fp16_keeps_eleven_bits_of_the_largest_and_leaves_the_exact_rest(values: np.ndarray) -> None:
    exponent = scale_exponents(np.array([np.abs(values).max()], np.float64))[0]
    scales = np.full(2, np.ldexp(np.float32(1), exponent))
    codes, scratch, rest = np.empty(values.shape, np.float16), np.empty_like(values), values.copy()
    quantize(rest, np.full(2, np.ldexp(np.float32(1), -exponent)), scratch, codes)
    subtract_decoded(rest, scales, scratch)
    assert np.isfinite(codes).all()
    out = np.empty(values.size, np.float32)
    dequantize(codes.reshape(-1), scales[:1], values.size, out)
    exact = values.astype(np.float64) - out.reshape(values.shape).astype(np.float64)
    assert (np.abs(exact) <= np.maximum(np.abs(values) * 2.0**-11, scales[:, None] * 2.0**-25)).all()
    np.testing.assert_array_equal(rest.astype(np.float64), exact)
