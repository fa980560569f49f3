"""Sealed files: tensors and plain facts in one safetensors file, with a digest over both. No pickle."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from services.common.files import make_atomically

FORMAT_VERSION = 1


def seal(tensors: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> bytes:
    """Serialize tensors and JSON-like facts."""
    data: bytes = safetensors.numpy.save(_contiguous(tensors), metadata=_whole(tensors, facts))
    return data


def write_sealed(file: Path, tensors: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """Write the same to a file, atomically, without a second copy in memory, and without holding up other threads.

    Raises:
        UserError: the disk is full or the folder cannot be written; the old file is untouched.
    """
    whole = _whole(tensors, facts)

    def write(aside: Path) -> None:
        try:
            safetensors.numpy.save_file(_contiguous(tensors), str(aside), metadata=whole)
        except safetensors.SafetensorError as error:
            raise _system_error(error) from None

    make_atomically(file, write)


def _contiguous(tensors: Mapping[str, npt.NDArray[Any]]) -> Dict[str, npt.NDArray[Any]]:
    return {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}


def _whole(tensors: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> Dict[str, str]:
    """The metadata of a sealed file."""
    text = json.dumps(facts)
    return {"facts": text, "digest": _digest(tensors, text), "format_version": str(FORMAT_VERSION)}


def unseal(file: Path) -> Tuple[Dict[str, npt.NDArray[Any]], Dict[str, Any]]:
    """Read a sealed file back as (tensors, facts).

    Raises:
        ValueError: it is damaged, or of another format; the message says which.
    """
    try:
        with safetensors.safe_open(str(file), framework="numpy") as stream:
            whole = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"it is not a whole safetensors file ({error})") from None
    if whole.get("format_version") != str(FORMAT_VERSION):
        raise ValueError(f"its format version is {whole.get('format_version')!r}, this shoal reads {FORMAT_VERSION}")
    if whole.get("digest") != _digest(tensors, whole.get("facts", "")):
        raise ValueError("its digest does not match its content")
    try:
        facts: Dict[str, Any] = json.loads(whole["facts"])
    except (KeyError, RecursionError):
        raise ValueError("it says no facts") from None
    if not isinstance(facts, dict):
        raise ValueError("its facts have no names")  # noqa: TRY004 (of the file's content)
    return tensors, facts


def _system_error(error: Exception) -> OSError:
    """The error of the system behind one of the library, which tells its number in words alone."""
    number = re.search(r"(?:os error |code: )(\d+)", str(error))  # as recent versions of the library say it, and older
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code))


def _digest(tensors: Mapping[str, npt.NDArray[Any]], facts: str) -> str:
    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = np.asarray(tensors[name], order="C")
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.reshape(-1).view(np.uint8).data if tensor.size else b"")
    return digest.hexdigest()
