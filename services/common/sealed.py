"""Sealed files: tensors and plain facts in one safetensors file, with a digest over both. No pickle."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

FORMAT_VERSION = 1


def seal(tensors: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> bytes:
    """Serialize tensors and JSON-like facts."""
    text = json.dumps(facts)
    whole = {
        "facts": text,
        "digest": _digest(tensors, text),
        "format_version": str(FORMAT_VERSION),
    }
    data: bytes = safetensors.numpy.save({k: np.asarray(v, order="C") for k, v in tensors.items()}, metadata=whole)
    return data


def unseal(file: Path) -> Tuple[Dict[str, npt.NDArray[Any]], Dict[str, Any]]:
    """Read a sealed file back as (tensors, facts).

    Raises:
        ValueError: it is damaged, or of another format; the message says which.
    """
    try:
        with safetensors.safe_open(str(file), framework="numpy") as stream:
            whole = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"it is not a whole safetensors file ({error})") from None
    if whole.get("format_version") != str(FORMAT_VERSION):
        raise ValueError(f"its format version is {whole.get('format_version')!r}, this shoal reads {FORMAT_VERSION}")
    if whole.get("digest") != _digest(tensors, whole.get("facts", "")):
        raise ValueError("its digest does not match its content")
    facts: Dict[str, Any] = json.loads(whole["facts"])
    return tensors, facts


def _digest(tensors: Mapping[str, npt.NDArray[Any]], facts: str) -> str:
    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = np.asarray(tensors[name], order="C")
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.reshape(-1).view(np.uint8).data if tensor.size else b"")
    return digest.hexdigest()
