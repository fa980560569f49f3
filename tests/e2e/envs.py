"""Environments of the end-to-end tests, as a run file names them: a paced one, and a simulator that breaks down."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from services.actor.envs.contract import EnvStep
from tests.fakes import FakeEnv

STEP_S = 0.002  # as a small simulator takes; without it actors would eat the machine that others test on
SICK_LANE, MAD_LANE = 0, 1


def make_paced(num_lanes: int, seed: int) -> FakeEnv:
    """Episodes of 20 steps."""
    return FakeEnv(num_lanes, episode_steps=20, on_step=lambda _number: time.sleep(STEP_S))


class SickEnv(FakeEnv):
    """Each third episode of one lane is NaN from its tenth step to its end; now and then another is paid infinity."""

    def step(self, action: Any) -> EnvStep:
        sane = np.isfinite(action).all(1)
        assert sane[MAD_LANE:].all(), "what broke in one lane has reached another's action"
        step = super().step(np.where(sane[:, None], action, 0.0).astype(np.float32))
        assert step.true_next_observation is not None
        episode, steps_before = divmod(self.steps - 1, 20)
        if episode % 3 == 2 and steps_before >= 9:
            step.true_next_observation["policy"][SICK_LANE] = np.nan
            if steps_before < 19:  # after its end the lane has begun anew
                step.observation["policy"][SICK_LANE] = np.nan
        if self.steps % 97 == 0:
            step.reward[MAD_LANE] = np.inf
        return step


def make_sick(num_lanes: int, seed: int) -> SickEnv:
    """Lanes beside the two sick ones are well."""
    assert num_lanes > 2
    return SickEnv(num_lanes, episode_steps=20, on_step=lambda _number: time.sleep(STEP_S))
