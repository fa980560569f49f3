from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.actor.envs.contract import EnvStep
from services.actor.envs.factory import build_env
from services.actor.envs.lost_tails import DropLostTails
from services.actor.envs.promises import EnvFactoryError
from tests.fakes import FakeEnv

ACTION = np.zeros((2, 1), np.float32)


class Forgetful(FakeEnv):
    """Loses what a reset overwrites, in every step."""

    def step(self, action: Any) -> EnvStep:
        step = super().step(action)
        step.true_next_observation = None
        return step


def make_forgetful(num_lanes: int, seed: int) -> Forgetful:
    return Forgetful(num_lanes)


def make_declared(num_lanes: int, seed: int) -> Forgetful:
    env = Forgetful(num_lanes)
    env.has_final_observations = False  # type: ignore[attr-defined]
    return env


def test_truncated_lanes_are_marked_and_terminated_ones_are_not() -> None:
    env = DropLostTails(Forgetful(2))
    env.reset(1)
    steps = [env.step(ACTION) for _ in range(3)]
    assert [step.no_final.tolist() for step in steps if step.no_final is not None] == [
        [False, False],
        [False, False],
        [True, False],  # lane 0 is truncated, lane 1 terminates
    ]


def test_where_both_flags_are_set_the_episode_terminated_and_nothing_is_lost() -> None:
    class Both(Forgetful):
        def step(self, action: Any) -> EnvStep:
            step = super().step(action)
            step.terminated = step.terminated | step.truncated
            return step

    env = DropLostTails(Both(2, episode_steps=1))
    env.reset(1)
    step = env.step(ACTION)
    assert step.truncated.any()
    assert step.no_final is not None
    assert not step.no_final.any()


def test_steps_with_their_final_observation_are_left_alone() -> None:
    env = DropLostTails(FakeEnv(2))
    env.reset(1)
    assert all(env.step(ACTION).no_final is None for _ in range(4))


def test_the_option_reaches_the_wrapper_and_not_the_factory() -> None:
    env = build_env(f"{__name__}:make_forgetful", {"allow_missing_final_obs": "drop"}, 2, 1)
    assert env.step(ACTION).no_final is not None


def test_what_declares_that_it_forgets_is_refused() -> None:
    with pytest.raises(EnvFactoryError, match="loses the final observation of a truncated episode"):
        build_env(f"{__name__}:make_declared", {}, 2, 1)
    build_env(f"{__name__}:make_declared", {"allow_missing_final_obs": "drop"}, 2, 1)


def test_another_value_is_refused() -> None:
    with pytest.raises(EnvFactoryError, match="is True; it must be 'drop', or left out"):
        build_env(f"{__name__}:make_forgetful", {"allow_missing_final_obs": True}, 2, 1)
