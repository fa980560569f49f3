"""What is stored and asked for, alike for every case; imports numpy alone, since peers live in venvs of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Tuple

import numpy as np
import numpy.typing as npt

ACTION_SIZE = 7
PRIORITY_EXPONENT = 0.6
IMPORTANCE_EXPONENT = 0.4
ENDED_SHARE = 0.01  # of the steps


@dataclass(frozen=True)
class Workload:
    """One shape of transitions, and the table that holds them."""

    name: str
    observation_shape: Tuple[int, ...]
    observation_dtype: str
    capacity: int  # transitions; for shoal rows, which hold final observations too
    distinct: int  # transitions that are made; more are the same ones again

    @property
    def both_observations_bytes(self) -> int:
        """Bytes of a transition that carries its next observation with it: no keys, no priorities."""
        observation = int(np.dtype(self.observation_dtype).itemsize * np.prod(self.observation_shape))
        return 2 * observation + ACTION_SIZE * 4 + 4 + 1 + 8

    def observations(self, rng: np.random.Generator, *leading: int) -> npt.NDArray[Any]:
        """Observations [leading..., observation...]."""
        shape = (*leading, *self.observation_shape)
        if self.observation_dtype == "uint8":
            return rng.integers(0, 256, shape, np.uint8)
        return rng.standard_normal(shape, np.float32)

    def transitions(self, seed: int = 1) -> Dict[str, npt.NDArray[Any]]:
        """Columns [distinct, ...] of one-step transitions as the peers store them."""
        rng, count = np.random.default_rng(seed), self.distinct
        return {
            "observation": self.observations(rng, count),
            "action": rng.standard_normal((count, ACTION_SIZE), np.float32),
            "reward": rng.standard_normal(count, np.float32),
            "next_observation": self.observations(rng, count),
            "done": rng.random(count) < ENDED_SHARE,
            "version": np.arange(count, dtype=np.int64),
        }


def workload(name: str, capacity: int = 0) -> Workload:
    """The workload of that name; `capacity` 0 is its own."""
    if name == "small":
        return Workload("small", (23,), "float32", capacity or 1_000_000, 8192)
    if name == "large":
        return Workload("large", (84, 84, 4), "uint8", capacity or 20_000, 512)
    raise ValueError(f"there is no workload {name!r}; known are small and large")


def take(columns: Dict[str, npt.NDArray[Any]], first: int, count: int) -> Dict[str, npt.NDArray[Any]]:
    """`count` rows from `first` on, round and round; a view where they lie in one piece."""
    size = len(columns["reward"])
    begin = first % size
    if begin + count <= size:
        return {name: column[begin : begin + count] for name, column in columns.items()}
    index = np.arange(first, first + count) % size
    return {name: column[index] for name, column in columns.items()}
