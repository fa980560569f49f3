from __future__ import annotations

import threading
from typing import Any, List, Mapping

import numpy as np
import pytest

from services.actor.envs.contract import AutoReset
from services.actor.evaluator import episodes
from services.actor.evaluator.episodes import run_episodes
from services.common.errors import UserError
from services.common.rpc import Stopped
from tests.fakes import FakeEnv


def _act(observation: Mapping[str, Any]) -> Any:
    return np.zeros((len(observation["policy"]), 1), np.float32)


def _run(env: Any, count: int, stopping: Any = None) -> Any:
    return run_episodes(
        env, _act, episodes=count, seed_of_round=lambda number: 100 + number, stopping=stopping or threading.Event()
    )


def test_first_episodes_count_and_no_others() -> None:
    # Lane 1 could end ten short episodes while lane 0 runs its first.
    env = FakeEnv(2, episode_steps=np.array([10, 1]))  # type: ignore[arg-type]
    statistics = _run(env, 2)
    assert statistics.lengths.tolist() == [10, 1]
    assert statistics.returns.tolist() == [55, 1]
    assert env.steps == 10
    assert env.seeds == [100]


def test_rounds_have_seeds_of_their_own_and_the_last_may_be_used_in_part() -> None:
    env = FakeEnv(2)
    statistics = _run(env, 5)
    assert env.seeds == [100, 101, 102]
    assert len(statistics.returns) == len(statistics.lengths) == len(statistics.success) == 5
    assert statistics.success.tolist() == [0, 1, 0, 1, 0]
    assert statistics.success_rate == 0.4


@pytest.mark.parametrize("autoreset", [AutoReset.SAME_STEP, AutoReset.NEXT_STEP])
def test_returns_and_lengths_are_those_of_the_episode(autoreset: AutoReset) -> None:
    statistics = _run(FakeEnv(2, episode_steps=np.array([2, 4]), autoreset=autoreset), 2)  # type: ignore[arg-type]
    assert statistics.lengths.tolist() == [2, 4]
    assert statistics.returns.tolist() == [3, 10]


def test_success_is_that_of_the_last_step() -> None:
    class Passing(FakeEnv):
        """Lane 0 succeeds on the way and not at its end, lane 1 at its end alone."""

        def step(self, action: Any) -> Any:
            step = super().step(action)
            ended = step.terminated | step.truncated
            step.metrics = {"success": np.where(ended, [False, True], [True, False])}
            return step

    assert _run(Passing(2), 2).success.tolist() == [0, 1]


def test_the_success_of_a_later_episode_does_not_count() -> None:
    class Learning(FakeEnv):
        """Succeeds in every episode but the first."""

        def step(self, action: Any) -> Any:
            step = super().step(action)
            step.metrics = {"success": np.full(2, self.steps > 1)}
            return step

    assert _run(Learning(2, episode_steps=np.array([4, 1])), 2).success.tolist() == [1, 0]  # type: ignore[arg-type]


def test_an_environment_that_reports_no_success_is_minus_one() -> None:
    statistics = _run(FakeEnv(2, reports_success=False), 2)
    assert statistics.success.tolist() == [-1, -1]
    assert statistics.success_rate == -1


def test_the_policy_acts_on_the_newest_observation() -> None:
    seen: List[List[float]] = []

    def act(observation: Mapping[str, Any]) -> Any:
        seen.append(observation["policy"][:, 0].tolist())
        return _act(observation)

    run_episodes(
        FakeEnv(2),
        act,
        episodes=2,
        seed_of_round=lambda number: number,
        stopping=threading.Event(),
    )
    assert seen == [[0, 0], [1, 1], [2, 2]]


def test_an_episode_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "MAX_EPISODE_STEPS", 20)
    with pytest.raises(UserError, match=r"1 of 2 episodes of env.factory did not end within 20 steps \(MAX_EPI"):
        _run(FakeEnv(2, episode_steps=np.array([10**9, 3])), 2)  # type: ignore[arg-type]
    assert _run(FakeEnv(2, episode_steps=20), 2).lengths.tolist() == [20, 20]


def test_a_stop_ends_it() -> None:
    stopping = threading.Event()
    env = FakeEnv(2, episode_steps=10**6, on_step=lambda number: stopping.set() if number == 5 else None)
    with pytest.raises(Stopped):
        _run(env, 2, stopping)
    assert env.steps == 5
