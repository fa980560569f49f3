from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.wire import Packed, WireError, take_out
from shoal.v1 import replay_pb2, tensor_pb2

SIZES = st.sampled_from([0, 1, 127, 128, 129, 16_383, 16_384, 70_000])


@given(sizes=st.lists(SIZES, max_size=5), name=st.text(max_size=5), shape=st.lists(st.integers(0, 2**32 - 1)))
def test_what_is_packed_is_what_protobuf_reads(sizes: List[int], name: str, shape: List[int]) -> None:
    rng = np.random.default_rng(0)
    data = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    small = tensor_pb2.Tensor(name=name, shape=shape)
    items = Packed()
    for one in data:
        tensor = Packed()
        tensor.add(small.SerializeToString())
        tensor.add_field(5, one.data)
        items.add_field(5, tensor)
    items.add_field(1, b"keys")
    items.add_field(17, b"unknown")  # a number of two bytes
    joined = items.join()
    assert len(joined) == items.num_bytes
    message = replay_pb2.SampledItems.FromString(joined)
    assert [tensor.data for tensor in message.observation] == [one.tobytes() for one in data]
    assert all((tensor.name, list(tensor.shape)) == (name, shape) for tensor in message.observation)
    assert message.keys == b"keys"


def test_an_array_of_any_shape_is_its_bytes() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    message = Packed()
    message.add_field(5, array.data)
    assert tensor_pb2.Tensor.FromString(message.join()).data == array.tobytes()


@given(
    keys=st.binary(max_size=300),
    observation=st.lists(st.binary(max_size=200), max_size=4),
    numbers=st.tuples(st.integers(0, 2**64 - 1), st.floats(allow_nan=False), st.integers(0, 2**64 - 1)),
    reason=st.text(max_size=20),
)
def test_what_is_taken_out_and_what_is_left_are_the_message(
    keys: bytes, observation: List[bytes], numbers: Tuple[int, float, int], reason: str
) -> None:
    num_items, mass, table_id = numbers
    tensors = [tensor_pb2.Tensor(name="x", data=data) for data in observation]
    items = replay_pb2.SampledItems(keys=keys, observation=tensors)
    whole = replay_pb2.SampleResponse(
        reason=reason, items=items, num_items=num_items, priority_mass_log2=mass, table_id=table_id
    )
    rest, found = take_out(whole.SerializeToString(), (3,))
    assert set(found) == {3}
    left = replay_pb2.SampleResponse.FromString(rest)
    whole.ClearField("items")
    assert left == whole
    (encoded,) = found[3]
    assert replay_pb2.SampledItems.FromString(encoded) == items
    _, columns = take_out(encoded, (1, 5))
    assert b"".join(columns.get(1, [])) == keys
    assert [tensor_pb2.Tensor.FromString(tensor) for tensor in columns.get(5, [])] == tensors


def test_a_field_that_is_taken_out_is_not_copied() -> None:
    message = replay_pb2.SampledItems(keys=bytes(100)).SerializeToString()
    _, found = take_out(message, (1,))
    assert found[1][0].obj is message


@given(data=st.binary(max_size=60))
def test_bytes_of_any_kind_are_read_as_protobuf_does_or_refused(data: bytes) -> None:
    try:
        rest, found = take_out(data, (1, 3))
    except WireError:
        return
    assert len(rest) + sum(len(value) for values in found.values() for value in values) <= len(data)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\x0a\x05abc", "ends in the middle of its field 1"),
        (b"\x0a\xff", "a number of the message has no end"),
        (b"\x08" + b"\x80" * 10, "a number of the message has no end"),
        (b"\x09\x00", "ends in the middle of its field 1"),
        (b"\x0b", "unknown wire type 3"),
    ],
)
def test_what_is_no_message_is_refused(data: Any, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        take_out(data, (1,))
    with pytest.raises(WireError, match=sentence):
        take_out(data, ())
