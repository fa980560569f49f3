"""How a ring lies in its folder: names of files, columns, the format file. numpy and mmap alone, for readers too.

`format.json` says what is in the folder, `lock` belongs to the one process that writes, `nonce` proves to a reader that
it sees the same machine's files, `guards` holds two integers, `columns/` one mapped file a column, `chunks/` the log.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Tuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from services.common.errors import UserError
from services.common.schema import Schema

FORMAT_VERSION = 1
FORMAT_FILE, LOCK_FILE, NONCE_FILE, GUARDS_FILE = "format.json", "lock", "nonce", "guards"
COLUMNS_FOLDER, CHUNKS_FOLDER = "columns", "chunks"
FILE_MODE, FOLDER_MODE = 0o640, 0o750  # whoever is of the group may read, and so has the learner's role
NUM_GUARDS = 2  # reserved, committed

# What a chunk reports of a row; `action` and the observations come first.
_FACTS = (
    ("reward", "float32"),
    ("flags", "uint8"),
    ("policy_version", "int64"),
    ("q_taken", "float32"),
    ("value", "float32"),
)
# What the table knows of a row, or makes of it.
_MADE = (
    ("inserted_s", "float64"),
    ("actor", "int32"),
    ("status", "uint8"),
    ("n_step_return", "float32"),
    ("discount", "float32"),
    ("bootstrap_key", "int64"),
    ("priority", "float64"),
    ("times_sampled", "int32"),
)


@dataclass(frozen=True)
class ColumnSpec:
    """One column: `shape` is that of a single row."""

    name: str
    dtype: str
    shape: Tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of this column."""
        num_bytes: int = np.dtype(self.dtype).itemsize
        for size in self.shape:  # in Python's integers: a product of large sizes must not wrap
            num_bytes *= size
        return num_bytes


def fact_columns(schema: Schema) -> Tuple[ColumnSpec, ...]:
    """The columns that hold what actors reported; a chunk's checksum is over these, in this order."""
    observation = tuple(ColumnSpec(f"observation.{s.name}", s.dtype, s.shape) for s in schema.observation)
    action = ColumnSpec("action", schema.action.dtype, schema.action.shape)
    return (*observation, action, *(ColumnSpec(name, dtype) for name, dtype in _FACTS))


def all_columns(schema: Schema) -> Tuple[ColumnSpec, ...]:
    """Every column of a ring."""
    return (*fact_columns(schema), *(ColumnSpec(name, dtype) for name, dtype in _MADE))


def column_file(folder: Path, name: str) -> Path:
    """Where a column lies; names of tensors come from elsewhere and may hold anything."""
    return folder / COLUMNS_FOLDER / quote(name, safe="")


@dataclass(frozen=True)
class RingFormat:
    """What `format.json` says."""

    run: str
    schema: Schema
    capacity: int  # rows
    n_step: int  # of the items that the columns hold
    discount: float
    boot_id: str  # of the machine's life in which the files were last written; empty in a copy
    made_wall_s: float  # seconds since 1970
    keys_id: int = 0  # random; another one when the ring came back older than it was, and uses keys again
    format_version: int = FORMAT_VERSION

    @property
    def ring_id(self) -> int:
        """Names the ring, in whose counters all lives of its replay add up: 63 bits, never 0."""
        return _id(f"{self.run} {self.made_wall_s!r} {self.schema.digest}")

    @property
    def table_id(self) -> int:
        """Names what the ring's keys stand for: 63 bits, never 0. Under one id no key names two rows."""
        return _id(f"{self.ring_id} {self.keys_id}")

    def to_bytes(self) -> bytes:
        """As the file holds it, with a digest of itself."""
        facts = {**asdict(self), "schema": self.schema.to_dict()}
        return json.dumps({**facts, "digest": _digest(facts)}, indent=1).encode()


def _id(facts: str) -> int:
    return int(hashlib.sha256(facts.encode()).hexdigest()[:16], 16) >> 1 | 1


def _digest(facts: Dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def read_format(folder: Path) -> RingFormat:
    """Read and check `format.json`.

    Raises:
        UserError: it is missing, damaged or of another format version; the message names the file and says what to do.
    """
    file = folder / FORMAT_FILE
    try:
        facts: Dict[str, Any] = json.loads(file.read_bytes())
        version = facts["format_version"]
    except FileNotFoundError:
        raise UserError(f"{str(file)!r} is missing: {str(folder)!r} holds no ring; choose another folder") from None
    except OSError as error:
        raise UserError(f"{str(file)!r} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{str(file)!r} is damaged: it is not a ring's format; {_REMEDY}") from None
    if version != FORMAT_VERSION:
        age = "newer" if isinstance(version, int) and version > FORMAT_VERSION else "unknown"
        raise UserError(
            f"{str(file)!r} has the {age} format version {version}, this shoal reads and writes {FORMAT_VERSION}: "
            "use the shoal that wrote it, or move the folder away"
        )
    digest = facts.pop("digest", "")
    if digest != _digest(facts):
        raise UserError(f"{str(file)!r} is damaged: its digest does not match its content; {_REMEDY}")
    try:
        ring_format = RingFormat(**{**facts, "schema": Schema.from_dict(facts["schema"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{str(file)!r} is damaged: it is not a ring's format ({error}); {_REMEDY}") from None
    whole = (ring_format.capacity, ring_format.n_step, ring_format.keys_id)
    if not all(type(number) is int for number in whole) or min(ring_format.capacity, ring_format.n_step) < 1:
        raise UserError(f"{str(file)!r} is damaged: its capacity and n are no numbers of at least 1; {_REMEDY}")
    return ring_format


_REMEDY = "restore a snapshot, or move the folder away to begin with an empty ring"


def damaged(file: Path, how: str) -> UserError:
    """The error for a file of a ring that cannot be used as it is."""
    return UserError(f"{str(file)!r} is damaged: {how}; {_REMEDY}")


def map_array(file: Path, dtype: str, shape: Tuple[int, ...], *, writable: bool) -> Tuple[npt.NDArray[Any], mmap.mmap]:
    """Map a file as an array of exactly its size; the mapping lives as long as the array.

    Raises:
        UserError: the file is missing, cannot be opened or has another size; the message names it.
    """
    want = int(np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)))
    try:
        descriptor = os.open(file, os.O_RDWR if writable else os.O_RDONLY)
    except FileNotFoundError:
        raise damaged(file, "it is missing") from None
    except OSError as error:
        raise UserError(f"{str(file)!r} cannot be opened: {error.strerror}; see the folder's owner and mode") from None
    try:
        got = os.fstat(descriptor).st_size
        if got != want:
            raise damaged(file, f"it has {got} bytes, {want} belong there")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        mapping = mmap.mmap(descriptor, want, access=access)
    finally:
        os.close(descriptor)
    return np.frombuffer(mapping, dtype).reshape(shape), mapping
