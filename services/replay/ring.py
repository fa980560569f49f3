"""The ring: one array per column over `capacity` rows; a row's key grows for ever, its slot is key mod capacity."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from services.common.ring_layout import NUM_GUARDS, all_columns, fact_columns
from services.common.schema import Schema

Allocate = Callable[[str, Tuple[int, ...], "np.dtype[Any]"], npt.NDArray[Any]]


def in_memory(name: str, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:  # noqa: ARG001
    """Allocate a column in ordinary memory, all zero."""
    return np.zeros(shape, dtype)


class Ring:
    """Columns of rows, and the two integers that guard them.

    `reserved` moves before rows are written and `committed` after, so that whoever copies rows without a lock can
    tell afterwards whether they were intact: key >= reserved - capacity.
    """

    def __init__(
        self,
        capacity: int,
        schema: Schema,
        allocate: Allocate = in_memory,
        guards: Optional[npt.NDArray[np.int64]] = None,
    ) -> None:
        """Lay out the columns.

        Args:
            capacity: rows.
            schema: of the experience.
            allocate: makes a column.
            guards: <int64>[2] where reserved and committed are kept for others to see; None: nowhere.
        """
        if capacity < 1:
            raise ValueError(f"the replay's capacity is {capacity} rows; it must be at least 1")
        self.capacity = capacity
        self.schema = schema
        self._guards = np.zeros(NUM_GUARDS, np.int64) if guards is None else guards
        self.reserved = int(self._guards[0])  # keys below this were handed out
        self.committed = int(self._guards[1])  # keys below this were written
        specs = {spec.name: spec for spec in all_columns(schema)}

        def column(name: str) -> npt.NDArray[Any]:
            return allocate(name, (capacity, *specs[name].shape), np.dtype(specs[name].dtype))

        self.observation: Dict[str, npt.NDArray[Any]] = {
            spec.name: column(f"observation.{spec.name}") for spec in schema.observation
        }
        self.action: npt.NDArray[Any] = column("action")
        self.reward: npt.NDArray[np.float32] = column("reward")
        self.flags: npt.NDArray[np.uint8] = column("flags")
        self.policy_version: npt.NDArray[np.int64] = column("policy_version")
        self.q_taken: npt.NDArray[np.float32] = column("q_taken")
        self.value: npt.NDArray[np.float32] = column("value")
        self.inserted_s: npt.NDArray[np.float64] = column("inserted_s")  # the table's clock
        self.actor: npt.NDArray[np.int32] = column("actor")  # index of the actor's record
        self.status: npt.NDArray[np.uint8] = column("status")  # items.StepOutcome
        self.n_step_return: npt.NDArray[np.float32] = column("n_step_return")
        self.discount: npt.NDArray[np.float32] = column("discount")
        self.bootstrap_key: npt.NDArray[np.int64] = column("bootstrap_key")
        self.priority: npt.NDArray[np.float64] = column("priority")  # raw p; 0 where there is no item
        self.times_sampled: npt.NDArray[np.int32] = column("times_sampled")

        self._columns: Dict[str, npt.NDArray[Any]] = {
            **{f"observation.{name}": rows for name, rows in self.observation.items()},
            **{name: getattr(self, name) for name in specs if "." not in name},
        }
        # Read-only views: the checksum takes nothing else, and copies nothing.
        self._facts = [self.column(spec.name).view() for spec in fact_columns(schema)]
        for view in self._facts:
            view.flags.writeable = False

    def column(self, name: str) -> npt.NDArray[Any]:
        """A whole column by its name in the layout: "reward", "observation.policy"."""
        return self._columns[name]

    @property
    def oldest_key(self) -> int:
        """The smallest key whose row is resident or, if there is none, the next key."""
        return max(0, self.reserved - self.capacity)

    @property
    def num_rows(self) -> int:
        """Occupied rows, final observations included."""
        return self.reserved - self.oldest_key

    def slots(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Slots of `keys`, same shape."""
        return keys - keys // self.capacity * self.capacity  # numpy divides by one number much faster than it takes %

    def keys(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Keys of the rows that occupy `slots`; negative where a slot was never used."""
        newest = self.reserved - 1
        return newest - (newest - slots) % self.capacity

    def is_resident(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each key's row is still there."""
        return (keys >= self.oldest_key) & (keys < self.committed)

    def segments(self, first_key: int, num_rows: int) -> List[Tuple[slice, slice]]:
        """The at most two runs of slots that hold `num_rows` keys from `first_key`: (slots, index of the rows)."""
        begin = first_key % self.capacity
        head = min(num_rows, self.capacity - begin)
        parts = [(slice(begin, begin + head), slice(0, head)), (slice(0, num_rows - head), slice(head, num_rows))]
        return [part for part in parts if part[1].start < part[1].stop]

    def reserve(self, num_rows: int) -> int:
        """Take the next `num_rows` keys, 0 <= num_rows <= capacity; the rows that they overwrite are gone.

        Returns:
            The first of them.
        """
        if not 0 <= num_rows <= self.capacity:
            raise ValueError(f"{num_rows} rows do not fit into a ring of {self.capacity}")
        first_key = self.reserved
        self.reserved += num_rows
        self._guards[0] = self.reserved  # before any row is touched: whoever reads without a lock must know
        return first_key

    def write(self, first_key: int, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write rows [M, ...] of named columns ("reward", "observation.policy", ...), M alike, from `first_key` on."""
        num_rows = len(next(iter(columns.values())))
        for slots, index in self.segments(first_key, num_rows):
            for name, rows in columns.items():
                self._columns[name][slots] = rows[index]

    def commit(self) -> None:
        """Say that all rows reserved so far are written."""
        self.committed = self.reserved
        self._guards[1] = self.committed

    def reserve_up_to(self, key: int) -> None:
        """Count all keys below `key` as handed out, as they were before a restart."""
        self.reserved = max(self.reserved, key)
        self._guards[0] = self.reserved

    def checksum(self, first_key: int, num_rows: int) -> int:
        """CRC32C of what was reported in `num_rows` rows from `first_key` on, in the order of the layout's columns."""
        crc = 0
        for column in self._facts:
            for slots, _ in self.segments(first_key, num_rows):
                crc = google_crc32c.extend(crc, column[slots])
        return int(crc)

    def check_valid(self) -> Optional[str]:
        """What is wrong with the ring, or None."""
        if self.committed != self.reserved:
            return f"rows up to key {self.reserved} were reserved, but only those up to {self.committed} are written"
        return None
