"""Lossless packing of codes: an entropy coder over them, column by column.

Units of a layer that no sample of the batch activates have gradients of zero: in a weight [in, out] a column of zeros,
which swapping the two dimensions makes a run, so that it costs nothing instead of a bit a value. The rest are numbers
without repetition, where a Huffman coder does all that can be done cheaply.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Optional, Protocol, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from services.common.errors import UserError
from services.learner.gradients.faults import BadGradient
from shoal.v1 import gradients_pb2 as pb2

if TYPE_CHECKING:
    import zstandard

PACKINGS = {
    "none": pb2.GRADIENT_PACKING_NONE,
    "zstd": pb2.GRADIENT_PACKING_ZSTD,
    "zlib": pb2.GRADIENT_PACKING_ZLIB,
}
_LEAST_BYTES = 64  # below it a frame's own bytes outweigh what it saves


class Compressor(Protocol):
    """Bytes in, fewer bytes out."""

    def compress(self, data: Any) -> bytes: ...


class Packer:
    """Packs the codes of one tensor after another."""

    def __init__(self, packing: str) -> None:
        """Choose a packing.

        Args:
            packing: "none", "zstd" (the smallest and the fastest) or "zlib" (of the standard library).

        Raises:
            ValueError: there is no such packing.
            UserError: zstd was asked for, and the package is not installed.
        """
        if packing not in PACKINGS:
            raise ValueError(f"packing is {packing!r}; known are {', '.join(PACKINGS)}")
        self._packing = PACKINGS[packing]
        self._compressor = _compressor(packing)
        self._turned = np.empty(0, np.uint8)

    def pack(self, codes: npt.NDArray[Any]) -> Tuple[bytes, pb2.GradientPacking.ValueType, pb2.GradientOrder.ValueType]:
        """Pack codes of any dtype in the tensor's shape; those that would not shrink stay as they are."""
        if self._compressor is not None and codes.nbytes >= _LEAST_BYTES:
            has_columns = codes.ndim > 1 and codes.shape[-1] > 1 and codes.shape[-2] > 1
            packed = self._compressor.compress(self._turn(codes) if has_columns else codes.data)
            if len(packed) < codes.nbytes:
                order = pb2.GRADIENT_ORDER_COLUMNS if has_columns else pb2.GRADIENT_ORDER_ROWS
                return packed, self._packing, order
        return codes.tobytes(), pb2.GRADIENT_PACKING_NONE, pb2.GRADIENT_ORDER_ROWS

    def _turn(self, codes: npt.NDArray[Any]) -> memoryview:
        """The codes' bytes with the last two dimensions swapped, in a buffer that the next tensor reuses."""
        if self._turned.nbytes < codes.nbytes:
            self._turned = np.empty(codes.nbytes, np.uint8)
        swapped = codes.swapaxes(-1, -2)
        turned = self._turned[: codes.nbytes].view(codes.dtype).reshape(swapped.shape)
        np.copyto(turned, swapped)
        return turned.data


class Unpacker:
    """Unpacks to sizes that are known before, and to no more."""

    def __init__(self) -> None:
        self._zstd: Optional[zstandard.ZstdDecompressor] = None  # made by the first that needs it

    def unpack(self, data: bytes, packing: int, num_bytes: int, tensor: str) -> bytes:
        """The bytes that were packed.

        Args:
            data: of the wire.
            packing: number of the wire.
            num_bytes: that the tensor's shape takes; no more memory is taken.
            tensor: name, for messages.

        Raises:
            BadGradient: an unknown packing, damaged data, or another number of bytes.
        """
        if packing == pb2.GRADIENT_PACKING_NONE or num_bytes == 0:  # packing does not make nothing smaller
            unpacked = data
        elif packing == pb2.GRADIENT_PACKING_ZSTD:
            unpacked = self._unpack_zstd(data, num_bytes, tensor)
        elif packing == pb2.GRADIENT_PACKING_ZLIB:
            unpacked = _unpack_zlib(data, num_bytes, tensor)
        else:
            raise BadGradient(f"the gradient of {tensor!r} has the unknown packing number {packing}; known are 1 to 3")
        if len(unpacked) != num_bytes:
            raise BadGradient(f"the gradient of {tensor!r} has {len(unpacked)} bytes; its shape takes {num_bytes}")
        return unpacked

    def _unpack_zstd(self, data: bytes, num_bytes: int, tensor: str) -> bytes:
        import zstandard

        try:
            # The library takes as much memory as the frame claims, so the claim is read before.
            claimed = zstandard.frame_content_size(data)
            if claimed != num_bytes:
                raise BadGradient(f"the gradient of {tensor!r} unpacks to {claimed} bytes; its shape takes {num_bytes}")
            if self._zstd is None:
                self._zstd = zstandard.ZstdDecompressor()
            return self._zstd.decompress(data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise BadGradient(f"the gradient of {tensor!r} cannot be unpacked by zstd: {error}") from None


def unswap(codes: npt.NDArray[Any], shape: Sequence[int], order: int, tensor: str) -> npt.NDArray[Any]:
    """Codes [size] in the order of the shape's rows.

    Raises:
        BadGradient: an order that does not exist, or that a tensor of this shape has not.
    """
    if order in (pb2.GRADIENT_ORDER_UNSPECIFIED, pb2.GRADIENT_ORDER_ROWS):
        return codes
    if order != pb2.GRADIENT_ORDER_COLUMNS:
        raise BadGradient(f"the gradient of {tensor!r} has the unknown order number {order}; known are 1 and 2")
    if len(shape) < 2:
        raise BadGradient(f"the gradient of {tensor!r} comes by columns, but its shape {list(shape)} has none")
    swapped = (*shape[:-2], shape[-1], shape[-2])
    return codes.reshape(swapped).swapaxes(-1, -2).reshape(-1)


def _compressor(packing: str) -> Optional[Compressor]:
    if packing == "none":
        return None
    if packing == "zlib":
        return _Zlib()
    try:
        import zstandard
    except ImportError:
        raise UserError(
            "gradients are to be packed by zstd, but the package zstandard is not installed; "
            "install shoal[learner], or choose the packing zlib"
        ) from None
    # Nothing but runs repeats, so short matches are not worth a look, nor is a large table of them.
    parameters = zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_FAST, min_match=7, hash_log=10, window_log=17, write_content_size=True
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


class _Zlib:
    """Runs and Huffman codes, without a search for anything else."""

    def compress(self, data: Any) -> bytes:
        stream = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
        return stream.compress(data) + stream.flush()


def _unpack_zlib(data: bytes, num_bytes: int, tensor: str) -> bytes:
    stream = zlib.decompressobj()
    try:
        unpacked = stream.decompress(data, num_bytes + 1)  # a limit of 0 would be none; one more byte shows a bomb
    except zlib.error as error:
        raise BadGradient(f"the gradient of {tensor!r} cannot be unpacked by zlib: {error}") from None
    if len(unpacked) > num_bytes or not stream.eof or stream.unused_data:
        raise BadGradient(f"the gradient of {tensor!r} does not unpack by zlib to the {num_bytes} bytes of its shape")
    return unpacked
