"""Parameter sets: what one version holds, and how its tensors travel (float32, float16 or bfloat16 in safetensors)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Tuple

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from services.common.config.values import WireDtype
from services.common.errors import UserError

# numpy has no bfloat16: its bits travel as uint16, under a name that says so.
_BFLOAT16 = "bfloat16/"
STATISTICS_PREFIX = "normalizer."  # of the names of what the policy normalizes observations with

Shapes = Mapping[str, Tuple[int, ...]]  # name -> shape


@dataclass(frozen=True)
class ParameterSet:
    """One version, whole. Never changed after it was made: readers keep it as long as they like.

    Version and parameters are one object, so that nobody can hold the number of one set and the weights of another.
    """

    version: int
    updates: int
    digest: str  # of the bytes that travelled
    parameters: Dict[str, npt.NDArray[Any]]  # read-only; <float32>, whatever dtype they travelled in
    chief_incarnation: int = 0  # life of the chief that published it


@dataclass(frozen=True)
class ParameterShapes:
    """What a set must hold for one network to run on it."""

    required: Shapes
    optional: Shapes = field(default_factory=dict)  # statistics, which are there if the chief normalizes

    def difference(self, parameters: Mapping[str, npt.NDArray[Any]]) -> str:
        """How a set differs, by the first tensor that does; empty if it fits."""
        here = {**self.required, **self.optional}
        for name in {**here, **parameters}:
            if name not in parameters:
                if name in self.required:
                    return f"{name!r} is {self.required[name]} here, and missing there"
            elif name not in here:
                return f"{name!r} is {parameters[name].shape} there, and missing here"
            elif parameters[name].shape != here[name]:
                return f"{name!r} is {parameters[name].shape} there, and {here[name]} here"
        return ""


def digest_of(data: bytes) -> str:
    """BLAKE2b of a serialized set, 32 hex digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def encode_set(parameters: Mapping[str, npt.NDArray[Any]], wire_dtype: WireDtype = "float32") -> bytes:
    """Serialize a set.

    Args:
        parameters: name -> array; those of <float32> are converted to `wire_dtype`, all but statistics of
            observations; others travel as they are.
        wire_dtype: what they travel in; rounded to nearest, ties to even.

    Raises:
        UserError: a finite value has no finite counterpart in `wire_dtype`.
    """
    check_range(parameters, wire_dtype)
    data: bytes = safetensors.numpy.save(dict(_on_the_wire(parameters, wire_dtype)))
    return data


def decode_set(data: bytes) -> Dict[str, npt.NDArray[Any]]:
    """The inverse of `encode_set`, up to its rounding; arrays are read-only, and float32 where they were rounded.

    Raises:
        ValueError: `data` is no safetensors file.
    """
    try:
        tensors: Dict[str, npt.NDArray[Any]] = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"it is no safetensors file of numpy's dtypes ({error!r})") from None
    decoded: Dict[str, npt.NDArray[Any]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_BFLOAT16):
            if tensor.dtype != np.uint16:
                raise ValueError(f"{name!r} holds {tensor.dtype}, and not the bits of bfloat16")
            array: npt.NDArray[Any] = (tensor.astype(np.uint32) << np.uint32(16)).view(np.float32)
            decoded[name[len(_BFLOAT16) :]] = array
        else:
            array = tensor.astype(np.float32) if tensor.dtype == np.float16 else tensor
            decoded[name] = array
        array.flags.writeable = False
    return decoded


def check_range(parameters: Mapping[str, npt.NDArray[Any]], wire_dtype: WireDtype) -> None:
    """Refuse values that would become infinite on the wire.

    Raises:
        UserError: names the first tensor that holds one.
    """
    if wire_dtype == "float32":
        return
    # What rounds to the largest finite number and not beyond it: 65504 + 16, and (2 - 2^-7 + 2^-8) 2^127.
    bound = 65520.0 if wire_dtype == "float16" else float.fromhex("0x1.ffp127")
    for name, array in parameters.items():
        if not _is_rounded(name, array) or not array.size:
            continue
        largest = np.max(np.abs(array), where=np.isfinite(array), initial=0.0)
        if largest >= bound:
            other = "bfloat16, which has the range of float32" if wire_dtype == "float16" else "float32"
            raise UserError(
                f"{name!r} holds a value of magnitude {largest:.6g}, which {wire_dtype} cannot carry to the actors; "
                f"set learner.wire_dtype to {other}"
            )


def _is_rounded(name: str, array: npt.NDArray[Any]) -> bool:
    """Statistics of observations stay as they are: a deviation may be small, and both ends must use the same."""
    return array.dtype == np.float32 and not name.startswith(STATISTICS_PREFIX)


def _on_the_wire(parameters: Mapping[str, npt.NDArray[Any]], wire_dtype: WireDtype) -> Dict[str, npt.NDArray[Any]]:
    tensors: Dict[str, npt.NDArray[Any]] = {}
    for name, given in parameters.items():
        array = np.asarray(given, order="C")
        if wire_dtype == "float32" or not _is_rounded(name, array):
            tensors[name] = array
        elif wire_dtype == "float16":
            tensors[name] = array.astype(np.float16)
        else:
            tensors[_BFLOAT16 + name] = _to_bfloat16(array)
    return tensors


def _to_bfloat16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The upper halves of <float32>[…], rounded to nearest, ties to even; a NaN stays one."""
    bits = array.view(np.uint32)
    is_odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + (np.uint32(0x7FFF) + is_odd)) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x0040)
    halves: npt.NDArray[np.uint16] = np.where(np.isnan(array), quiet_nan, rounded).astype(np.uint16)
    return halves
