"""Inputs on disk: seeds that `python -m tests.fuzz.seeds` makes, and whatever was found to fail once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import List

CORPUS = Path(__file__).parent / "corpus"
FOUND = "found-"


def inputs_of(target: str) -> List[bytes]:
    """The inputs of a target, by name."""
    folder = CORPUS / target
    return [file.read_bytes() for file in sorted(folder.iterdir())] if folder.is_dir() else []


def keep(target: str, data: bytes) -> Path:
    """Add an input that a target failed at; it is tried by every run of the tests from now on."""
    file = CORPUS / target / f"{FOUND}{hashlib.sha256(data).hexdigest()[:12]}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file
