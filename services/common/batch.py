"""What is sampled: a batch of n-step transitions, as numpy columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Union

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class DrawnKeys:
    """N items that were drawn, by key: all that the replay says to a learner who gathers rows from the mapped ring."""

    keys: npt.NDArray[np.int64]  # [N], of the start rows
    probability: npt.NDArray[np.float64]  # [N]
    priority: npt.NDArray[np.float64]  # [N]
    times_sampled: npt.NDArray[np.int64]  # [N]
    bootstrap_keys: npt.NDArray[np.int64]  # [N], of the rows that hold the next observations

    def split(self, batch_size: int) -> List[DrawnKeys]:
        """The same items as draws of `batch_size`, which divides their number; nothing is copied."""
        return [self._part(slice(at, at + batch_size)) for at in range(0, len(self.keys), batch_size)]

    def at(self, places: npt.NDArray[np.int64]) -> DrawnKeys:
        """The items at `places` <int64>[M] of these."""
        return self._part(places)

    def _part(self, part: Union[slice, npt.NDArray[np.int64]]) -> DrawnKeys:
        return DrawnKeys(
            keys=self.keys[part],
            probability=self.probability[part],
            priority=self.priority[part],
            times_sampled=self.times_sampled[part],
            bootstrap_keys=self.bootstrap_keys[part],
        )


@dataclass
class Batch:
    """N n-step transitions, drawn by the replay's selector.

    The item that starts at step (t, lane) holds R = sum_k gamma^k r_{t+k} over the k < K steps up to n or to the
    episode's end, and discount = gamma^K, or 0 where the episode terminated.
    """

    keys: npt.NDArray[np.int64]  # [N], ring keys of the start rows
    probability: npt.NDArray[np.float64]  # [N], P: chance of one draw, priority part only
    priority: npt.NDArray[np.float64]  # [N], raw p at the draw
    times_sampled: npt.NDArray[np.int64]  # [N], draws of the item up to and with this one
    observation: Dict[str, npt.NDArray[Any]]  # name -> [N, ...]
    action: npt.NDArray[Any]  # <float32>[N, A] or <int64>[N]
    n_step_return: npt.NDArray[np.float32]  # [N]
    discount: npt.NDArray[np.float32]  # [N]
    next_observation: Dict[str, npt.NDArray[Any]]  # name -> [N, ...], true final observation at an episode's end
    policy_version: npt.NDArray[np.int64]  # [N], of the start step
    num_items: int  # items in the table when the batch was drawn: the N of the importance weights

    def __len__(self) -> int:
        return len(self.keys)

    def split(self, batch_size: int) -> List[Batch]:
        """The same items as batches of `batch_size`, which divides their number; nothing is copied."""
        return [self._part(slice(at, at + batch_size)) for at in range(0, len(self), batch_size)]

    def at(self, places: npt.NDArray[np.int64]) -> Batch:
        """The items at `places` <int64>[M] of these."""
        return self._part(places)

    def _part(self, part: Union[slice, npt.NDArray[np.int64]]) -> Batch:
        return Batch(
            keys=self.keys[part],
            probability=self.probability[part],
            priority=self.priority[part],
            times_sampled=self.times_sampled[part],
            observation={name: rows[part] for name, rows in self.observation.items()},
            action=self.action[part],
            n_step_return=self.n_step_return[part],
            discount=self.discount[part],
            next_observation={name: rows[part] for name, rows in self.next_observation.items()},
            policy_version=self.policy_version[part],
            num_items=self.num_items,
        )
