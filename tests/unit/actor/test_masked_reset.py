from __future__ import annotations

import numpy as np
import pytest

from services.actor.envs.contract import AutoReset
from services.actor.envs.factory import build_env
from services.actor.envs.gymnasium_adapter import make_vector
from services.actor.envs.masked_reset import MaskedReset
from tests.fakes import FakeEnv


def test_only_an_environment_that_resets_nothing_is_wrapped() -> None:
    with pytest.raises(ValueError, match="only lanes that nobody resets"):
        MaskedReset(FakeEnv())


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_a_gymnasium_id_runs_in_each_mode(mode: str) -> None:
    env = build_env("CartPole-v1", {"autoreset": mode, "max_episode_steps": 12}, 3, 4)
    assert env.autoreset is (AutoReset.NEXT_STEP if mode == "next_step" else AutoReset.SAME_STEP)
    truncated = 0
    for number in range(40):
        step = env.step(np.array([number % 2, 1, 0]))
        ended = step.terminated | step.truncated
        truncated += int(step.truncated.sum())
        if env.autoreset is AutoReset.SAME_STEP and ended.any():
            assert step.true_next_observation is not None
            true_next, begun = step.true_next_observation["policy"][ended], step.observation["policy"][ended]
            assert (np.abs(begun) <= 0.05).all()  # where CartPole begins
            assert (np.abs(true_next) > 0.05).any(axis=1).all()
    env.close()
    assert truncated


def test_same_step_and_disabled_are_the_same_episodes() -> None:
    same, masked = make_vector("CartPole-v1", 2, "same_step", seed=3), make_vector("CartPole-v1", 2, "disabled", seed=3)
    wrapped = MaskedReset(masked)
    for number in range(60):
        action = np.array([number % 2, 1])
        one, other = same.step(action), wrapped.step(action)
        for mine, its in (
            (one.observation, other.observation),
            (one.true_next_observation, other.true_next_observation),
        ):
            assert mine is not None
            assert its is not None
            assert (mine["policy"] == its["policy"]).all()
        assert (one.terminated == other.terminated).all()
