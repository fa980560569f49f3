"""Values as int8 in blocks or as fp16, and back. Arithmetic on arrays alone.

Both kinds of numbers are float16 times a power of two of the tensor's own, 2^e:

    int8   value = q * s,  q in -127..127,  s = h * 2^e >= max |value| / 127 of the block,  h a float16
    fp16   value = h * 2^e

e puts the tensor's largest scale (or value) into float16's top binade, so that neither gradients of 1e-12 vanish nor
those of 1e12 overflow. h is rounded *up*: no value needs clipping, and |value - q s| <= s / 2 holds for every one, in a
block whose largest value is 2^-40 of the tensor's too (its codes are then 0, and error feedback keeps it). q s has 18
significant bits and is exact in float32; so is value - q s, since q s is 0 or within a factor of two of the value. What
error feedback keeps is therefore the error of what the chief decodes, bit for bit.
"""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]

MIN_BLOCK_SIZE, MAX_BLOCK_SIZE = 1024, 2048
LARGEST_CODE = 127
LARGEST_VALUE = float(2**126)  # beyond it a scale could decode to infinity; no gradient is that large but by a fault
_TOP_EXPONENT = 15  # of float16's largest finite numbers
# Bounds of e: the least float16, 2^-24, times 2^e is a normal float32, whose reciprocal is finite; and LARGEST_VALUE.
MIN_EXPONENT, MAX_EXPONENT = -102, 126 + 1 - _TOP_EXPONENT


def scale_exponents(largest: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    """The e of tensors [N], of whose scales (int8) or magnitudes (fp16) `largest` is the largest; 0 where that is 0."""
    exponents: npt.NDArray[np.int32] = np.frexp(largest)[1] - np.int32(_TOP_EXPONENT)
    np.maximum(exponents, MIN_EXPONENT, out=exponents)
    exponents[largest == 0.0] = 0
    return exponents


def block_scales(absmax: Values, exponents: npt.NDArray[np.int32]) -> Tuple[npt.NDArray[np.float16], Values, Values]:
    """Scales of int8 blocks.

    Args:
        absmax: largest magnitude of each block, <float32>[num_blocks].
        exponents: e of each block's tensor, <int32>[num_blocks].

    Returns:
        h <float16>, s = h * 2^e <float32>, and 1/s <float32>, 0 where s is; each [num_blocks].
    """
    wanted = np.ldexp(absmax.astype(np.float64) / LARGEST_CODE, -exponents)
    halves: npt.NDArray[np.float16] = wanted.astype(np.float16)
    too_small = halves < wanted
    halves[too_small] = np.nextafter(halves[too_small], np.float16(np.inf))
    scales = np.ldexp(halves.astype(np.float32), exponents)
    reciprocals = np.zeros_like(scales)
    np.divide(np.float32(1), scales, out=reciprocals, where=scales > 0)
    return halves, scales, reciprocals


def quantize(values: Values, reciprocals: Values, scratch: Values, codes: npt.NDArray[Any]) -> None:
    """Round values / s to the nearest code.

    Args:
        values: <float32>[blocks, block_size].
        reciprocals: 1/s, [blocks].
        scratch: as `values`, overwritten: the codes as float32.
        codes: <int8> or <float16>, as `values`, overwritten.
    """
    np.multiply(values, reciprocals[:, None], out=scratch)
    if codes.dtype == np.int8:
        np.rint(scratch, out=scratch)
        np.copyto(codes, scratch, casting="unsafe")
    else:
        np.copyto(codes, scratch, casting="same_kind")
        np.copyto(scratch, codes)


def subtract_decoded(values: Values, scales: Values, scratch: Values) -> None:
    """Leave in `values` the error of what `quantize` wrote; `scratch` is what it left there."""
    np.multiply(scratch, scales[:, None], out=scratch)
    np.subtract(values, scratch, out=values)


def dequantize(codes: npt.NDArray[Any], scales: Values, block_size: int, out: Values) -> None:
    """Values q s, or h 2^e.

    Args:
        codes: <int8> or <float16>[size].
        scales: s of each block, [ceil(size / block_size)].
        block_size: values a block; the last may have fewer.
        out: <float32>[size], overwritten.
    """
    np.copyto(out, codes)
    num_whole = len(out) // block_size
    whole = out[: num_whole * block_size].reshape(num_whole, block_size)
    np.multiply(whole, scales[:num_whole, None], out=whole)
    if num_whole < len(scales):
        out[num_whole * block_size :] *= scales[num_whole]
