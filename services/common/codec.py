"""Between numpy and the wire: tensors, schemas, chunks. Decoded arrays view the bytes of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import google_crc32c
import numpy as np
import numpy.typing as npt

from services.common.chunk import MAX_CHUNK_ROWS, ActorCounters, Chunk, FinalObservations
from services.common.packing import MAX_UNPACKED_BYTES, pack, unpack
from services.common.schema import MAX_TENSORS, ActionSpec, Schema, SchemaError, TensorSpec
from shoal.v1 import experience_pb2, tensor_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

_WIRE_DTYPES: Dict[str, tensor_pb2.DType.ValueType] = {
    "float16": tensor_pb2.D_TYPE_FLOAT16,
    "float32": tensor_pb2.D_TYPE_FLOAT32,
    "float64": tensor_pb2.D_TYPE_FLOAT64,
    "int8": tensor_pb2.D_TYPE_INT8,
    "uint8": tensor_pb2.D_TYPE_UINT8,
    "int32": tensor_pb2.D_TYPE_INT32,
    "int64": tensor_pb2.D_TYPE_INT64,
    "bool": tensor_pb2.D_TYPE_BOOL,
}
_NUMPY_DTYPES = {wire: np.dtype(name).newbyteorder("<") for name, wire in _WIRE_DTYPES.items()}
_COLUMN_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in (*_WIRE_DTYPES, "uint32")}
# By kind and size, as in "f4": numpy makes a dtype's name anew each time that it is asked, and there are many columns.
_WIRE_DTYPES_BY_CODE = {np.dtype(name).str[1:]: wire for name, wire in _WIRE_DTYPES.items()}
_MAX_DIMENSIONS = 32  # of the oldest numpy that runs here
_MAX_NAME_LENGTH = 256  # of a tensor, in characters: names come up in sentences


class ChecksumError(SchemaError):
    """Bytes were damaged on the way: the sender resends them."""


def encode_tensor(name: str, array: npt.NDArray[Any]) -> tensor_pb2.Tensor:
    """Pack one array of any shape.

    Raises:
        SchemaError: its dtype does not travel.
    """
    message = tensor_pb2.Tensor()
    describe_tensor(message, name, array).data = _tensor_bytes(array)
    return message


def decode_tensor(tensor: tensor_pb2.Tensor) -> npt.NDArray[Any]:
    """View a tensor's bytes as a read-only array of its shape.

    Raises:
        SchemaError: unknown dtype or codec, an impossible shape, or the bytes are not as many as the shape says.
    """
    return view_tensor(tensor, tensor.data)


def view_tensor(
    tensor: tensor_pb2.Tensor, data: Union[bytes, memoryview], max_unpacked_bytes: int = 0
) -> npt.NDArray[Any]:
    """As `decode_tensor`, of bytes that were read already; packed ones are refused unless some bytes are allowed."""
    if len(tensor.name) > _MAX_NAME_LENGTH:
        raise SchemaError(f"a tensor's name has {len(tensor.name)} characters: {tensor.name[:40]!r}…")
    if tensor.dtype not in _NUMPY_DTYPES:
        raise SchemaError(f"tensor {tensor.name!r} has the unknown dtype number {tensor.dtype}")
    is_packed = tensor.codec in (tensor_pb2.CODEC_LZ4, tensor_pb2.CODEC_ZSTD) and max_unpacked_bytes > 0
    if not is_packed and tensor.codec != tensor_pb2.CODEC_NONE:
        known = "1 (none), 2 (zstd) and 3 (lz4)" if max_unpacked_bytes else "1 (none)"
        raise SchemaError(f"tensor {tensor.name!r} is packed with codec number {tensor.codec}; known is {known}")
    if len(tensor.shape) > _MAX_DIMENSIONS:
        raise SchemaError(
            f"tensor {tensor.name!r} has {len(tensor.shape)} dimensions; no array has more than {_MAX_DIMENSIONS}"
        )
    dtype, shape = _NUMPY_DTYPES[tensor.dtype], tuple(tensor.shape)
    want = dtype.itemsize
    for size in shape:  # in Python's integers: a product of hostile sizes must not wrap
        want *= size
    if is_packed:
        if want > max_unpacked_bytes:
            raise SchemaError(f"tensor {tensor.name!r} takes {want} bytes unpacked; {max_unpacked_bytes} are left")
        data = unpack(tensor.name, bytes(data), tensor.codec, want)
    if len(data) != want:
        raise SchemaError(f"tensor {tensor.name!r} has {len(data)} bytes; {dtype}{list(shape)} takes {want}")
    try:
        return np.frombuffer(data, dtype).reshape(shape)
    except ValueError:  # numpy refuses some sizes even where another one is 0
        raise SchemaError(f"tensor {tensor.name!r} has the impossible shape {list(shape)}") from None


def decode_column(name: str, data: Union[bytes, memoryview], dtype: str, shape: Tuple[int, ...]) -> npt.NDArray[Any]:
    """View a column whose dtype and shape the message fixes.

    Raises:
        SchemaError: the bytes are not as many as `shape` takes.
    """
    column_dtype = _COLUMN_DTYPES[dtype]
    want = column_dtype.itemsize
    for size in shape:
        want *= size
    if len(data) != want:
        raise SchemaError(f"column {name!r} has {len(data)} bytes; {dtype}{list(shape)} takes {want}")
    return np.frombuffer(data, column_dtype).reshape(shape)


def encode_schema(schema: Schema) -> experience_pb2.Schema:
    return experience_pb2.Schema(
        observation=[
            tensor_pb2.TensorSpec(name=s.name, dtype=_WIRE_DTYPES[s.dtype], shape=s.shape) for s in schema.observation
        ],
        action=experience_pb2.ActionSpec(
            low=schema.action.low, high=schema.action.high, num_actions=schema.action.num_actions
        ),
    )


def decode_schema(schema: experience_pb2.Schema) -> Schema:
    """Read a schema.

    Raises:
        SchemaError: it is not one.
    """
    if len(schema.observation) > MAX_TENSORS:
        raise SchemaError(f"the schema has {len(schema.observation)} observation tensors; it may have {MAX_TENSORS}")
    observation = []
    for spec in schema.observation:
        if len(spec.name) > _MAX_NAME_LENGTH or len(spec.shape) > _MAX_DIMENSIONS:
            raise SchemaError(f"observation {spec.name[:40]!r} has too long a name or a shape")
        if spec.dtype not in _NUMPY_DTYPES:
            raise SchemaError(f"observation {spec.name!r} has the unknown dtype number {spec.dtype}")
        observation.append(TensorSpec(spec.name, _NUMPY_DTYPES[spec.dtype].name, tuple(spec.shape)))
    action = schema.action
    return Schema(tuple(observation), ActionSpec(tuple(action.low), tuple(action.high), action.num_actions))


def encode_chunk(chunk: Chunk) -> experience_pb2.Chunk:
    """Pack a chunk; columns of critics that are all NaN are left out."""
    message = experience_pb2.Chunk()
    fill_chunk(message, chunk)
    return message


def fill_chunk(message: experience_pb2.Chunk, chunk: Chunk, codec: str = "none") -> None:
    """Pack a chunk into an empty message, in its place: handing a message to its parent copies every byte.

    Args:
        message: empty.
        chunk: what it is to hold.
        codec: how observations of uint8 are packed, a key of `services.common.packing.CODECS`.
    """
    message.lane_group = chunk.lane_group
    message.sequence = chunk.sequence
    message.first_step = chunk.first_step
    message.num_steps, message.num_lanes = chunk.num_steps, chunk.num_lanes
    packed = _ChunkBytes.of_chunk(chunk)
    packed.observation = _fill_packed(message.observation, chunk.observation, packed.observation, codec)
    describe_tensor(message.action, "action", chunk.action).data = packed.action
    message.reward, message.flags, message.policy_version = packed.reward, packed.flags, packed.policy_version
    message.q_taken, message.value = packed.q_taken, packed.value
    final = message.final
    final.step.extend(chunk.final.step.tolist())
    packed.final_observation = _fill_packed(final.observation, chunk.final.observation, packed.final_observation, codec)
    final.value, final.cut = packed.final_value, packed.final_cut
    message.acting_seconds = chunk.acting_seconds
    message.queued_seconds = chunk.queued_seconds
    message.newest_version = chunk.newest_version
    fill_counters(message.counters, chunk.counters)
    message.crc32c = packed.checksum()


def _fill_packed(
    messages: RepeatedCompositeFieldContainer[tensor_pb2.Tensor],
    columns: Mapping[str, npt.NDArray[Any]],
    raw: Sequence[bytes],
    codec: str,
) -> List[bytes]:
    """Add a tensor for each column, by name, with its bytes packed where it is an image; returns what travels."""
    sent: List[bytes] = []
    for name, data in zip(sorted(columns), raw):
        message = describe_tensor(messages.add(), name, columns[name])
        packed = data
        if columns[name].dtype == np.uint8:
            packed, message.codec = pack(data, codec)
        message.data = packed
        sent.append(packed)
    return sent


def fill_counters(message: experience_pb2.ActorCounters, counters: ActorCounters) -> None:
    """Write an actor's counters over those of `message`."""
    message.produced_steps = counters.produced_steps
    message.buffered_steps = counters.buffered_steps
    message.ClearField("dropped_steps")
    for reason, steps in counters.dropped_steps.items():
        message.dropped_steps[reason] = steps


def decode_chunk(message: experience_pb2.Chunk, schema: Optional[Schema] = None) -> Chunk:
    """View a chunk's columns; its shapes are still to be checked against a schema (`Chunk.check`).

    Args:
        message: of anybody.
        schema: of the table, if there is one: what is packed is then unpacked to no more than such rows take.

    Raises:
        ChecksumError: the columns' bytes are not those that were sent.
        SchemaError: sizes do not fit together.
    """
    final = message.final
    T, B, F = message.num_steps, message.num_lanes, len(final.step)  # noqa: N806 (the field's letters)
    if max(T, 1) * max(B, 1) + F > MAX_CHUNK_ROWS:  # lanes cost memory even where there are no steps
        raise SchemaError(f"the chunk claims {T} x {B} steps and {F} final observations; at most {MAX_CHUNK_ROWS} rows")
    if len(message.observation) > MAX_TENSORS or len(final.observation) > MAX_TENSORS:
        raise SchemaError(f"the chunk has {len(message.observation)} observation tensors; it may have {MAX_TENSORS}")
    packed = _ChunkBytes.of_message(message)
    if message.crc32c and message.crc32c != packed.checksum():
        raise ChecksumError("the chunk's bytes do not match its CRC32C: send it again")
    room = MAX_UNPACKED_BYTES
    if schema is not None:
        room = min(room, (T * B + F) * sum(spec.num_bytes for spec in schema.observation))
    observation = _view_tensors(message.observation, packed.observation, room)
    taken = sum(column.nbytes for column in observation.values())
    final_observation = _view_tensors(final.observation, packed.final_observation, room - taken)
    counters = message.counters
    return Chunk(
        lane_group=message.lane_group,
        sequence=message.sequence,
        first_step=message.first_step,
        observation=observation,
        action=view_tensor(message.action, packed.action),
        reward=decode_column("reward", packed.reward, "float32", (T, B)),
        flags=decode_column("flags", packed.flags, "uint8", (T, B)),
        policy_version=decode_column("policy_version", packed.policy_version, "int64", (T,)),
        q_taken=_decode_critic("q_taken", packed.q_taken, (T, B)),
        value=_decode_critic("value", packed.value, (T, B)),
        final=FinalObservations(
            step=packed.final_step.astype(np.int64),
            observation=final_observation,
            value=_decode_critic("final.value", packed.final_value, (F,)),
            cut=decode_column("final.cut", packed.final_cut, "bool", (F,)),
        ),
        acting_seconds=message.acting_seconds,
        queued_seconds=message.queued_seconds,
        newest_version=message.newest_version,
        counters=ActorCounters(counters.produced_steps, counters.buffered_steps, dict(counters.dropped_steps)),
    )


def chunk_checksum(message: experience_pb2.Chunk) -> int:
    """CRC32C over the columns' bytes in the order of their field numbers; 0 is kept for `not given`."""
    return _ChunkBytes.of_message(message).checksum()


@dataclass
class _ChunkBytes:
    """The bytes of a chunk's columns, each made once: every access of a message's field copies it."""

    observation: List[bytes]
    action: bytes
    reward: bytes
    flags: bytes
    policy_version: bytes
    q_taken: bytes
    value: bytes
    final_step: npt.NDArray[np.uint32]
    final_observation: List[bytes]
    final_value: bytes
    final_cut: bytes

    @classmethod
    def of_chunk(cls, chunk: Chunk) -> _ChunkBytes:
        final = chunk.final
        without_critics = bool(np.isnan(chunk.q_taken).all())
        return cls(
            observation=[_tensor_bytes(column) for _, column in sorted(chunk.observation.items())],
            action=_tensor_bytes(chunk.action),
            reward=chunk.reward.tobytes(),
            flags=chunk.flags.tobytes(),
            policy_version=chunk.policy_version.tobytes(),
            q_taken=b"" if without_critics else chunk.q_taken.tobytes(),
            value=b"" if without_critics else chunk.value.tobytes(),
            final_step=final.step.astype("<u4"),
            final_observation=[_tensor_bytes(column) for _, column in sorted(final.observation.items())],
            final_value=b"" if without_critics else final.value.tobytes(),
            final_cut=final.cut.tobytes(),
        )

    @classmethod
    def of_message(cls, message: experience_pb2.Chunk) -> _ChunkBytes:
        final = message.final
        return cls(
            observation=[tensor.data for tensor in message.observation],
            action=message.action.data,
            reward=message.reward,
            flags=message.flags,
            policy_version=message.policy_version,
            q_taken=message.q_taken,
            value=message.value,
            final_step=np.array(final.step, "<u4"),
            final_observation=[tensor.data for tensor in final.observation],
            final_value=final.value,
            final_cut=final.cut,
        )

    def checksum(self) -> int:
        """CRC32C in the order of the field numbers; 0 is kept for `not given`."""
        columns = [self.action, self.reward, self.flags, self.policy_version, self.q_taken, self.value]
        crc = 0
        for data in (*self.observation, *columns, self.final_step.tobytes()):
            crc = google_crc32c.extend(crc, data)
        for data in (*self.final_observation, self.final_value, self.final_cut):
            crc = google_crc32c.extend(crc, data)
        return int(crc) or 1


def describe_tensor(message: tensor_pb2.Tensor, name: str, array: npt.NDArray[Any]) -> tensor_pb2.Tensor:
    """Fill in all of an empty message but the bytes; returns it."""
    wire = _WIRE_DTYPES_BY_CODE.get(array.dtype.str[1:])
    if wire is None:
        raise SchemaError(f"tensor {name!r} has dtype {array.dtype}; known are {', '.join(_WIRE_DTYPES)}")
    message.name, message.dtype, message.codec = name, wire, tensor_pb2.CODEC_NONE
    message.shape.extend(array.shape)
    return message


def _tensor_bytes(array: npt.NDArray[Any]) -> bytes:
    """The bytes of an array in the wire's order, which is little-endian."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _view_tensors(
    tensors: Iterable[tensor_pb2.Tensor], data: Iterable[bytes], max_unpacked_bytes: int = 0
) -> Dict[str, npt.NDArray[Any]]:
    columns: Dict[str, npt.NDArray[Any]] = {}
    for tensor, its in zip(tensors, data):
        if tensor.name in columns:
            raise SchemaError(f"tensor {tensor.name!r} came twice in one message")
        columns[tensor.name] = view_tensor(tensor, its, max_unpacked_bytes)
        max_unpacked_bytes -= columns[tensor.name].nbytes
    return columns


def _decode_critic(name: str, data: bytes, shape: Tuple[int, ...]) -> npt.NDArray[np.float32]:
    return decode_column(name, data, "float32", shape) if data else np.full(shape, np.nan, np.float32)
