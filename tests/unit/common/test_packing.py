from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common import packing
from services.common.packing import CODECS, MIN_BYTES, pack, unpack
from services.common.schema import SchemaError

pytest.importorskip("lz4")
pytest.importorskip("zstandard")

both = pytest.mark.parametrize("codec", ["lz4", "zstd"])


@given(
    codec=st.sampled_from(sorted(CODECS)),
    data=st.binary(max_size=4000)
    | st.builds(lambda byte, n: byte * n, st.binary(min_size=1, max_size=3), st.integers(0, 2000)),
)
@settings(deadline=None)
def test_what_was_packed_unpacks_to_the_same_bytes(codec: str, data: bytes) -> None:
    packed, how = pack(data, codec)
    assert len(packed) <= len(data)
    if how == CODECS["none"]:
        assert packed is data
    else:
        assert how == CODECS[codec]
        assert unpack("camera", packed, how, len(data)) == data


@both
def test_an_image_shrinks_and_noise_is_left_alone(codec: str) -> None:
    image = np.tile(np.arange(64, dtype=np.uint8), 200).tobytes()
    packed, how = pack(image, codec)
    assert how == CODECS[codec]
    assert len(packed) < len(image) / 10
    noise = np.random.default_rng(0).bytes(10_000)
    assert pack(noise, codec) == (noise, CODECS["none"])


@both
def test_little_is_not_worth_the_call(codec: str) -> None:
    assert pack(bytes(MIN_BYTES - 1), codec)[1] == CODECS["none"]
    assert pack(bytes(MIN_BYTES), codec)[1] == CODECS[codec]


@both
@pytest.mark.parametrize("claimed", [0, 9_999, 10_001])
def test_another_number_of_bytes_is_refused(codec: str, claimed: int) -> None:
    packed, how = pack(bytes(10_000), codec)
    with pytest.raises(SchemaError, match="'camera'"):
        unpack("camera", packed, how, claimed)


@both
def test_damaged_bytes_are_refused(codec: str) -> None:
    packed, how = pack(np.arange(20_000, dtype=np.uint16).tobytes()[:20_000] + bytes(20_000), codec)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        damaged = bytearray(packed)
        damaged[rng.integers(len(damaged))] ^= int(rng.integers(1, 256))
        try:
            assert len(unpack("camera", bytes(damaged), how, 40_000)) == 40_000
        except SchemaError:
            refused += 1
    assert refused > 0
    for junk in (b"", b"\0" * 20, packed[: len(packed) // 2]):
        with pytest.raises(SchemaError):
            unpack("camera", junk, how, 40_000)


def _peak_bytes(call: Any) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(SchemaError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@both
def test_a_bomb_is_refused_before_memory_is_taken(codec: str) -> None:
    bomb, how = pack(bytes(200_000_000), codec)
    assert len(bomb) < 1_000_000
    assert _peak_bytes(lambda: unpack("camera", bomb, how, 1000)) < 1_000_000


def test_a_frame_that_claims_little_and_holds_much_is_refused() -> None:
    import zstandard

    whole = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(1_000_000))
    size_at = whole.index(struct.pack("<I", 1_000_000))
    lying = whole[:size_at] + struct.pack("<I", 1000) + whole[size_at + 4 :]
    with pytest.raises(SchemaError):
        unpack("camera", lying, CODECS["zstd"], 1000)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1_000_000))
    with pytest.raises(SchemaError):
        unpack("camera", unsized, CODECS["zstd"], 1_000_000)


def test_the_most_that_is_unpacked_is_what_a_message_may_hold() -> None:
    from services.common.rpc import MAX_MESSAGE_BYTES

    assert packing.MAX_UNPACKED_BYTES == MAX_MESSAGE_BYTES
