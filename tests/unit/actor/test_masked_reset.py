from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from services.actor.envs.contract import AutoReset, EnvStep
from services.actor.envs.factory import build_env
from services.actor.envs.gymnasium_adapter import make_vector
from services.actor.envs.masked_reset import MaskedReset
from tests.fakes import FakeEnv


def test_only_an_environment_that_resets_nothing_is_wrapped() -> None:
    with pytest.raises(ValueError, match="only lanes that nobody resets"):
        MaskedReset(FakeEnv())


class Manual(FakeEnv):
    """Resets nothing by itself, and writes every observation to the same arrays."""

    def __init__(self) -> None:
        super().__init__(2, episode_steps=np.array([2, 3]), autoreset=AutoReset.DISABLED)  # type: ignore[arg-type]
        self.masks: List[List[bool]] = []

    def step(self, action: Any) -> EnvStep:
        step = super().step(action)
        ended = step.terminated | step.truncated
        self._age = np.where(ended, self._episode_steps, self._age)  # what the fake has reset already
        step.observation = self._fill(self._buffer, self._age)
        step.true_next_observation = None
        return step

    def reset_lanes(self, mask: Any) -> Any:
        self.masks.append(mask.tolist())
        self._age = np.where(mask, 0, self._age)
        return self._fill(self._buffer, self._age)


def test_what_a_step_led_to_outlives_the_reset_that_writes_over_it() -> None:
    manual = Manual()
    env = MaskedReset(manual)
    env.reset(1)
    action = np.zeros((2, 1), np.float32)
    env.step(action)
    step = env.step(action)
    assert manual.masks == [[True, False]]
    assert step.true_next_observation is not None
    assert step.true_next_observation["policy"][:, 0].tolist() == [2.0, 2.0]
    assert step.observation["policy"][:, 0].tolist() == [0.0, 2.0]
    env.step(action)
    assert manual.masks == [[True, False], [False, True]]


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
