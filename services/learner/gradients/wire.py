"""The chief's end: segments are checked, every claim before memory is taken for it, and become arrays."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence, Tuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from services.learner.gradients.codec import (
    LARGEST_CODE,
    MAX_BLOCK_SIZE,
    MAX_EXPONENT,
    MIN_BLOCK_SIZE,
    MIN_EXPONENT,
    Values,
    dequantize,
)
from services.learner.gradients.faults import BadChecksum, BadGradient, NonFinite
from services.learner.gradients.layout import num_blocks, num_values
from services.learner.gradients.packing import Unpacker, unswap
from shoal.v1 import gradients_pb2 as pb2

CODECS = {
    "int8": pb2.GRADIENT_CODEC_INT8_BLOCKS,
    "fp16": pb2.GRADIENT_CODEC_FP16,
    "none": pb2.GRADIENT_CODEC_NONE,
}
_CODE_DTYPES: Dict[int, np.dtype[Any]] = {
    pb2.GRADIENT_CODEC_INT8_BLOCKS: np.dtype("int8"),
    pb2.GRADIENT_CODEC_FP16: np.dtype("<f2"),
    pb2.GRADIENT_CODEC_NONE: np.dtype("<f4"),
}


def extend_checksum(crc: int, segment: pb2.GradientSegment, scales: bytes, data: bytes) -> int:
    """CRC32C `crc` with one more segment: what it says of itself, its scales, its data.

    Args:
        crc: of the segments before it; 0 at the first.
        segment: its scales and data are not read: each access of a message's field copies it.
        scales: of the segment.
        data: of the segment.
    """
    shape = "x".join(str(size) for size in segment.shape)
    head = (
        f"{segment.tensor}:{shape}:{segment.codec}:{segment.block_size}:{segment.packing}:{segment.scale_exponent}"
        f":{segment.order}"
    )
    for part in (head.encode(), scales, data):
        crc = google_crc32c.extend(crc, part)
    return int(crc)


def decode_gradients(
    segments: Sequence[pb2.GradientSegment], crc32c: int, expected: Mapping[str, Tuple[int, ...]]
) -> Dict[str, npt.NDArray[np.float32]]:
    """Decode the gradients of a push.

    Args:
        segments: of the push.
        crc32c: of the push.
        expected: name -> shape of every parameter; the segments may be of some of them.

    Returns:
        name -> <float32>[shape], every value finite.

    Raises:
        BadChecksum: the bytes were damaged on the way.
        BadGradient: a segment is not what it should be; no memory was taken for what it claimed.
        NonFinite: a value is NaN or an infinity.
    """
    contents = [(segment.scales, segment.data) for segment in segments]
    crc = 0
    for segment, (scales, data) in zip(segments, contents):
        crc = extend_checksum(crc, segment, scales, data)
    if crc != crc32c:
        raise BadChecksum("the gradients do not match their CRC32C: send the same bytes again")
    if not segments:
        raise BadGradient("the push has no gradients")
    named = set()
    for segment, (scales, _) in zip(segments, contents):
        _check(segment, len(scales), expected)
        if segment.tensor in named:
            raise BadGradient(f"the gradient of {segment.tensor!r} comes twice in one push")
        named.add(segment.tensor)
    unpacker = Unpacker()
    return {
        segment.tensor: _decode(segment, scales, data, unpacker) for segment, (scales, data) in zip(segments, contents)
    }


def _check(segment: pb2.GradientSegment, num_scale_bytes: int, expected: Mapping[str, Tuple[int, ...]]) -> None:
    """Refuse what contradicts itself or the parameters; takes no memory."""
    name, shape = segment.tensor, tuple(segment.shape)
    if name not in expected:
        raise BadGradient(f"there is no parameter {name!r} for this gradient; the helper trains another algorithm")
    if shape != tuple(expected[name]):
        raise BadGradient(
            f"the gradient of {name!r} has shape {list(shape)}, the parameter {list(expected[name])}; "
            "give helper and chief the same run file"
        )
    if segment.codec not in _CODE_DTYPES:
        raise BadGradient(f"the gradient of {name!r} has the unknown codec number {segment.codec}; known are 1 to 3")
    if not MIN_EXPONENT <= segment.scale_exponent <= MAX_EXPONENT:
        raise BadGradient(
            f"the gradient of {name!r} has the scale exponent {segment.scale_exponent}; "
            f"it must be {MIN_EXPONENT} to {MAX_EXPONENT}"
        )
    want = 0
    if segment.codec == pb2.GRADIENT_CODEC_INT8_BLOCKS:
        if not MIN_BLOCK_SIZE <= segment.block_size <= MAX_BLOCK_SIZE:
            raise BadGradient(
                f"the gradient of {name!r} has blocks of {segment.block_size} values; "
                f"they have {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}"
            )
        want = 2 * num_blocks(num_values(shape), segment.block_size)
    if num_scale_bytes != want:
        raise BadGradient(f"the gradient of {name!r} has {num_scale_bytes} bytes of scales; its shape takes {want}")


def _decode(segment: pb2.GradientSegment, scales: bytes, data: bytes, unpacker: Unpacker) -> Values:
    name, shape, codec = segment.tensor, tuple(segment.shape), segment.codec
    dtype, size = _CODE_DTYPES[codec], num_values(shape)
    unpacked = unpacker.unpack(data, segment.packing, size * dtype.itemsize, name)
    codes = unswap(np.frombuffer(unpacked, dtype), shape, segment.order, name)
    values = np.empty(size, np.float32)
    if codec == pb2.GRADIENT_CODEC_NONE:
        np.copyto(values, codes)
        _check_finite(name, values)
    elif codec == pb2.GRADIENT_CODEC_INT8_BLOCKS:
        dequantize(codes, _scales(segment, scales), segment.block_size, values)
    else:
        scale = np.ldexp(np.float32(1), [segment.scale_exponent]).astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):  # what comes of it is looked at
            dequantize(codes, scale, max(size, 1), values)
        _check_finite(name, values)
    return values.reshape(shape)


def _scales(segment: pb2.GradientSegment, scales: bytes) -> Values:
    """The s of each block, such that no code decodes to more than a float32 holds."""
    halves = np.frombuffer(scales, "<f2").astype(np.float64)
    largest = np.ldexp(halves, segment.scale_exponent) * (LARGEST_CODE + 1)
    if not (largest <= np.finfo(np.float32).max).all():
        raise NonFinite(segment.tensor, f"a scale of the gradient of {segment.tensor!r} is not finite or too large")
    if (halves < 0).any():
        raise BadGradient(f"a scale of the gradient of {segment.tensor!r} is below zero")
    return (largest / (LARGEST_CODE + 1)).astype(np.float32)


def _check_finite(name: str, values: Values) -> None:
    if not np.isfinite(values).all():
        raise NonFinite(name, f"the gradient of {name!r} holds NaN or an infinity")
