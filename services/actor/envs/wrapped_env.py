"""What all wrappers of environments share: every member that they do not change is that of the environment."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy.typing as npt

from services.actor.envs.contract import AutoReset, EnvStep, Observation, VectorEnv
from services.common.schema import ActionSpec, TensorSpec


class WrappedEnv:
    """Passes everything on, `render` and whatever else an environment has too.

    Args:
        env: the environment.
    """

    def __init__(self, env: VectorEnv) -> None:
        self._env = env

    @property
    def num_lanes(self) -> int:
        return self._env.num_lanes

    @property
    def autoreset(self) -> AutoReset:
        return self._env.autoreset

    @property
    def observation_spec(self) -> Tuple[TensorSpec, ...]:
        return self._env.observation_spec

    @property
    def action_spec(self) -> ActionSpec:
        return self._env.action_spec

    def reset(self, seed: Optional[int] = None) -> Observation:
        """As the environment."""
        return self._env.reset(seed)

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """As the environment."""
        return self._env.step(action)

    def close(self) -> None:
        """As the environment."""
        self._env.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)
