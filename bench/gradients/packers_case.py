"""Other packers of the same codes, in zstd's place. A variant is "packer order", as in "lz4 columns"."""

from __future__ import annotations

import importlib
import sys
import zlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Tuple

import numpy as np

from bench.gradients.codec_case import CodecCase
from bench.gradients.recording import Gradients, Recording
from bench.gradients.shoal_case import BLOCK_SIZE
from services.learner.gradients import EncodedGradients, GradientEncoder, decode_gradients

Pack = Callable[[bytes], bytes]


def packer(name: str) -> Tuple[Pack, Pack]:
    """A packer and its inverse, at its fastest level that still codes what does not repeat."""
    if name == "zstd":
        zstandard: Any = importlib.import_module("zstandard")
        return zstandard.ZstdCompressor(level=1).compress, zstandard.ZstdDecompressor().decompress
    if name == "lz4":
        lz4: Any = importlib.import_module("lz4.frame")
        return lz4.compress, lz4.decompress
    if name == "isal":
        isal: Any = importlib.import_module("isal.isal_zlib")
        return lambda data: isal.compress(data, 1), isal.decompress
    if name == "zlib-ng":
        zlib_ng: Any = importlib.import_module("zlib_ng.zlib_ng")
        return lambda data: _deflate(zlib_ng, data, zlib.Z_RLE), zlib_ng.decompress
    if name == "brotli":
        brotli: Any = importlib.import_module("brotli")
        return lambda data: brotli.compress(data, quality=1), brotli.decompress
    return lambda data: _deflate(zlib, data, zlib.Z_HUFFMAN_ONLY), zlib.decompress


def _deflate(module: Any, data: bytes, strategy: int) -> bytes:
    stream = module.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    packed: bytes = stream.compress(data) + stream.flush()
    return packed


@dataclass(frozen=True)
class Packed:
    """A push whose codes are packed beside it."""

    encoded: EncodedGradients
    turned: List[bytes]
    packed: List[bytes]


class PackedCodec:
    def __init__(self, variant: str, recording: Recording) -> None:
        name, order = variant.split()
        self._pack, self._unpack = packer(name)
        self._by_columns = order == "columns"
        self._expected: Dict[str, Tuple[int, ...]] = recording.shapes
        self._encoder = GradientEncoder("int8", BLOCK_SIZE, True, "none")

    def encode(self, gradients: Gradients) -> Packed:
        encoded = self._encoder.encode(gradients)
        self._encoder.commit()
        turned = [self._turn(segment.data, tuple(segment.shape)) for segment in encoded.segments]
        return Packed(encoded, turned, [self._pack(data) for data in turned])

    def decode(self, sent: Packed) -> Mapping[str, Any]:
        if [self._unpack(data) for data in sent.packed] != sent.turned:
            raise RuntimeError("what was packed does not come back")
        return decode_gradients(sent.encoded.segments, sent.encoded.crc32c, self._expected)

    def num_bytes(self, sent: Packed) -> int:
        saved = sum(max(0, len(turned) - len(packed)) for turned, packed in zip(sent.turned, sent.packed))
        return sent.encoded.num_bytes - saved

    def _turn(self, data: bytes, shape: Tuple[int, ...]) -> bytes:
        if not self._by_columns or len(shape) < 2:
            return data
        return np.frombuffer(data, np.int8).reshape(shape).swapaxes(-1, -2).tobytes()


if __name__ == "__main__":
    sys.exit(CodecCase(PackedCodec).serve())
