from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from services.actor.envs.checked_env import CheckedEnv
from services.actor.envs.promises import EnvFactoryError
from services.common.errors import EXIT_USER, Crash
from tests.fakes import FakeEnv

ACTION = np.zeros((2, 1), np.float32)


class Broken(FakeEnv):
    """Does `fault` in its step number `number`, to what it returns, or instead."""

    def __init__(self, fault: Any, number: int = 1) -> None:
        super().__init__(2)
        self._fault, self._number = fault, number

    def step(self, action: Any) -> Any:
        step = super().step(action)
        return self._fault(step) if self.steps == self._number else step


def _with(**members: Any) -> Any:
    def fault(step: Any) -> Any:
        for name, value in members.items():
            setattr(step, name, value)
        return step

    return fault


def _camera(camera: Any) -> Any:
    return {"policy": np.zeros((2, 2), np.float32), "camera": camera}


GOOD = np.zeros((2, 2, 2), np.uint8)
FAULTS = [
    (lambda _step: None, "step returned None, which has no observation; it must return an EnvStep"),
    (
        lambda _step: ({}, 0.0, False, False, {}),
        "step returned a tuple, which has no observation; it must return an Env",
    ),
    (_with(observation=[1.0]), "step returned a list as observation; it must return a dict of tensors"),
    (_with(observation={}), "observation_spec names camera, policy, but step returned nothing as observation"),
    (
        _with(true_next_observation={"policy": GOOD}),
        "observation_spec names camera, policy, but step returned policy as true_next_observation",
    ),
    (
        _with(observation=_camera(GOOD[:1])),
        "observation 'camera' has shape (1, 2, 2) after step; observation_spec and 2 lanes promise (2, 2, 2)",
    ),
    (
        _with(observation=_camera(GOOD.tolist())),
        "observation 'camera' is a list after step; observation_spec and 2 lanes promise (2, 2, 2)",
    ),
    (
        _with(true_next_observation=_camera(GOOD.astype(np.float64))),
        "true_next_observation 'camera' is float64 after step; observation_spec promises uint8",
    ),
    (_with(reward=1.0), "step's reward is a float; it must be a float32 array of shape (2,), one for each lane"),
    (
        _with(reward=np.zeros((2, 1), np.float32)),
        "step's reward has shape (2, 1); it must be a float32 array of shape (2",
    ),
    (_with(reward=np.zeros(2, np.complex64)), "step's reward is complex64; it must be float32"),
    (_with(reward=np.array(["a", "b"])), "step's reward is <U1; it must be float32"),
    (_with(terminated=False), "step's terminated is a bool; it must be a bool array of shape (2,), one for each lane"),
    (_with(truncated=np.zeros(3, np.bool_)), "step's truncated has shape (3,); it must be a bool array of shape (2,)"),
    (_with(valid=np.ones(2, np.float32)), "step's valid is float32; it must be bool"),
    (_with(metrics=None), "step's metrics is None; it must be a dict of arrays"),
    (_with(metrics={"success": True}), "step's metrics['success'] is a bool; it must be a number array of shape (2,)"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_a_first_step_that_breaks_the_contract_is_one_sentence(fault: Any, words: str) -> None:
    with pytest.raises(EnvFactoryError) as caught:
        CheckedEnv("a:b", Broken(fault)).step(ACTION)
    assert str(caught.value).startswith(f"environment 'a:b': {words}")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == EXIT_USER


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int64, np.bool_])
def test_rewards_that_become_float32_are_taken(dtype: Any) -> None:
    step = CheckedEnv("a:b", Broken(_with(reward=np.ones(2, dtype), true_next_observation=None))).step(ACTION)
    assert step.reward.dtype == dtype


def test_later_steps_are_not_checked() -> None:
    env = CheckedEnv("a:b", Broken(_with(reward=1.0), number=2))
    env.step(ACTION)
    assert env.step(ACTION).reward == 1.0


class Quitting(FakeEnv):
    """Raises `error` in the method `where`."""

    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__(2)
        self._where, self._error = where, error

    def reset(self, seed: Optional[int] = None) -> Any:
        return self._do("reset") or super().reset(seed)

    def step(self, action: Any) -> Any:
        return self._do("step") or super().step(action)

    def close(self) -> None:
        super().close()
        self._do("close")

    def _do(self, where: str) -> None:
        if where == self._where:
            raise self._error


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SystemExit(0), "sys.exit(0)"),
        (SystemExit(), "sys.exit()"),
        (SystemExit("two\nlines"), r"sys.exit('two\nlines')"),
        (GeneratorExit(), "GeneratorExit"),
    ],
)
def test_an_environment_cannot_end_the_process(where: str, error: BaseException, words: str) -> None:
    env = CheckedEnv("a:b", Quitting(where, error))
    call = {"reset": lambda: env.reset(1), "step": lambda: env.step(ACTION)}[where]
    # In its first reset it is a mistake, which no restart mends; in a step it is a simulator that broke down.
    with pytest.raises(EnvFactoryError if where == "reset" else Crash) as caught:
        call()
    assert str(caught.value) == (
        f"environment 'a:b': the environment ended the process: {words} in {where}; let it raise an exception instead"
    )


@pytest.mark.parametrize("error", [ValueError("physics exploded"), KeyboardInterrupt()])
def test_what_a_step_raises_is_passed_on(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        CheckedEnv("a:b", Quitting("step", error)).step(ACTION)
    assert caught.value is error


def test_an_environment_that_ends_the_process_when_it_is_closed_changes_no_exit_code() -> None:
    inner = Quitting("close", SystemExit(1))
    CheckedEnv("a:b", inner).close()
    assert inner.is_closed


def test_everything_else_is_the_environments() -> None:
    inner = FakeEnv(2)
    env = CheckedEnv("a:b", inner)
    assert (env.num_lanes, env.autoreset) == (2, inner.autoreset)
    assert (env.observation_spec, env.action_spec) == (inner.observation_spec, inner.action_spec)
    assert not hasattr(env, "render")
    inner.render = lambda lane: lane  # type: ignore[attr-defined]
    assert env.render(7) == 7
