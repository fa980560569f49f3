"""Observations of a narrower dtype than the environment's: half the bytes on the wire, in the ring and in batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np
import numpy.typing as npt

from services.actor.envs.contract import EnvStep, Observation, VectorEnv
from services.actor.envs.wrapped_env import WrappedEnv
from services.common.errors import UserError
from services.common.schema import TensorSpec


def narrowed(env: VectorEnv, dtypes: Mapping[str, str]) -> VectorEnv:
    """The environment itself, or one whose observations have the dtypes that the run file declares.

    Args:
        env: the environment.
        dtypes: name of an observation -> dtype; those that are not named stay as they are.

    Raises:
        UserError: a name is not an observation's, or its tensor holds no reals.
    """
    if not dtypes:
        return env
    specs = {spec.name: spec for spec in env.observation_spec}
    for name in dtypes:
        if name not in specs:
            raise UserError(
                f"env.observation_dtypes names {name!r}, but the environment's observations are {', '.join(specs)}"
            )
        if not specs[name].dtype.startswith("float"):
            raise UserError(
                f"env.observation_dtypes makes {name!r} {dtypes[name]}, but it is {specs[name].dtype}: only reals can"
                " be narrowed"
            )
    return NarrowedEnv(env, dtypes)


class NarrowedEnv(WrappedEnv):
    """Casts what an environment hands out. The policy acts on what is stored, so that actor and learner see the same.

    What does not fit into float16 (beyond 65,504) becomes infinite, and the replay quarantines such a step.

    Args:
        env: the environment.
        dtypes: of its observations by name; those that are not named stay as they are.
    """

    def __init__(self, env: VectorEnv, dtypes: Mapping[str, str]) -> None:
        super().__init__(env)
        self._dtypes = dict(dtypes)

    @property
    def observation_spec(self) -> Tuple[TensorSpec, ...]:
        """The environment's, with the declared dtypes."""
        return tuple(
            replace(spec, dtype=self._dtypes.get(spec.name, spec.dtype)) for spec in self._env.observation_spec
        )

    def reset(self, seed: Optional[int] = None) -> Observation:
        """As the environment."""
        return self._cast(self._env.reset(seed))

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """As the environment."""
        step = self._env.step(action)
        true_next = step.true_next_observation
        observation = self._cast(step.observation)
        if true_next is not None:
            true_next = observation if true_next is step.observation else self._cast(true_next)
        return replace(step, observation=observation, true_next_observation=true_next)

    def _cast(self, observation: Observation) -> Observation:
        cast: Dict[str, Any] = dict(observation)
        for name, dtype in self._dtypes.items():
            tensor: Any = observation[name]
            if isinstance(tensor, np.ndarray):
                with np.errstate(over="ignore"):
                    cast[name] = tensor.astype(dtype)
            else:
                import torch

                cast[name] = tensor.to(getattr(torch, dtype))
        return cast
