"""An environment that resets no lane by itself, as one that does so in the step that ends an episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from services.actor.envs.contract import AutoReset, EnvStep, MaskedResetEnv
from services.actor.envs.wrapped_env import WrappedEnv


class MaskedReset(WrappedEnv):
    """Resets lanes whose episode ended, before anybody acts on them.

    Args:
        env: declares `AutoReset.DISABLED`.

    Raises:
        ValueError: it declares something else.
    """

    def __init__(self, env: MaskedResetEnv) -> None:
        if env.autoreset is not AutoReset.DISABLED:
            raise ValueError(f"autoreset is {env.autoreset!r}; only lanes that nobody resets may be reset by mask")
        super().__init__(env)
        self._reset_lanes = env.reset_lanes

    @property
    def autoreset(self) -> AutoReset:
        return AutoReset.SAME_STEP

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """As the environment, and then a reset of the lanes that ended."""
        step = self._env.step(action)
        ended = np.asarray(step.terminated, np.bool_) | np.asarray(step.truncated, np.bool_)
        if not ended.any():
            return step
        # What the step led to is copied first: the reset may write to the same arrays.
        step.true_next_observation = {name: np.array(tensor) for name, tensor in step.observation.items()}
        step.observation = self._reset_lanes(ended)
        return step
