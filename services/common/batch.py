"""What is sampled: a batch of n-step transitions, as numpy columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict

import numpy as np
import numpy.typing as npt


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
