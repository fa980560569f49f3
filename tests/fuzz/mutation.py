"""Mutations of bytes: what damages files and messages, and what somebody would try who means harm."""

from __future__ import annotations

import random
from typing import Callable, List, Sequence

EXTREMES = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x80",
    b"\xff" * 8,
    b"\x00\x00\x00\x00\x00\x00\xf0\x7f",  # +Inf
    b"\x00\x00\x00\x00\x00\x00\xf8\x7f",  # NaN
    b"\x00\x00\x80\x7f",
    b"\x00\x00\xc0\x7f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # the largest varint
    b"\x80\x80\x80\x80\x10",
    b"NaN",
    b"1e999",
    b"-1",
    b"null",
    b"[" * 50,
    b"../../x",
    b"\xf0\x9f\x98\x80",
)
MAX_BYTES = 1 << 16  # of an input: what takes longer to look at finds nothing more

Mutator = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Apply one to six random changes to `data`; `others` are inputs that parts are taken from."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        rng.choice(MUTATORS)(changed, rng, others)
    return bytes(changed[:MAX_BYTES])


def _place(data: bytearray, rng: random.Random) -> int:
    return rng.randint(0, len(data))


def _flip(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _put_extreme(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    at, extreme = _place(data, rng), rng.choice(EXTREMES)
    end = at + len(extreme) if rng.random() < 0.7 else at
    data[at:end] = extreme


def _cut_end(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    del data[_place(data, rng) :]


def _cut_out(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    at = _place(data, rng)
    del data[at : at + rng.randint(1, 32)]


def _double(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    at = _place(data, rng)
    part = bytes(data[at : at + rng.randint(1, 64)])
    data[at:at] = part * rng.choice((1, 1, 2, 40))


def _splice(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    other = rng.choice(others) if others else b""
    begin = rng.randint(0, len(other))
    at = _place(data, rng)
    data[at : at + rng.randint(0, 64)] = other[begin : begin + rng.randint(0, 256)]


def _noise(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    at = _place(data, rng)
    data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 32)))


MUTATORS: List[Mutator] = [_flip, _set_byte, _put_extreme, _cut_end, _cut_out, _double, _splice, _noise]
