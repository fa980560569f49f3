"""The reading side of a mapped ring: batches gathered by key from the files of a replay on the same machine.

Nothing is locked. Rows are copied first and judged afterwards: a row with key k was intact if, after it was read,
k >= reserved - capacity, since the writer moves `reserved` before it touches a row. A bootstrap row is newer than the
row that names it, so the start's key decides for both. The order of loads and stores that this needs is x86-64's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np
import numpy.typing as npt

from services.common.errors import UserError
from services.common.ring_layout import (
    GUARDS_FILE,
    NONCE_FILE,
    NUM_GUARDS,
    all_columns,
    column_file,
    map_array,
    read_format,
)

ALIGNMENT = 64  # bytes, of a column in a block
# The last one may be known already.
PLAIN_COLUMNS = ("action", "n_step_return", "discount", "policy_version", "bootstrap_key")

Allocate = Callable[[int], "npt.NDArray[np.uint8]"]


def in_fresh_memory(num_bytes: int) -> npt.NDArray[np.uint8]:
    """A block <uint8>[num_bytes] that holds anything."""
    return np.empty(num_bytes, np.uint8)


class RingReader:
    """A ring's columns, read-only."""

    def __init__(self, folder: Path, nonce: Optional[str] = None) -> None:
        """Attach to a ring.

        Args:
            folder: where the ring lies.
            nonce: what the replay's `nonce` file must hold; None: the folder is taken as it is.

        Raises:
            UserError: the folder is not that replay's (another machine, or another life), or a file is damaged.
        """
        if nonce is not None:
            _prove_same_host(folder, nonce)
        self.format = read_format(folder)
        self.capacity = self.format.capacity
        self._guards, _ = map_array(folder / GUARDS_FILE, "int64", (NUM_GUARDS,), writable=False)
        self._columns: Dict[str, npt.NDArray[Any]] = {}
        for spec in all_columns(self.format.schema):
            shape = (self.capacity, *spec.shape)
            self._columns[spec.name], _ = map_array(column_file(folder, spec.name), spec.dtype, shape, writable=False)
        self._gathered = {name: self._columns[name] for name in PLAIN_COLUMNS}  # name in a batch -> column
        for tensor in self.format.schema.observation:
            for prefix in ("observation", "next_observation"):
                self._gathered[f"{prefix}.{tensor.name}"] = self._columns[f"observation.{tensor.name}"]

    @property
    def reserved(self) -> int:
        """Keys below this were handed out."""
        return int(self._guards[0])

    @property
    def committed(self) -> int:
        """Keys below this were written."""
        return int(self._guards[1])

    def column(self, name: str) -> npt.NDArray[Any]:
        """A whole column [capacity, ...], read-only, as the writer changes it."""
        return self._columns[name]

    def gather(
        self,
        keys: npt.NDArray[np.int64],
        bootstrap_keys: Optional[npt.NDArray[np.int64]] = None,
        allocate: Allocate = in_fresh_memory,
    ) -> Tuple[Dict[str, npt.NDArray[Any]], npt.NDArray[np.bool_]]:
        """Copy the items that start at `keys` <int64>[N].

        Args:
            keys: of rows that were committed when they were drawn.
            bootstrap_keys: <int64>[N]; not given: as the rows say.
            allocate: makes the one block of bytes that holds all columns.

        Returns:
            Columns [N, ...] ("observation.NAME", "next_observation.NAME", "action", "n_step_return", "discount",
            "policy_version", "bootstrap_key"), and <bool>[N], which of them are intact; the others hold anything.
        """
        was_written = keys < self.committed
        slots = keys % self.capacity
        gathered = self._columns_in_block(len(keys), allocate)
        if bootstrap_keys is not None:
            gathered["bootstrap_key"] = bootstrap_keys
        for name in PLAIN_COLUMNS if bootstrap_keys is None else PLAIN_COLUMNS[:-1]:
            # Slots lie in the ring, whatever the keys are. Where numpy has to raise for others, it copies twice.
            np.take(self._columns[name], slots, axis=0, out=gathered[name], mode="clip")
        next_slots = gathered["bootstrap_key"] % self.capacity
        for spec in self.format.schema.observation:
            column = self._columns[f"observation.{spec.name}"]
            np.take(column, slots, axis=0, out=gathered[f"observation.{spec.name}"], mode="clip")
            np.take(column, next_slots, axis=0, out=gathered[f"next_observation.{spec.name}"], mode="clip")
        return gathered, was_written & (keys >= max(0, self.reserved - self.capacity))

    def _columns_in_block(self, num_rows: int, allocate: Allocate) -> Dict[str, npt.NDArray[Any]]:
        """Columns [num_rows, ...] of what `gather` returns, one behind the other in one block; they hold anything."""
        placed, size = [], 0
        for name, column in self._gathered.items():
            placed.append((name, column, size))
            num_bytes = num_rows * column.itemsize * (column.size // self.capacity)
            size += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        block = allocate(size)
        return {
            name: np.ndarray((num_rows, *column.shape[1:]), column.dtype, buffer=block, offset=offset)
            for name, column, offset in placed
        }


def _prove_same_host(folder: Path, nonce: str) -> None:
    try:
        found = (folder / NONCE_FILE).read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise UserError(
            f"the replay's ring {str(folder)!r} is not to be read here ({error.strerror}): it lies on another machine, "
            "or this user is not in its group; batches must come over gRPC"
        ) from None
    if found != nonce:
        raise UserError(
            f"the ring {str(folder)!r} is not that of the replay that answers: its nonce is another; it belongs to "
            "another machine or to an earlier life, so batches must come over gRPC"
        )
