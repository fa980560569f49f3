"""Packing of bytes on the wire by lz4 or zstd, and unpacking that takes no more memory than was agreed on."""

from __future__ import annotations

from typing import Dict, Tuple

from services.common.schema import SchemaError
from shoal.v1 import tensor_pb2

MIN_BYTES = 512  # less than this is not worth the call
MAX_UNPACKED_BYTES = 256 * 1024 * 1024  # of one chunk: as much as a message without packing could carry
ZSTD_LEVEL = 1  # on camera images, higher levels take several times as long for a few percent

CODECS: Dict[str, tensor_pb2.Codec.ValueType] = {
    "none": tensor_pb2.CODEC_NONE,
    "lz4": tensor_pb2.CODEC_LZ4,
    "zstd": tensor_pb2.CODEC_ZSTD,
}


def pack(data: bytes, codec: str) -> Tuple[bytes, tensor_pb2.Codec.ValueType]:
    """Pack bytes, or leave them as they are where that is no shorter.

    Args:
        data: to be packed.
        codec: a key of `CODECS`.

    Returns:
        The bytes that travel, and how they are packed.
    """
    packed = data
    if codec != "none" and len(data) >= MIN_BYTES:
        packed = _pack_lz4(data) if codec == "lz4" else _pack_zstd(data)
    return (packed, CODECS[codec]) if len(packed) < len(data) else (data, tensor_pb2.CODEC_NONE)


def unpack(name: str, data: bytes, codec: tensor_pb2.Codec.ValueType, num_bytes: int) -> bytes:
    """Unpack exactly `num_bytes` bytes; packed data that would give more are refused before memory is taken.

    Args:
        name: of the tensor, for the sentence.
        data: as they came.
        codec: CODEC_LZ4 or CODEC_ZSTD.
        num_bytes: what the tensor's shape and dtype take.

    Raises:
        SchemaError: the bytes are damaged, or give another number of bytes.
    """
    try:
        unpacked = _unpack_lz4(data, num_bytes) if codec == tensor_pb2.CODEC_LZ4 else _unpack_zstd(data, num_bytes)
    except ValueError as error:
        raise SchemaError(f"tensor {name!r} cannot be unpacked into its {num_bytes} bytes: {error}") from None
    if len(unpacked) != num_bytes:
        raise SchemaError(f"tensor {name!r} unpacks into {len(unpacked)} bytes; its shape takes {num_bytes}")
    return unpacked


def _pack_lz4(data: bytes) -> bytes:
    import lz4.block

    packed: bytes = lz4.block.compress(data, store_size=False)
    return packed


def _pack_zstd(data: bytes) -> bytes:
    import zstandard

    packed: bytes = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)
    return packed


def _unpack_lz4(data: bytes, num_bytes: int) -> bytes:
    import lz4.block

    try:
        unpacked: bytes = lz4.block.decompress(data, uncompressed_size=num_bytes)
    except lz4.block.LZ4BlockError as error:
        raise ValueError(str(error)) from None
    return unpacked


def _unpack_zstd(data: bytes, num_bytes: int) -> bytes:
    import zstandard

    try:
        # The frame's own word decides how much memory is taken: it must be ours.
        claimed = zstandard.frame_content_size(data)
        if claimed != num_bytes:
            raise ValueError(f"the frame claims {claimed} bytes")
        unpacked: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=num_bytes)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    return unpacked
