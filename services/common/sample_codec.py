"""Between numpy and the wire: the items that a Sample draws. Nothing is copied but once, into the message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from services.common.batch import Batch, DrawnKeys, Stamps
from services.common.codec import decode_column, describe_tensor, view_tensor
from services.common.schema import SchemaError
from services.common.stamps_codec import PackedStamps, StampSource
from services.common.wire import Packed, WireError, take_out
from shoal.v1 import replay_pb2, tensor_pb2

Columns = Tuple[Tuple[str, str], ...]

# Columns [N] by name, which is the same in the message and in `DrawnKeys`, `Batch` and `PackedStamps`, and dtype.
_DRAW: Columns = (
    ("keys", "int64"),
    ("probability", "float64"),
    ("priority", "float64"),
    ("times_sampled", "int64"),
)
_KEYS_ALONE: Columns = (*_DRAW, ("bootstrap_keys", "int64"))
_WITH_ROWS: Columns = (
    *_DRAW,
    ("n_step_return", "float32"),
    ("discount", "float32"),
    ("policy_version", "int64"),
)
_STAMPS: Columns = (
    ("actor_index", "uint32"),
    ("known_version", "uint32"),
    ("arrival_version", "uint32"),
    ("acting_seconds", "float32"),
    ("transit_seconds", "float32"),
    ("age_seconds", "float32"),
)

_NUMBERS = {field.name: field.number for field in replay_pb2.SampledItems.DESCRIPTOR.fields}
_ITEMS = replay_pb2.SampleResponse.DESCRIPTOR.fields_by_name["items"].number
_DATA = tensor_pb2.Tensor.DESCRIPTOR.fields_by_name["data"].number


def pack_batch(batch: Batch, stamps: Optional[PackedStamps] = None) -> Packed:
    """Pack items with their rows, and stamps if there are any, as a `SampledItems`; until `join` no array may change.

    Raises:
        SchemaError: a dtype does not travel.
    """
    message = Packed()
    _pack_columns(message, batch, _WITH_ROWS)
    if stamps is not None:
        _pack_columns(message, stamps, _STAMPS)
    for field, columns in (("observation", batch.observation), ("next_observation", batch.next_observation)):
        for name, column in sorted(columns.items()):
            message.add_field(_NUMBERS[field], _pack_tensor(name, column))
    message.add_field(_NUMBERS["action"], _pack_tensor("action", batch.action))
    return message


def pack_drawn(drawn: DrawnKeys, stamps: Optional[PackedStamps] = None) -> Packed:
    """Pack drawn keys, for a learner who gathers the rows itself, with their stamps as `pack_batch`."""
    message = Packed()
    _pack_columns(message, drawn, _KEYS_ALONE)
    if stamps is not None:
        _pack_columns(message, stamps, _STAMPS)
    return message


def pack_response(response: replay_pb2.SampleResponse, items: Optional[Packed]) -> bytes:
    """Encode `response`, which has no `items` of its own, with those of a `SampledItems`, if there are any."""
    message = Packed()
    message.add(response.SerializeToString())
    if items is not None:
        message.add_field(_ITEMS, items)
    return message.join()


@dataclass(frozen=True)
class SampleAnswer:
    """A `SampleResponse` whose items were left in the bytes that came."""

    response: replay_pb2.SampleResponse  # all but `items`
    items: Optional[Union[bytes, memoryview]]  # an encoded `SampledItems`, or None where nothing was drawn


def read_response(data: bytes) -> SampleAnswer:
    """Read an encoded `SampleResponse`.

    Raises:
        WireError: it is none.
    """
    rest, found = take_out(data, (_ITEMS,))
    parts = found.get(_ITEMS, [])
    items = parts[0] if len(parts) == 1 else b"".join(parts)  # what came in parts is one message, by protobuf's rules
    try:
        response = replay_pb2.SampleResponse.FromString(rest)
    except DecodeError as error:
        raise WireError(f"it is no response to a Sample ({error})") from None
    return SampleAnswer(response, items if parts else None)


def decode_batch(items: Union[bytes, memoryview], num_items: int, source: Optional[StampSource] = None) -> Batch:
    """View an encoded `SampledItems` with rows, of a table of `num_items` items: all batches of a call as one.

    It has stamps if `source` is given.

    Raises:
        SchemaError: its columns are not of one length, or an item is of an actor that `source` does not name.
        WireError: it is no message.
    """
    fields = _Fields(items)
    return Batch(
        **fields.columns(_WITH_ROWS),
        observation=fields.tensors("observation"),
        action=fields.action(),
        next_observation=fields.tensors("next_observation"),
        num_items=num_items,
        stamps=fields.stamps(source),
    )


def decode_drawn(items: Union[bytes, memoryview], source: Optional[StampSource] = None) -> DrawnKeys:
    """View an encoded `SampledItems` of keys alone: all batches of a call as one, with stamps if `source` is given.

    Raises:
        SchemaError: as `decode_batch`.
        WireError: it is no message.
    """
    fields = _Fields(items)
    return DrawnKeys(**fields.columns(_KEYS_ALONE), stamps=fields.stamps(source))


class _Fields:
    """The fields of an encoded `SampledItems`; each is one of bytes or a message."""

    def __init__(self, items: Union[bytes, memoryview]) -> None:
        _, self._found = take_out(items, tuple(_NUMBERS.values()))
        self._num_items = len(self._last("keys")) // 8

    def columns(self, columns: Columns) -> Dict[str, Any]:
        shape = (self._num_items,)
        return {name: decode_column(name, self._last(name), dtype, shape) for name, dtype in columns}

    def stamps(self, source: Optional[StampSource]) -> Optional[Stamps]:
        return PackedStamps(source=source, **self.columns(_STAMPS)).unpack() if source is not None else None

    def tensors(self, field: str) -> Dict[str, npt.NDArray[Any]]:
        found: Dict[str, npt.NDArray[Any]] = {}
        for encoded in self._found.get(_NUMBERS[field], []):
            name, array = self._tensor(encoded)
            if name in found:
                raise SchemaError(f"tensor {name!r} came twice in one message")
            found[name] = array
        return found

    def action(self) -> npt.NDArray[Any]:
        return self._tensor(self._last("action"))[1]

    def _last(self, name: str) -> memoryview:
        """Of a field that came several times the last counts, and one that did not come is empty."""
        values: List[memoryview] = self._found.get(_NUMBERS[name], [])
        return values[-1] if values else memoryview(b"")

    def _tensor(self, encoded: memoryview) -> Tuple[str, npt.NDArray[Any]]:
        rest, found = take_out(encoded, (_DATA,))
        try:
            tensor = tensor_pb2.Tensor.FromString(rest)
        except DecodeError as error:
            raise WireError(f"it is no tensor ({error})") from None
        array = view_tensor(tensor, found[_DATA][-1] if _DATA in found else b"")
        if array.shape[:1] != (self._num_items,):
            raise SchemaError(
                f"tensor {tensor.name!r} has the shape {list(array.shape)}, and there are {self._num_items} items"
            )
        return tensor.name, array


def _pack_columns(message: Packed, source: Union[Batch, DrawnKeys, PackedStamps], columns: Columns) -> None:
    for name, dtype in columns:
        column = getattr(source, name)
        message.add_field(_NUMBERS[name], _in_wire_order(column.astype(dtype, copy=False)))


def _pack_tensor(name: str, array: npt.NDArray[Any]) -> Packed:
    tensor = Packed()
    tensor.add(describe_tensor(tensor_pb2.Tensor(), name, array).SerializeToString())
    tensor.add_field(_DATA, _in_wire_order(array))
    return tensor


def _in_wire_order(array: npt.NDArray[Any]) -> memoryview:
    """The array's memory, or that of a copy where it is not in one piece and little-endian."""
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).data
