"""A whole environment in one file, to copy: a point mass on a table is pushed to a goal."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np
import numpy.typing as npt

from services.actor.envs.contract import AutoReset, EnvStep, Observation
from services.common.schema import ActionSpec, TensorSpec

HORIZON = 30  # steps of an episode
EDGE_M = 1.0  # the table spans +-1 m; beyond it the point has fallen
SUCCESS_DISTANCE_M = 0.1


class PointReach:
    """B points that are pushed to B goals.

    Observation `policy`, <float32>[B, 6]: position (2, m), velocity (2, m a step), goal minus position (2, m).
    Action, <float32>[B, 2]: push along x and y, -1 to 1. Reward: minus the distance in metres, and -5 for a fall.
    A fall terminates the episode; after `HORIZON` steps it is truncated.
    """

    autoreset = AutoReset.SAME_STEP
    observation_spec: Tuple[TensorSpec, ...] = (TensorSpec("policy", "float32", (6,)),)
    action_spec = ActionSpec(low=(-1.0, -1.0), high=(1.0, 1.0))

    def __init__(self, num_lanes: int, seed: int) -> None:
        self.num_lanes = num_lanes
        self.reset(seed)

    def reset(self, seed: Optional[int] = None) -> Observation:
        """Begin a new episode in every lane."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._position, self._velocity, self._goal = (np.zeros((self.num_lanes, 2)) for _ in range(3))
        self._steps = np.zeros(self.num_lanes, np.int64)
        self._begin(np.ones(self.num_lanes, np.bool_))
        return self._observe()

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """Push every point once."""
        self._velocity = 0.7 * self._velocity + 0.05 * action
        self._position = self._position + self._velocity
        self._steps += 1

        distance = np.linalg.norm(self._goal - self._position, axis=1)
        terminated: npt.NDArray[np.bool_] = np.abs(self._position).max(axis=1) > EDGE_M  # no value beyond
        truncated = self._steps >= HORIZON  # only the clock ran out: the learner values what would have come
        true_next = self._observe()  # before any reset
        ended = terminated | truncated
        self._begin(ended)
        return EnvStep(
            observation=self._observe(),
            true_next_observation=true_next,
            reward=(-distance - 5.0 * terminated).astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            valid=np.ones(self.num_lanes, np.bool_),
            metrics={"success": (distance < SUCCESS_DISTANCE_M) & ~terminated},
        )

    def close(self) -> None:
        """Nothing to free."""

    def _begin(self, lanes: npt.NDArray[np.bool_]) -> None:
        """Start an episode in the lanes of a mask <bool>[B]."""
        shape = (int(lanes.sum()), 2)
        self._position[lanes] = self._random.uniform(-0.7, 0.7, shape)
        self._velocity[lanes] = 0.0
        self._goal[lanes] = self._random.uniform(-0.7, 0.7, shape)
        self._steps[lanes] = 0

    def _observe(self) -> Observation:
        columns = (self._position, self._velocity, self._goal - self._position)
        return {"policy": np.concatenate(columns, axis=1).astype(np.float32)}


def make_point_reach(num_lanes: int, seed: int) -> PointReach:
    """What `env.factory` names; keys of `env.kwargs` would be further arguments."""
    return PointReach(num_lanes, seed)
