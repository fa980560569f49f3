"""What a message may hold, judged by its bytes: protobuf takes forty times the memory of many empty fields.

A message of two bytes a field parses into objects of eighty bytes each, and numbers of one byte each into arrays of
eight. So the fields of a large message are counted before it is parsed, down through the messages in it.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple, Union

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from services.common.wire import WireError, read_varint

UNCOUNTED_BYTES = 1 << 16  # of a message that is parsed as it is: whatever it holds takes a few megabytes
MAX_FIELDS = 1 << 14  # of a message and all messages in it; the largest of ours has some hundred
MAX_PACKED_BYTES = 8 << 20  # of all fields of numbers together: a chunk's final steps take 3 MiB at most

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_PLAIN_BYTES = (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING)

Kinds = Dict[int, Tuple[int, Any]]  # number of a field -> its type, and the descriptor of its message


def check_bounds(
    message: Union[bytes, memoryview], descriptor: Descriptor, uncounted_bytes: int = UNCOUNTED_BYTES
) -> None:
    """Refuse a message that would take far more memory than it has bytes; one that is small is not looked at.

    Args:
        message: encoded, of any content.
        descriptor: of what it is to be parsed as.
        uncounted_bytes: a message of so many is small.

    Raises:
        WireError: it has too many fields, too many packed numbers, or is no message; one sentence says which.
    """
    if len(message) > uncounted_bytes:
        _count(memoryview(message), descriptor, _Room())


class _Room:
    """What there may still be in a message."""

    def __init__(self) -> None:
        self._fields = MAX_FIELDS
        self._packed_bytes = MAX_PACKED_BYTES

    def take_field(self) -> None:
        self._fields -= 1
        if self._fields < 0:
            raise WireError(f"the message has more than {MAX_FIELDS} fields")

    def take_packed(self, num_bytes: int, number: int) -> None:
        self._packed_bytes -= num_bytes
        if self._packed_bytes < 0:
            raise WireError(
                f"up to field {number} the message packs more than {MAX_PACKED_BYTES} bytes of numbers in all"
            )


def _count(view: memoryview, descriptor: Descriptor, room: _Room) -> None:
    """Take the fields of `view`, and those of the messages in it."""
    kinds: Kinds = {field.number: (field.type, field.message_type) for field in descriptor.fields}
    at, end = 0, len(view)
    while at < end:
        room.take_field()
        tag, at = read_varint(view, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            _, at = read_varint(view, at)
        elif wire_type == _LENGTH_DELIMITED:
            size, at = read_varint(view, at)
            begin, at = at, at + size
            if at > end:
                break
            kind, inner = kinds.get(number, (FieldDescriptor.TYPE_BYTES, None))
            if inner is not None:
                _count(view[begin:at], inner, room)
            elif kind not in _PLAIN_BYTES:
                room.take_packed(size, number)
        elif wire_type in _FIXED_BYTES:
            at += _FIXED_BYTES[wire_type]
        else:
            raise WireError(f"a field has the unknown wire type {wire_type}")
    if at > end:
        raise WireError("the message ends in the middle of a field")
