"""Between numpy and the wire: tensors, schemas, chunks, batches. Decoded arrays view the bytes of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, Sequence, Tuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from services.common.batch import Batch, DrawnKeys
from services.common.chunk import MAX_CHUNK_ROWS, ActorCounters, Chunk, FinalObservations
from services.common.schema import ActionSpec, Schema, SchemaError, TensorSpec
from shoal.v1 import experience_pb2, replay_pb2, tensor_pb2

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
# By kind and size, as in "f4": numpy makes a dtype's name anew each time that it is asked, and there are many columns.
_WIRE_DTYPES_BY_CODE = {np.dtype(name).str[1:]: wire for name, wire in _WIRE_DTYPES.items()}
_MAX_DIMENSIONS = 32  # of the oldest numpy that runs here


class ChecksumError(SchemaError):
    """Bytes were damaged on the way: the sender resends them."""


def encode_tensor(name: str, array: npt.NDArray[Any]) -> tensor_pb2.Tensor:
    """Pack one array of any shape.

    Raises:
        SchemaError: its dtype does not travel.
    """
    message = tensor_pb2.Tensor()
    _fill_tensor(message, name, array)
    return message


def decode_tensor(tensor: tensor_pb2.Tensor) -> npt.NDArray[Any]:
    """View a tensor's bytes as a read-only array of its shape.

    Raises:
        SchemaError: unknown dtype or codec, an impossible shape, or the bytes are not as many as the shape says.
    """
    if tensor.dtype not in _NUMPY_DTYPES:
        raise SchemaError(f"tensor {tensor.name!r} has the unknown dtype number {tensor.dtype}")
    if tensor.codec != tensor_pb2.CODEC_NONE:
        raise SchemaError(f"tensor {tensor.name!r} is packed with codec number {tensor.codec}; known is 1 (none)")
    if len(tensor.shape) > _MAX_DIMENSIONS:
        raise SchemaError(
            f"tensor {tensor.name!r} has {len(tensor.shape)} dimensions; no array has more than {_MAX_DIMENSIONS}"
        )
    dtype, shape = _NUMPY_DTYPES[tensor.dtype], tuple(tensor.shape)
    want = dtype.itemsize
    for size in shape:  # in Python's integers: a product of hostile sizes must not wrap
        want *= size
    data = tensor.data  # once: each access of the field makes a copy
    if len(data) != want:
        raise SchemaError(f"tensor {tensor.name!r} has {len(data)} bytes; {dtype}{list(shape)} takes {want}")
    try:
        return np.frombuffer(data, dtype).reshape(shape)
    except ValueError:  # numpy refuses some sizes even where another one is 0
        raise SchemaError(f"tensor {tensor.name!r} has the impossible shape {list(shape)}") from None


def decode_column(name: str, data: bytes, dtype: str, shape: Tuple[int, ...]) -> npt.NDArray[Any]:
    """View a column whose dtype and shape the message fixes.

    Raises:
        SchemaError: the bytes are not as many as `shape` takes.
    """
    column_dtype = _NUMPY_DTYPES[_WIRE_DTYPES[dtype]]
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
    observation = []
    for spec in schema.observation:
        if spec.dtype not in _NUMPY_DTYPES:
            raise SchemaError(f"observation {spec.name!r} has the unknown dtype number {spec.dtype}")
        observation.append(TensorSpec(spec.name, _NUMPY_DTYPES[spec.dtype].name, tuple(spec.shape)))
    action = schema.action
    return Schema(tuple(observation), ActionSpec(tuple(action.low), tuple(action.high), action.num_actions))


def encode_chunk(chunk: Chunk) -> experience_pb2.Chunk:
    """Pack a chunk; columns of critics that are all NaN are left out."""
    without_critics = bool(np.isnan(chunk.q_taken).all())
    message = experience_pb2.Chunk(
        lane_group=chunk.lane_group,
        sequence=chunk.sequence,
        first_step=chunk.first_step,
        num_steps=chunk.num_steps,
        num_lanes=chunk.num_lanes,
        reward=chunk.reward.tobytes(),
        flags=chunk.flags.tobytes(),
        policy_version=chunk.policy_version.tobytes(),
        q_taken=b"" if without_critics else chunk.q_taken.tobytes(),
        value=b"" if without_critics else chunk.value.tobytes(),
        final=experience_pb2.FinalObservations(
            step=chunk.final.step.tolist(),
            value=b"" if without_critics else chunk.final.value.tobytes(),
            cut=chunk.final.cut.tobytes(),
        ),
        acting_seconds=chunk.acting_seconds,
        queued_seconds=chunk.queued_seconds,
        newest_version=chunk.newest_version,
        counters=experience_pb2.ActorCounters(
            produced_steps=chunk.counters.produced_steps,
            buffered_steps=chunk.counters.buffered_steps,
            dropped_steps=chunk.counters.dropped_steps,
        ),
    )
    _fill_tensors(message.observation, chunk.observation)
    _fill_tensor(message.action, "action", chunk.action)
    _fill_tensors(message.final.observation, chunk.final.observation)
    message.crc32c = chunk_checksum(message)
    return message


def decode_chunk(message: experience_pb2.Chunk) -> Chunk:
    """View a chunk's columns; its shapes are still to be checked against a schema (`Chunk.check`).

    Raises:
        ChecksumError: the columns' bytes are not those that were sent.
        SchemaError: sizes do not fit together.
    """
    T, B, F = message.num_steps, message.num_lanes, len(message.final.step)  # noqa: N806 (the field's letters)
    if max(T, 1) * max(B, 1) + F > MAX_CHUNK_ROWS:  # lanes cost memory even where there are no steps
        raise SchemaError(f"the chunk claims {T} x {B} steps and {F} final observations; at most {MAX_CHUNK_ROWS} rows")
    if message.crc32c and message.crc32c != chunk_checksum(message):
        raise ChecksumError("the chunk's bytes do not match its CRC32C: send it again")
    final = message.final
    return Chunk(
        lane_group=message.lane_group,
        sequence=message.sequence,
        first_step=message.first_step,
        observation=_decode_tensors(message.observation),
        action=decode_tensor(message.action),
        reward=decode_column("reward", message.reward, "float32", (T, B)),
        flags=decode_column("flags", message.flags, "uint8", (T, B)),
        policy_version=decode_column("policy_version", message.policy_version, "int64", (T,)),
        q_taken=_decode_critic("q_taken", message.q_taken, (T, B)),
        value=_decode_critic("value", message.value, (T, B)),
        final=FinalObservations(
            step=np.array(final.step, np.int64),
            observation=_decode_tensors(final.observation),
            value=_decode_critic("final.value", final.value, (F,)),
            cut=decode_column("final.cut", final.cut, "bool", (F,)),
        ),
        acting_seconds=message.acting_seconds,
        queued_seconds=message.queued_seconds,
        newest_version=message.newest_version,
        counters=ActorCounters(
            message.counters.produced_steps,
            message.counters.buffered_steps,
            dict(message.counters.dropped_steps),
        ),
    )


def chunk_checksum(message: experience_pb2.Chunk) -> int:
    """CRC32C over the columns' bytes in the order of their field numbers; 0 is kept for `not given`."""
    parts = [tensor.data for tensor in message.observation]
    parts += [
        message.action.data,
        message.reward,
        message.flags,
        message.policy_version,
        message.q_taken,
        message.value,
    ]
    parts += [np.array(message.final.step, "<u4").tobytes()]
    parts += [tensor.data for tensor in message.final.observation]
    parts += [message.final.value, message.final.cut]
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return int(crc) or 1


def fill_batch(message: replay_pb2.SampledBatch, batch: Batch, age_seconds: npt.NDArray[np.float32]) -> None:
    """Pack a sampled batch into an empty message, in its place: handing a message to its parent copies every byte."""
    message.keys = batch.keys.tobytes()
    message.probability = batch.probability.tobytes()
    message.priority = batch.priority.tobytes()
    message.times_sampled = batch.times_sampled.tobytes()
    _fill_tensors(message.observation, batch.observation)
    _fill_tensor(message.action, "action", batch.action)
    message.n_step_return = batch.n_step_return.tobytes()
    message.discount = batch.discount.tobytes()
    _fill_tensors(message.next_observation, batch.next_observation)
    message.policy_version = batch.policy_version.tobytes()
    message.age_seconds = age_seconds.tobytes()


def fill_drawn(message: replay_pb2.SampledBatch, drawn: DrawnKeys) -> None:
    """Pack drawn keys, for a learner who gathers the rows itself, into an empty message."""
    message.keys = drawn.keys.tobytes()
    message.probability = drawn.probability.tobytes()
    message.priority = drawn.priority.tobytes()
    message.times_sampled = drawn.times_sampled.tobytes()
    message.bootstrap_keys = drawn.bootstrap_keys.tobytes()


def decode_drawn(messages: Sequence[replay_pb2.SampledBatch]) -> DrawnKeys:
    """The drawn keys of several messages, one after the other.

    Raises:
        SchemaError: the columns of one of them are not of one length.
    """
    counts = [len(message.keys) // 8 for message in messages]

    def joined(name: str, dtype: str) -> npt.NDArray[Any]:
        columns = [decode_column(name, getattr(m, name), dtype, (n,)) for m, n in zip(messages, counts)]
        return np.concatenate(columns)

    return DrawnKeys(
        keys=joined("keys", "int64"),
        probability=joined("probability", "float64"),
        priority=joined("priority", "float64"),
        times_sampled=joined("times_sampled", "int64"),
        bootstrap_keys=joined("bootstrap_keys", "int64"),
    )


def decode_batch(message: replay_pb2.SampledBatch, num_items: int) -> Batch:
    """View a sampled batch.

    Raises:
        SchemaError: its columns are not of one length.
    """
    n = len(message.keys) // 8
    return Batch(
        keys=decode_column("keys", message.keys, "int64", (n,)),
        probability=decode_column("probability", message.probability, "float64", (n,)),
        priority=decode_column("priority", message.priority, "float64", (n,)),
        times_sampled=decode_column("times_sampled", message.times_sampled, "int64", (n,)),
        observation=_decode_tensors(message.observation),
        action=decode_tensor(message.action),
        n_step_return=decode_column("n_step_return", message.n_step_return, "float32", (n,)),
        discount=decode_column("discount", message.discount, "float32", (n,)),
        next_observation=_decode_tensors(message.next_observation),
        policy_version=decode_column("policy_version", message.policy_version, "int64", (n,)),
        num_items=num_items,
    )


def _fill_tensor(message: tensor_pb2.Tensor, name: str, array: npt.NDArray[Any]) -> None:
    wire = _WIRE_DTYPES_BY_CODE.get(array.dtype.str[1:])
    if wire is None:
        raise SchemaError(f"tensor {name!r} has dtype {array.dtype}; known are {', '.join(_WIRE_DTYPES)}")
    message.name, message.dtype, message.codec = name, wire, tensor_pb2.CODEC_NONE
    message.shape.extend(array.shape)
    message.data = array.astype(_NUMPY_DTYPES[wire], copy=False).tobytes()


def _fill_tensors(
    messages: RepeatedCompositeFieldContainer[tensor_pb2.Tensor], columns: Dict[str, npt.NDArray[Any]]
) -> None:
    for name, column in sorted(columns.items()):
        _fill_tensor(messages.add(), name, column)


def _decode_tensors(tensors: Iterable[tensor_pb2.Tensor]) -> Dict[str, npt.NDArray[Any]]:
    columns: Dict[str, npt.NDArray[Any]] = {}
    for tensor in tensors:
        if tensor.name in columns:
            raise SchemaError(f"tensor {tensor.name!r} came twice in one message")
        columns[tensor.name] = decode_tensor(tensor)
    return columns


def _decode_critic(name: str, data: bytes, shape: Tuple[int, ...]) -> npt.NDArray[np.float32]:
    return decode_column(name, data, "float32", shape) if data else np.full(shape, np.nan, np.float32)
