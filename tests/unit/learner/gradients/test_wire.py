from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.learner.gradients import BadChecksum, BadGradient, GradientEncoder, NonFinite, decode_gradients
from services.learner.gradients.wire import extend_checksum
from shoal.v1 import gradients_pb2 as pb2
from tests.unit.learner.gradients.arrays import SHAPES, draw, patient, shapes_of

EXPECTED: Dict[str, Tuple[int, ...]] = {"w": (30, 50), "b": (50,)}


def segments(codec: str = "int8", packing: str = "none") -> List[pb2.GradientSegment]:
    return GradientEncoder(codec, 1024, True, packing).encode(draw(0, EXPECTED)).segments


def checksum(pushed: List[pb2.GradientSegment]) -> int:
    crc = 0
    for segment in pushed:
        crc = extend_checksum(crc, segment, segment.scales, segment.data)
    return crc


def decode(pushed: List[pb2.GradientSegment], expected: Any = EXPECTED) -> Dict[str, np.ndarray]:
    return decode_gradients(pushed, checksum(pushed), expected)


def test_a_decoded_gradient_is_the_equation_of_the_contract() -> None:
    pushed = segments(packing="zstd")
    weight = pushed[0]
    assert (weight.codec, weight.order) == (pb2.GRADIENT_CODEC_INT8_BLOCKS, pb2.GRADIENT_ORDER_COLUMNS)
    plain = segments()[0]
    codes = np.frombuffer(plain.data, np.int8).astype(np.float64)
    scales = np.frombuffer(plain.scales, np.float16).astype(np.float64)
    want = [q * scales[i // plain.block_size] * 2.0**plain.scale_exponent for i, q in enumerate(codes)]
    np.testing.assert_array_equal(decode(pushed)["w"].reshape(-1), want)


def test_a_whole_request_is_decoded_as_it_comes() -> None:
    encoded = GradientEncoder("int8", 2048, True, "zstd").encode(draw(0))
    request = pb2.PushRequest(sequence=7, segments=encoded.segments, crc32c=encoded.crc32c)
    received = pb2.PushRequest.FromString(request.SerializeToString())
    out = decode_gradients(received.segments, received.crc32c, SHAPES)
    assert shapes_of(out) == SHAPES


def test_some_of_the_parameters_are_enough() -> None:
    gradients = {name: gradient for name, gradient in draw(0).items() if name.startswith("policy")}
    encoded = GradientEncoder("int8", 1024, True, "none").encode(gradients)
    out = decode_gradients(encoded.segments, encoded.crc32c, SHAPES)
    assert shapes_of(out) == shapes_of(gradients)
    assert all(values.dtype == np.float32 and values.flags.writeable for values in out.values())


@pytest.mark.parametrize("codec", ["int8", "fp16", "none"])
@pytest.mark.parametrize("field", ["scales", "data", "tensor", "shape", "scale_exponent", "order", "packing"])
def test_damage_anywhere_shows(codec: str, field: str) -> None:
    encoded = GradientEncoder(codec, 1024, True, "none").encode(draw(0, EXPECTED))
    damaged = [pb2.GradientSegment.FromString(segment.SerializeToString()) for segment in encoded.segments]
    segment = damaged[-1]
    if field in ("scales", "data"):
        content = bytearray(getattr(segment, field))
        if not content:
            content = bytearray(2)
        content[-1] ^= 1
        setattr(segment, field, bytes(content) if getattr(segment, field) else b"\0\1")
    elif field == "tensor":
        segment.tensor += "x"
    elif field == "shape":
        segment.shape[0] += 1
    else:
        setattr(segment, field, getattr(segment, field) + 1)
    with pytest.raises(BadChecksum, match="send the same bytes again"):
        decode_gradients(damaged, encoded.crc32c, EXPECTED)


def test_segments_that_changed_places_show() -> None:
    encoded = GradientEncoder("int8", 1024, True, "none").encode(draw(0, EXPECTED))
    with pytest.raises(BadChecksum):
        decode_gradients(encoded.segments[::-1], encoded.crc32c, EXPECTED)
    with pytest.raises(BadChecksum):
        decode_gradients(encoded.segments, encoded.crc32c ^ 1, EXPECTED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor": "v"}, "there is no parameter 'v'"),
        ({"tensor": "b"}, r"'b' has shape \[30, 50\], the parameter \[50\]"),
        ({"shape": [30, 51]}, r"'w' has shape \[30, 51\], the parameter \[30, 50\]"),
        ({"shape": [2**31, 2**31, 2**31]}, "has shape"),
        ({"codec": pb2.GRADIENT_CODEC_UNSPECIFIED}, "unknown codec number 0"),
        ({"codec": 9}, "unknown codec number 9"),
        ({"codec": pb2.GRADIENT_CODEC_NONE}, "bytes of scales; its shape takes 0"),
        ({"codec": pb2.GRADIENT_CODEC_FP16, "scales": b""}, "has 1500 bytes; its shape takes 3000"),
        ({"codec": pb2.GRADIENT_CODEC_NONE, "scales": b""}, "has 1500 bytes; its shape takes 6000"),
        ({"packing": pb2.GRADIENT_PACKING_UNSPECIFIED}, "unknown packing number 0"),
        ({"packing": 9}, "unknown packing number 9"),
        ({"packing": pb2.GRADIENT_PACKING_ZSTD}, "'w' cannot be unpacked by zstd"),
        ({"packing": pb2.GRADIENT_PACKING_ZLIB}, "'w' cannot be unpacked by zlib"),
        ({"order": 9}, "unknown order number 9"),
        ({"block_size": 0}, "blocks of 0 values"),
        ({"block_size": 1}, "blocks of 1 values"),
        ({"block_size": 2**31}, "blocks of 2147483648 values"),
        ({"block_size": 2048}, "has 4 bytes of scales; its shape takes 2"),
        ({"scales": b"\0\0"}, "has 2 bytes of scales; its shape takes 4"),
        ({"scales": b"\0\0\0\0\0"}, "has 5 bytes of scales"),
        ({"scales": np.array([1, -1], np.float16).tobytes()}, "below zero"),
        ({"scale_exponent": 113}, "scale exponent 113; it must be -102 to 112"),
        ({"scale_exponent": -103}, "scale exponent -103"),
        ({"data": bytes(1499)}, "has 1499 bytes; its shape takes 1500"),
        ({"data": b""}, "has 0 bytes; its shape takes 1500"),
    ],
    ids=str,
)
def test_each_fault_has_its_sentence(change: Dict[str, Any], message: str) -> None:
    pushed = segments()
    for field, value in change.items():
        if field == "shape":
            del pushed[0].shape[:]
            pushed[0].shape.extend(value)
        else:
            setattr(pushed[0], field, value)
    with pytest.raises(BadGradient, match=message):
        decode(pushed)


def test_columns_need_two_dimensions() -> None:
    pushed = segments()
    pushed[1].order = pb2.GRADIENT_ORDER_COLUMNS
    with pytest.raises(BadGradient, match=r"its shape \[50\] has none"):
        decode(pushed)


def test_an_order_that_is_not_said_is_by_rows() -> None:
    pushed = segments()
    want = decode(pushed)
    for segment in pushed:
        segment.order = pb2.GRADIENT_ORDER_UNSPECIFIED
    for name, values in decode(pushed).items():
        np.testing.assert_array_equal(values, want[name])


def test_a_tensor_comes_once() -> None:
    pushed = segments()
    with pytest.raises(BadGradient, match="'w' comes twice"):
        decode([*pushed, pushed[0]])


def test_an_empty_push_is_refused() -> None:
    with pytest.raises(BadGradient, match="no gradients"):
        decode_gradients([], 0, EXPECTED)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", ["int8", "fp16", "none"])
def test_what_is_not_finite_is_refused_by_the_chief_too(codec: str, bad: float) -> None:
    pushed = segments(codec)
    if codec == "int8":
        pushed[0].scales = np.array([1.0, bad], np.float16).tobytes()
    else:
        values = np.frombuffer(pushed[0].data, np.float16 if codec == "fp16" else np.float32).copy()
        values[-1] = bad
        pushed[0].data = values.tobytes()
    # A scale of -inf is below zero before it is anything else.
    with pytest.raises(BadGradient if (codec, bad) == ("int8", -np.inf) else NonFinite):
        decode(pushed)


def test_finite_parts_that_decode_to_infinity_are_refused() -> None:
    pushed = segments()
    pushed[0].scale_exponent = 112
    pushed[0].scales = np.full(2, 65504, np.float16).tobytes()
    with pytest.raises(NonFinite, match="not finite or too large"):
        decode(pushed)


def test_the_largest_fp16_with_the_largest_exponent_is_finite() -> None:
    pushed = segments("fp16")
    pushed[0].scale_exponent = 112
    pushed[0].data = np.full(1500, 65504, np.float16).tobytes()
    assert np.isfinite(decode(pushed)["w"]).all()


@patient
@given(st.binary(max_size=200), st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.integers(-200, 200))
def test_no_message_does_anything_but_decode_or_be_refused(
    data: bytes, codec: int, packing: int, order: int, exponent: int
) -> None:
    segment = pb2.GradientSegment(tensor="x", shape=[4, 5], block_size=1024, scales=data[:2], data=data[2:])
    segment.codec, segment.packing, segment.order = codec, packing, order  # type: ignore[assignment]
    segment.scale_exponent = exponent
    try:
        values = decode([segment], {"x": (4, 5)})["x"]
    except (BadGradient, NonFinite):
        return
    assert values.shape == (4, 5)
    assert np.isfinite(values).all()
