from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from services.actor.envs.contract import AutoReset
from services.actor.narrowed_env import narrowed
from services.common.errors import UserError
from tests.fakes import FakeEnv

ACTION = np.zeros((2, 1), np.float32)


def test_nothing_declared_changes_nothing() -> None:
    env = FakeEnv()
    assert narrowed(env, {}) is env


def test_observations_have_the_declared_dtype_everywhere() -> None:
    inner = FakeEnv(episode_steps=2)
    env = narrowed(inner, {"policy": "float16"})
    assert {spec.name: spec.dtype for spec in env.observation_spec} == {"policy": "float16", "camera": "uint8"}
    assert env.reset(1)["policy"].dtype == np.float16
    for number in (1, 2):
        step = env.step(ACTION)
        assert step.true_next_observation is not None
        for observation in (step.observation, step.true_next_observation):
            assert (observation["policy"].dtype, observation["camera"].dtype) == (np.float16, np.uint8)
        np.testing.assert_array_equal(step.true_next_observation["policy"][:, 0], [number, number])
        np.testing.assert_array_equal(step.reward, [number, number])
    np.testing.assert_array_equal(step.observation["policy"][:, 0], [0, 0])  # the episode began anew


def test_a_final_observation_that_cannot_be_had_stays_so() -> None:
    env = narrowed(FakeEnv(autoreset=AutoReset.NEXT_STEP), {"policy": "float16"})
    env.reset(1)
    assert env.step(ACTION).true_next_observation is None


def test_what_does_not_fit_becomes_infinite_without_a_warning() -> None:
    class Far(FakeEnv):
        def reset(self, seed: Any = None) -> Any:
            observation = super().reset(seed)
            observation["policy"] = np.array([[1e5, 1], [2, 3]], np.float32)
            return observation

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = narrowed(Far(), {"policy": "float16"}).reset(1)["policy"]
    assert np.isinf(policy[0, 0])
    assert np.isfinite(policy[1]).all()


def test_tensors_are_cast_where_they_are() -> None:
    torch = pytest.importorskip("torch")

    class OnDevice(FakeEnv):
        def reset(self, seed: Any = None) -> Any:
            return {name: torch.from_numpy(array) for name, array in super().reset(seed).items()}

    policy: Any = narrowed(OnDevice(), {"policy": "float16"}).reset(1)["policy"]
    assert policy.dtype == torch.float16


@pytest.mark.parametrize(
    ("dtypes", "words"),
    [
        ({"polcy": "float16"}, "names 'polcy', but the environment's observations are camera, policy"),
        ({"camera": "float16"}, "makes 'camera' float16, but it is uint8: only reals can be narrowed"),
    ],
)
def test_what_cannot_be_narrowed_is_said(dtypes: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        narrowed(FakeEnv(), dtypes)


def test_everything_else_is_the_environments() -> None:
    inner = FakeEnv(3)
    env: Any = narrowed(inner, {"policy": "float16"})
    assert (env.num_lanes, env.autoreset, env.action_spec) == (3, inner.autoreset, inner.action_spec)
    assert not hasattr(env, "render")
    env.close()
    assert inner.is_closed
