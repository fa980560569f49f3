"""The ring: one array per column over `capacity` rows; a row's key grows for ever, its slot is key mod capacity."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np
import numpy.typing as npt

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

    def __init__(self, capacity: int, schema: Schema, allocate: Allocate = in_memory) -> None:
        if capacity < 1:
            raise ValueError(f"the replay's capacity is {capacity} rows; it must be at least 1")
        self.capacity = capacity
        self.schema = schema
        self.reserved = 0  # keys below this were handed out
        self.committed = 0  # keys below this were written

        def column(name: str, dtype: str, shape: Tuple[int, ...] = ()) -> npt.NDArray[Any]:
            return allocate(name, (capacity, *shape), np.dtype(dtype))

        self.observation: Dict[str, npt.NDArray[Any]] = {
            spec.name: column(f"observation.{spec.name}", spec.dtype, spec.shape) for spec in schema.observation
        }
        self.action: npt.NDArray[Any] = column("action", schema.action.dtype, schema.action.shape)
        self.reward: npt.NDArray[np.float32] = column("reward", "float32")
        self.flags: npt.NDArray[np.uint8] = column("flags", "uint8")
        self.policy_version: npt.NDArray[np.int64] = column("policy_version", "int64")
        self.q_taken: npt.NDArray[np.float32] = column("q_taken", "float32")
        self.value: npt.NDArray[np.float32] = column("value", "float32")
        self.inserted_s: npt.NDArray[np.float64] = column("inserted_s", "float64")  # the table's clock
        self.actor: npt.NDArray[np.int32] = column("actor", "int32")  # index of the actor's record
        self.status: npt.NDArray[np.uint8] = column("status", "uint8")  # items.StepOutcome
        self.n_step_return: npt.NDArray[np.float32] = column("n_step_return", "float32")
        self.discount: npt.NDArray[np.float32] = column("discount", "float32")
        self.bootstrap_key: npt.NDArray[np.int64] = column("bootstrap_key", "int64")
        self.priority: npt.NDArray[np.float64] = column("priority", "float64")  # raw p; 0 where there is no item
        self.times_sampled: npt.NDArray[np.int64] = column("times_sampled", "int64")

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
        return keys % self.capacity

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
        return first_key

    def write(self, first_key: int, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write rows [M, ...] of named columns ("reward", "observation.policy", ...) from `first_key` on."""
        for name, rows in columns.items():
            prefix, _, tensor = name.partition(".")
            column = self.observation[tensor] if prefix == "observation" else getattr(self, name)
            for slots, index in self.segments(first_key, len(rows)):
                column[slots] = rows[index]

    def commit(self) -> None:
        """Say that all rows reserved so far are written."""
        self.committed = self.reserved

    def check_valid(self) -> Optional[str]:
        """What is wrong with the ring, or None."""
        if self.committed != self.reserved:
            return f"rows up to key {self.reserved} were reserved, but only those up to {self.committed} are written"
        return None
