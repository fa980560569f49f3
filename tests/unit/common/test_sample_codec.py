from __future__ import annotations

import dataclasses
from typing import Any, Dict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from services.common.batch import Batch, DrawnKeys
from services.common.sample_codec import (
    decode_batch,
    decode_drawn,
    pack_batch,
    pack_drawn,
    pack_response,
    read_response,
)
from services.common.schema import DTYPES, SchemaError
from services.common.stamps_codec import StampSource
from shoal.v1 import replay_pb2, tensor_pb2
from tests.unit.common.test_stamps_codec import assert_same_stamps, packed, stamps_of

SOURCE = StampSource(2**40 + 1000, ("a", "b"))


def _batch(n: int, **changes: Any) -> Batch:
    rng = np.random.default_rng(0)
    columns: Dict[str, Any] = {
        "keys": rng.integers(0, 99, n),
        "probability": rng.random(n),
        "priority": rng.random(n),
        "times_sampled": rng.integers(1, 9, n),
        "observation": {"policy": rng.random((n, 2)).astype(np.float32), "camera": rng.integers(0, 9, (n, 2, 2))},
        "action": rng.random((n, 1)).astype(np.float32),
        "n_step_return": rng.random(n).astype(np.float32),
        "discount": rng.random(n).astype(np.float32),
        "next_observation": {"policy": rng.random((n, 2)).astype(np.float32), "camera": rng.integers(0, 9, (n, 2, 2))},
        "policy_version": rng.integers(0, 9, n),
        "num_items": 12,
    }
    return Batch(**{**columns, **changes})


def _encode(batch: Batch) -> bytes:
    return pack_batch(batch, packed(stamps_of(len(batch)))).join()


def _assert_same(want: Any, got: Any) -> None:
    for field in dataclasses.fields(want):
        mine, its = getattr(want, field.name), getattr(got, field.name)
        if field.name == "stamps":
            assert mine is its is None
            continue
        pairs = [(mine[name], its[name]) for name in mine] if isinstance(mine, dict) else [(mine, its)]
        for one, other in pairs:
            np.testing.assert_array_equal(one, other, err_msg=field.name)
            assert np.asarray(other).dtype == np.asarray(one).dtype


@pytest.mark.parametrize("n", [0, 1, 3, 200])
def test_a_batch_comes_back_bit_for_bit(n: int) -> None:
    batch = _batch(n)
    _assert_same(batch, decode_batch(_encode(batch), 12))


@given(data=st.data(), dtype=st.sampled_from(DTYPES), n=st.integers(0, 4))
def test_observations_of_any_kind_come_back_bit_for_bit(data: Any, dtype: str, n: int) -> None:
    shape = (n, *data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)))
    columns = {"x": data.draw(hnp.arrays(dtype, shape))}
    again = decode_batch(_encode(_batch(n, observation=columns, next_observation={})), 12)
    np.testing.assert_array_equal(again.observation["x"], columns["x"])
    assert again.observation["x"].dtype == columns["x"].dtype
    assert again.next_observation == {}


def test_a_message_of_protobufs_own_is_read_alike() -> None:
    batch = _batch(5)
    message = replay_pb2.SampledItems.FromString(_encode(batch))
    np.testing.assert_array_equal(np.frombuffer(message.keys, np.int64), batch.keys)
    np.testing.assert_array_equal(np.frombuffer(message.age_seconds, np.float32), stamps_of(5).ring_s)
    assert [tensor.name for tensor in message.observation] == ["camera", "policy"]
    assert list(message.action.shape) == [5, 1]
    _assert_same(batch, decode_batch(message.SerializeToString(), 12))


def test_arrays_that_are_no_single_piece_or_of_the_other_byte_order_travel() -> None:
    rng = np.random.default_rng(0)
    slanted = {"policy": rng.random((6, 4)).astype(np.float32)[::2, 1:3]}
    batch = _batch(3, observation=slanted, next_observation=slanted, keys=np.arange(3).astype(">i8"))
    again = decode_batch(_encode(batch), 12)
    np.testing.assert_array_equal(again.observation["policy"], slanted["policy"])
    np.testing.assert_array_equal(again.keys, [0, 1, 2])


def test_drawn_keys_come_back_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    drawn = DrawnKeys(rng.integers(0, 9, 4), rng.random(4), rng.random(4), rng.integers(0, 9, 4), rng.integers(0, 9, 4))
    _assert_same(drawn, decode_drawn(pack_drawn(drawn).join()))


def test_a_response_is_read_without_its_items_and_protobuf_reads_it_whole() -> None:
    response = replay_pb2.SampleResponse(status=replay_pb2.SAMPLE_STATUS_OK, num_items=7, table_id=2**64 - 1)
    batch = _batch(3)
    data = pack_response(response, pack_batch(batch))
    answer = read_response(data)
    assert answer.response == response
    assert answer.items is not None
    _assert_same(batch, decode_batch(answer.items, 12))
    assert replay_pb2.SampleResponse.FromString(data).items.keys == batch.keys.tobytes()
    # Protobuf joins a message that comes in parts.
    halves = replay_pb2.SampleResponse(items=replay_pb2.SampledItems(keys=bytes(24))).SerializeToString() + data
    items = read_response(halves).items
    assert items is not None
    _assert_same(batch, decode_batch(items, 12))
    waiting = replay_pb2.SampleResponse(status=replay_pb2.SAMPLE_STATUS_WAITING, reason="actors must insert")
    assert read_response(pack_response(waiting, None)) == dataclasses.replace(answer, response=waiting, items=None)


def test_columns_of_unlike_length_are_refused() -> None:
    message = replay_pb2.SampledItems.FromString(_encode(_batch(3)))
    message.discount = message.discount[:4]
    with pytest.raises(SchemaError, match="'discount' has 4 bytes"):
        decode_batch(message.SerializeToString(), 12)


def test_stamps_travel_with_rows_in_24_bytes_an_item() -> None:
    batch, stamps = _batch(500), stamps_of(500)
    data = _encode(batch)
    assert_same_stamps(decode_batch(data, 12, SOURCE).stamps, stamps)
    assert len(data) - len(pack_batch(batch).join()) < 24 * 500 + 50
    part = decode_batch(data, 12, SOURCE).split(250)[1].at(np.array([3, 3]))
    assert_same_stamps(part.stamps, stamps.at(np.array([253, 253])))


def test_stamps_travel_with_keys() -> None:
    columns: Any = [np.arange(4), np.ones(4), np.ones(4), np.ones(4, np.int64), np.arange(4)]
    data = pack_drawn(DrawnKeys(*columns), packed(stamps_of(4))).join()
    assert_same_stamps(decode_drawn(data, SOURCE).stamps, stamps_of(4))
    assert_same_stamps(decode_drawn(data, SOURCE).split(2)[1].stamps, stamps_of(4).at(slice(2, 4)))
    assert decode_drawn(data).stamps is None


def test_stamps_that_do_not_fit_are_refused() -> None:
    message = replay_pb2.SampledItems.FromString(_encode(_batch(4)))
    with pytest.raises(SchemaError, match="of actor 1, but only 1 were named"):
        decode_batch(message.SerializeToString(), 12, StampSource(9, ("a",)))
    message.transit_seconds = b""
    with pytest.raises(SchemaError, match="'transit_seconds' has 0 bytes"):
        decode_batch(message.SerializeToString(), 12, SOURCE)


def test_tensors_that_are_not_of_the_items_are_refused() -> None:
    message = replay_pb2.SampledItems.FromString(_encode(_batch(3)))
    message.action.CopyFrom(tensor_pb2.Tensor(name="action", dtype=2, shape=[2, 1], codec=1, data=bytes(8)))
    with pytest.raises(SchemaError, match=r"'action' has the shape \[2, 1\], and there are 3 items"):
        decode_batch(message.SerializeToString(), 12)
    message = replay_pb2.SampledItems.FromString(_encode(_batch(3)))
    message.observation.append(message.observation[0])
    with pytest.raises(SchemaError, match="'camera' came twice"):
        decode_batch(message.SerializeToString(), 12)


def test_a_dtype_that_does_not_travel_is_refused() -> None:
    with pytest.raises(SchemaError, match="has dtype complex64"):
        _encode(_batch(2, action=np.zeros((2, 1), np.complex64)))
