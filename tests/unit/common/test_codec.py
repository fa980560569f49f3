from __future__ import annotations

from typing import Any, Callable, Dict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from services.common.chunk import TERMINATED, TRUNCATED, VALID, ActorCounters
from services.common.codec import (
    ChecksumError,
    chunk_checksum,
    decode_chunk,
    decode_column,
    decode_schema,
    decode_tensor,
    encode_chunk,
    encode_schema,
    encode_tensor,
    fill_chunk,
)
from services.common.packing import CODECS, pack
from services.common.schema import DTYPES, ActionSpec, Schema, SchemaError, TensorSpec
from shoal.v1 import experience_pb2, tensor_pb2
from tests.fakes import SCHEMA, make_chunk, same

ARRAYS = st.sampled_from(DTYPES).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))


def _tensor(**values: Any) -> tensor_pb2.Tensor:
    given_values = {"name": "x", "dtype": tensor_pb2.D_TYPE_FLOAT32, "shape": [2], "codec": 1, "data": bytes(8)}
    return tensor_pb2.Tensor(**{**given_values, **values})


@given(array=ARRAYS)
def test_any_tensor_comes_back_bit_for_bit(array: Any) -> None:
    wire = tensor_pb2.Tensor.FromString(encode_tensor("x", array).SerializeToString())
    again = decode_tensor(wire)
    assert (wire.name, again.dtype, again.shape) == ("x", array.dtype, array.shape)
    assert again.tobytes() == array.tobytes()


def test_every_dtype_of_a_schema_travels() -> None:
    for name in DTYPES:
        array = np.array([[0, 1], [1, 0]]).astype(name)
        assert decode_tensor(encode_tensor(name, array)).dtype == np.dtype(name)


def test_strided_and_big_endian_arrays_travel_as_little_endian_rows() -> None:
    array = np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2]
    again = decode_tensor(encode_tensor("x", array))
    np.testing.assert_array_equal(again, array.astype(np.float32))


def test_decoding_copies_nothing_and_cannot_be_written() -> None:
    data = bytes(16)
    assert np.shares_memory(decode_column("x", data, "int64", (2,)), np.frombuffer(data, np.uint8))
    array = decode_tensor(encode_tensor("x", np.arange(4, dtype=np.int64)))
    assert not array.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_dtype_that_does_not_travel_is_named() -> None:
    with pytest.raises(SchemaError, match="'x' has dtype complex64"):
        encode_tensor("x", np.zeros(1, np.complex64))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"dtype": 99}, "unknown dtype number 99"),
        ({"dtype": 0}, "unknown dtype number 0"),
        ({"codec": 0}, "codec number 0"),
        ({"codec": tensor_pb2.CODEC_ZSTD}, "codec number 2"),
        ({"data": bytes(7)}, "has 7 bytes"),
        ({"data": bytes(12)}, "has 12 bytes"),
        ({"data": b""}, "has 0 bytes"),
        ({"shape": [2**31, 2**31, 4], "data": b""}, "takes 73786976294838206464"),  # 2^66: wraps to 0 in 64 bits
        ({"shape": [2**32 - 1] * 32, "data": b""}, "takes"),
        ({"shape": [0] + [2**31] * 3, "data": b""}, "impossible shape"),
        ({"shape": [1] * 33, "data": bytes(4)}, "33 dimensions"),
    ],
)
def test_hostile_tensors_are_refused_before_memory_is_taken(values: Dict[str, Any], why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        decode_tensor(_tensor(**values))


def test_a_column_of_another_length_is_refused() -> None:
    assert decode_column("x", bytes(8), "float32", (2, 1)).shape == (2, 1)
    with pytest.raises(SchemaError, match=r"'x' has 8 bytes; float32\[3\] takes 12"):
        decode_column("x", bytes(8), "float32", (3,))


@pytest.mark.parametrize("action", [ActionSpec((-1.5, 0.0), (1.0, 0.1)), ActionSpec(num_actions=7)])
def test_a_schema_comes_back_with_its_digest(action: ActionSpec) -> None:
    specs = tuple(TensorSpec(f"o{i}", dtype, (1, 2)[:i]) for i, dtype in enumerate(("uint8", "float16", "bool")))
    schema = Schema(specs, action)
    again = decode_schema(experience_pb2.Schema.FromString(encode_schema(schema).SerializeToString()))
    assert again == schema
    assert again.digest == schema.digest


def test_a_schema_with_an_unknown_dtype_is_refused() -> None:
    message = encode_schema(SCHEMA)
    message.observation[0].dtype = 42  # type: ignore[assignment]
    with pytest.raises(SchemaError, match="'camera' has the unknown dtype number 42"):
        decode_schema(message)
    with pytest.raises(SchemaError, match="no observation"):
        decode_schema(experience_pb2.Schema(action=encode_schema(SCHEMA).action))


@given(data=st.data(), T=st.integers(0, 4), B=st.integers(1, 3), critics=st.booleans())
def test_any_chunk_comes_back_bit_for_bit(data: Any, T: int, B: int, critics: bool) -> None:  # noqa: N803
    kinds = st.sampled_from([VALID, VALID | TERMINATED, VALID | TRUNCATED, 0])
    flags = np.array(data.draw(st.lists(kinds, min_size=T * B, max_size=T * B)), np.uint8).reshape(T, B)
    chunk = make_chunk(T, B, flags=flags, sequence=5, first_step=77, critics=critics)
    chunk.acting_seconds, chunk.queued_seconds = 0.25, 1.5
    chunk.counters = ActorCounters(10, 3, {"buffer_full": 2})
    again = decode_chunk(experience_pb2.Chunk.FromString(encode_chunk(chunk).SerializeToString()))
    again.check(SCHEMA)
    assert same(chunk, again)
    for name in ("lane_group", "sequence", "first_step", "acting_seconds", "queued_seconds", "newest_version"):
        assert getattr(again, name) == getattr(chunk, name), name
    assert again.counters == chunk.counters


def test_critics_that_are_all_nan_take_no_bytes() -> None:
    message = encode_chunk(make_chunk(critics=False))
    assert (message.q_taken, message.value, message.final.value) == (b"", b"", b"")
    assert np.isnan(decode_chunk(message).q_taken).all()


DAMAGE: Dict[str, Callable[[experience_pb2.Chunk], None]] = {
    "observation": lambda m: setattr(m.observation[1], "data", _flip(m.observation[1].data)),
    "action": lambda m: setattr(m.action, "data", _flip(m.action.data)),
    "reward": lambda m: setattr(m, "reward", _flip(m.reward)),
    "flags": lambda m: setattr(m, "flags", _flip(m.flags)),
    "policy_version": lambda m: setattr(m, "policy_version", _flip(m.policy_version)),
    "q_taken": lambda m: setattr(m, "q_taken", _flip(m.q_taken)),
    "value": lambda m: setattr(m, "value", _flip(m.value)),
    "final.step": lambda m: m.final.step.__setitem__(0, 1),
    "final.observation": lambda m: setattr(m.final.observation[0], "data", _flip(m.final.observation[0].data)),
    "final.value": lambda m: setattr(m.final, "value", _flip(m.final.value)),
    "final.cut": lambda m: setattr(m.final, "cut", b"\x01"),
    "crc32c": lambda m: setattr(m, "crc32c", m.crc32c ^ 1),
}


def _flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize("column", DAMAGE)
def test_damage_of_any_column_is_found(column: str) -> None:
    message = encode_chunk(make_chunk(2, 2, flags=[[VALID | TERMINATED, VALID], [VALID, VALID]]))
    decode_chunk(message)
    DAMAGE[column](message)
    with pytest.raises(ChecksumError, match="send it again"):
        decode_chunk(message)


def test_a_checksum_is_never_the_number_that_means_none() -> None:
    assert chunk_checksum(experience_pb2.Chunk()) == 1


def _unchecked(message: experience_pb2.Chunk) -> experience_pb2.Chunk:
    message.crc32c = 0
    return message


@pytest.mark.parametrize(("T", "B"), [(2**20, 2), (2**31, 2**31), (0, 2**32 - 1), (2**32 - 1, 0)])
def test_a_chunk_of_hostile_size_is_refused(T: int, B: int) -> None:  # noqa: N803
    message = _unchecked(encode_chunk(make_chunk()))
    message.num_steps, message.num_lanes = T, B
    with pytest.raises(SchemaError, match=f"claims {T} x {B} steps"):
        decode_chunk(message)


def test_sizes_that_do_not_fit_together_are_refused() -> None:
    message = _unchecked(encode_chunk(make_chunk(4, 2)))
    message.num_steps = 5
    with pytest.raises(SchemaError, match="'reward' has 32 bytes"):
        decode_chunk(message)


def test_a_tensor_that_comes_twice_is_refused() -> None:
    message = _unchecked(encode_chunk(make_chunk()))
    message.observation.append(message.observation[0])
    with pytest.raises(SchemaError, match="'camera' came twice"):
        decode_chunk(message)


def _packed_chunk(codec: str) -> Any:
    chunk = make_chunk(32, 8, flags=np.full((32, 8), VALID | TRUNCATED, np.uint8))
    for column in (chunk.observation["camera"], chunk.final.observation["camera"]):
        column[:] = 7
    message = experience_pb2.Chunk()
    fill_chunk(message, chunk, codec)
    return chunk, message


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_images_are_packed_wherever_they_are_and_nothing_else_is(codec: str) -> None:
    pytest.importorskip("lz4")
    chunk, message = _packed_chunk(codec)
    for tensors in (message.observation, message.final.observation):
        how = {tensor.name: tensor.codec for tensor in tensors}
        assert how == {"camera": CODECS[codec], "policy": tensor_pb2.CODEC_NONE}
    assert message.action.codec == tensor_pb2.CODEC_NONE
    assert message.crc32c == chunk_checksum(message)
    assert same(decode_chunk(message), chunk)
    assert same(decode_chunk(encode_chunk(chunk)), chunk)


def test_damage_of_a_packed_column_is_found_before_it_is_unpacked() -> None:
    pytest.importorskip("lz4")
    _, message = _packed_chunk("lz4")
    message.observation[0].data = _flip(message.observation[0].data)
    with pytest.raises(ChecksumError):
        decode_chunk(message)


@pytest.mark.parametrize("where", ["observation", "final"])
def test_a_chunk_that_unpacks_beyond_all_bounds_is_refused(where: str) -> None:
    pytest.importorskip("lz4")
    _, message = _packed_chunk("zstd")
    tensors = message.observation if where == "observation" else message.final.observation
    for number in range(3):  # each within the bound, all of them beyond it
        tensor = tensors.add(name=f"bomb{number}", dtype=tensor_pb2.D_TYPE_UINT8, shape=[100_000_000])
        tensor.data, tensor.codec = pack(bytes(100_000_000), "zstd")
    with pytest.raises(SchemaError, match="'bomb2' takes 100000000 bytes unpacked; 6"):
        decode_chunk(_unchecked(message))


def test_only_a_chunks_observations_may_be_packed() -> None:
    pytest.importorskip("lz4")
    data, codec = pack(bytes(4096), "lz4")
    tensor = tensor_pb2.Tensor(name="x", dtype=tensor_pb2.D_TYPE_UINT8, shape=[4096], codec=codec, data=data)
    with pytest.raises(SchemaError, match=r"packed with codec number 3; known is 1 \(none\)"):
        decode_tensor(tensor)
    _, message = _packed_chunk("none")
    message.observation[0].codec = 9  # type: ignore[assignment]
    with pytest.raises(SchemaError, match=r"packed with codec number 9; known is 1 \(none\), 2 \(zstd\) and 3 \(lz4\)"):
        decode_chunk(_unchecked(message))
