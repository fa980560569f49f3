"""Large fields of messages straight to and from the wire: protobuf itself copies each of their bytes four times.

What is written here is what protobuf would write, and it reads what protobuf writes, in any order of the fields.
https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple, Union

Buffer = Union[bytes, memoryview]  # the latter of any shape, in one piece

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5  # wire types
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10


class WireError(ValueError):
    """The bytes are no message."""


class Packed:
    """The parts of a message that is being packed, which are not copied until `join`."""

    def __init__(self) -> None:
        self._parts: List[Buffer] = []
        self.num_bytes = 0

    def add(self, encoded: Buffer) -> None:
        """Append fields that are encoded already, such as a message without its large fields."""
        self._parts.append(encoded)
        self.num_bytes += _size(encoded)

    def add_field(self, number: int, value: Union[Buffer, Packed]) -> None:
        """Append a field of bytes, or a message."""
        size = value.num_bytes if isinstance(value, Packed) else _size(value)
        self.add(_varint(number << 3 | _LENGTH_DELIMITED) + _varint(size))
        if isinstance(value, Packed):
            self._parts += value._parts
            self.num_bytes += size
        else:
            self.add(value)

    def join(self) -> bytes:
        """The message."""
        return b"".join(self._parts)


def take_out(message: Union[bytes, memoryview], numbers: Sequence[int]) -> Tuple[bytes, Dict[int, List[memoryview]]]:
    """Separate a message's large fields from the others; nothing but the others is copied.

    Args:
        message: encoded.
        numbers: of fields of bytes, or messages.

    Returns:
        The message without those fields, encoded; and by number the values of those that are there, in their order.

    Raises:
        WireError: it is no message, or ends in the middle of a field.
    """
    view = memoryview(message)
    rest: List[memoryview] = []
    found: Dict[int, List[memoryview]] = {}
    at, end = 0, len(view)
    while at < end:
        begin = at
        tag, at = read_varint(view, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            _, at = read_varint(view, at)
        elif wire_type == _LENGTH_DELIMITED:
            size, at = read_varint(view, at)
            at += size
            if number in numbers and at <= end:
                found.setdefault(number, []).append(view[at - size : at])
                continue
        elif wire_type in _FIXED_BYTES:
            at += _FIXED_BYTES[wire_type]
        else:
            raise WireError(f"a field has the unknown wire type {wire_type}")
        if at > end:
            raise WireError(f"the message ends in the middle of its field {number}")
        rest.append(view[begin:at])
    return b"".join(rest), found


def _size(value: Buffer) -> int:
    return len(value) if isinstance(value, bytes) else value.nbytes


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(view: memoryview, at: int) -> Tuple[int, int]:
    """The number at `at`, and where it ends.

    Raises:
        WireError: it has no end.
    """
    value = 0
    for place, byte in enumerate(view[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise WireError("a number of the message has no end")
