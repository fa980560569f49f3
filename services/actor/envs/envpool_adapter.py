"""Environments of envpool, by their id; `make` imports envpool."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Optional

import numpy.typing as npt

from services.actor.envs.contract import EnvStep, Observation
from services.actor.envs.gymnasium_adapter import GymnasiumVector
from services.common.errors import UserError


class EnvPool(GymnasiumVector):
    """A pool as a `VectorEnv`. A pool takes its seed when it is made, so `reset` with a seed makes another.

    Args:
        make_pool: seed -> a pool with gymnasium's interface.
        seed: of the first pool.

    Raises:
        ValueError: the pool cannot be brought under the contract.
    """

    def __init__(self, make_pool: Callable[[int], Any], seed: int) -> None:
        self._make_pool = make_pool
        self._fresh_seed: Optional[int] = seed  # of a pool that nobody has used yet
        super().__init__(make_pool(seed))

    def reset(self, seed: Optional[int] = None) -> Observation:
        """Begin a new episode in every lane; the same seed is the same tasks."""
        if seed is not None and seed != self._fresh_seed:
            self._env.close()
            self._env = self._make_pool(seed)
        self._fresh_seed = None
        return super().reset()

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """Apply one action a lane; see `VectorEnv.step`."""
        self._fresh_seed = None
        return super().step(action)


def make(num_lanes: int, seed: int, task: str, **kwargs: Any) -> EnvPool:
    """Build a pool.

    Args:
        num_lanes: number of environments.
        seed: of the pool.
        task: its id, "PandaPickCube-v1".
        kwargs: further ones of `envpool.make`, such as num_threads.

    Raises:
        UserError: envpool is not installed.
    """
    try:
        envpool = importlib.import_module("envpool")
    except ImportError as error:
        raise UserError(
            f"envpool cannot be imported ({error}); pip install envpool, on Python 3.11 or newer"
        ) from error

    def make_pool(pool_seed: int) -> Any:
        return envpool.make(task, env_type="gymnasium", num_envs=num_lanes, seed=pool_seed, **kwargs)

    return EnvPool(make_pool, seed)
