from __future__ import annotations

import builtins
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from services.common.errors import UserError
from services.learner.gradients.faults import BadGradient
from services.learner.gradients.packing import PACKINGS, Packer, Unpacker, unswap
from shoal.v1 import gradients_pb2 as pb2
from tests.unit.learner.gradients.arrays import patient

CODES = st.sampled_from([np.int8, np.float16, np.float32]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=40), fill=st.just(0))
)


@pytest.mark.parametrize("packing", PACKINGS)
@patient
@given(codes=CODES)
def test_codes_come_back_bit_for_bit(packing: str, codes: np.ndarray) -> None:
    data, number, order = Packer(packing).pack(codes)
    unpacked = Unpacker().unpack(data, number, codes.nbytes, "x")
    again = unswap(np.frombuffer(unpacked, codes.dtype), codes.shape, order, "x")
    assert again.tobytes() == codes.tobytes()
    assert len(data) <= codes.nbytes


@pytest.mark.parametrize("packing", ["zstd", "zlib"])
def test_a_packer_turns_one_tensor_after_another(packing: str) -> None:
    packer = Packer(packing)
    rng = np.random.default_rng(0)
    for shape in ((40, 30), (50, 60), (4, 50)):
        codes = rng.integers(-3, 4, shape).astype(np.int8)
        data, number, order = packer.pack(codes)
        assert order == pb2.GRADIENT_ORDER_COLUMNS
        unpacked = np.frombuffer(Unpacker().unpack(data, number, codes.nbytes, "x"), np.int8)
        np.testing.assert_array_equal(unswap(unpacked, shape, order, "x").reshape(shape), codes)


@pytest.mark.parametrize("packing", ["zstd", "zlib"])
def test_columns_of_zeros_cost_nothing(packing: str) -> None:
    codes = np.random.default_rng(0).integers(-127, 128, (64, 64)).astype(np.int8)
    codes[:, 32:] = 0
    codes = codes[:, np.random.default_rng(1).permutation(64)]
    assert len(Packer(packing).pack(np.ascontiguousarray(codes))[0]) < 0.56 * codes.size


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_does_not_shrink_is_sent_as_it_is(packing: str) -> None:
    codes = np.random.default_rng(0).integers(-128, 128, 4096).astype(np.int8)
    assert Packer(packing).pack(codes) == (codes.tobytes(), pb2.GRADIENT_PACKING_NONE, pb2.GRADIENT_ORDER_ROWS)


def test_an_unknown_packing_is_refused() -> None:
    with pytest.raises(ValueError, match="packing is 'lz4'; known are none, zstd, zlib"):
        Packer("lz4")
    for number in (pb2.GRADIENT_PACKING_UNSPECIFIED, 99):
        with pytest.raises(BadGradient, match=f"unknown packing number {number}"):
            Unpacker().unpack(b"1", number, 1, "x")


def test_zstd_without_its_package_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "zstandard":
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="install shoal"):
        Packer("zstd")
    Packer("zlib")


def _zstd(content: bytes, **parameters: Any) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    packed: bytes = zstandard.ZstdCompressor(**parameters).compress(content)
    return packed


def test_a_zstd_bomb_is_refused_by_its_claim() -> None:
    bomb = _zstd(bytes(100 << 20))
    assert len(bomb) < 20_000
    with pytest.raises(BadGradient, match="unpacks to 104857600 bytes; its shape takes 1000"):
        Unpacker().unpack(bomb, pb2.GRADIENT_PACKING_ZSTD, 1000, "x")


def test_a_zstd_frame_that_claims_nothing_is_refused() -> None:
    with pytest.raises(BadGradient, match="its shape takes 5"):
        Unpacker().unpack(_zstd(b"12345", write_content_size=False), pb2.GRADIENT_PACKING_ZSTD, 5, "x")


def test_a_zstd_frame_that_lies_is_refused() -> None:
    longer = bytearray(_zstd(bytes(range(200)) * 4))
    claim = longer.index((800 - 256).to_bytes(2, "little"))  # the field of two bytes counts from 256
    longer[claim : claim + 2] = (400 - 256).to_bytes(2, "little")
    with pytest.raises(BadGradient, match=r"cannot be unpacked by zstd|has \d+ bytes"):
        Unpacker().unpack(bytes(longer), pb2.GRADIENT_PACKING_ZSTD, 400, "x")


def test_a_zlib_bomb_takes_no_more_than_the_shape() -> None:
    bomb = zlib.compress(bytes(100 << 20), 9)
    with pytest.raises(BadGradient, match="does not unpack by zlib to the 1000 bytes"):
        Unpacker().unpack(bomb, pb2.GRADIENT_PACKING_ZLIB, 1000, "x")


@pytest.mark.parametrize("packing", ["zstd", "zlib"])
def test_truncated_and_lengthened_data_are_refused(packing: str) -> None:
    content = bytes(64)
    whole = _zstd(content) if packing == "zstd" else zlib.compress(content)
    number, unpacker = PACKINGS[packing], Unpacker()
    assert unpacker.unpack(whole, number, 64, "x") == content
    for damaged in (*(whole[:end] for end in range(len(whole))), whole + b"x", whole + whole):
        with pytest.raises(BadGradient):
            unpacker.unpack(damaged, number, 64, "x")


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_tensor_without_values_has_no_bytes(packing: str) -> None:
    number = PACKINGS[packing]
    assert Unpacker().unpack(b"", number, 0, "x") == b""
    with pytest.raises(BadGradient, match="its shape takes 0"):
        Unpacker().unpack(_zstd(b"") if packing == "zstd" else zlib.compress(b""), number, 0, "x")


@patient
@given(data=st.binary(max_size=60), number=st.sampled_from([2, 3]))
def test_no_bytes_do_anything_but_be_refused_or_unpack_to_the_size(data: bytes, number: int) -> None:
    try:
        assert len(Unpacker().unpack(data, number, 16, "x")) == 16
    except BadGradient:
        pass


def test_an_order_that_the_tensor_has_not_is_refused() -> None:
    codes = np.zeros(6, np.int8)
    with pytest.raises(BadGradient, match="unknown order number 3"):
        unswap(codes, (2, 3), 3, "x")
    with pytest.raises(BadGradient, match="has none"):
        unswap(codes, (6,), pb2.GRADIENT_ORDER_COLUMNS, "x")
