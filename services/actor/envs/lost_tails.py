"""What a run does about time-outs whose final observation the environment loses: refuse, or drop those steps."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from services.actor.envs.contract import EnvStep
from services.actor.envs.wrapped_env import WrappedEnv

OPTION = "allow_missing_final_obs"  # the key of `env.kwargs`; it never reaches the factory
DROP = "drop"


class DropLostTails(WrappedEnv):
    """Lets truncated steps without a true next observation pass as such: the replay counts them as lost.

    The items before such a step end in the observation that it was taken in; its own reward is learned from by nobody.
    """

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """As the environment, with `no_final` where a final observation is missing."""
        step = self._env.step(action)
        if step.true_next_observation is None:
            step.no_final = step.valid & step.truncated & ~step.terminated
        return step
