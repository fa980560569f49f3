from __future__ import annotations

import sys
import types
from typing import Any, List

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from services.actor.envs.contract import AutoReset
from services.actor.envs.envpool_adapter import EnvPool
from services.actor.envs.factory import build_env
from services.actor.envs.promises import EnvFactoryError


class FakePool:
    """A pool whose episodes last two steps; it takes no seed once it is made, and says so as envpool does."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    single_action_space = spaces.Discrete(2)

    def __init__(self, seed: int, num_envs: int = 2) -> None:
        self.num_envs, self.seed, self.is_closed = num_envs, seed, False
        self._age = 0

    def reset(self, seed: Any = None) -> Any:
        assert not self.is_closed
        assert seed is None, "a pool's seed is fixed when it is made"
        self._age = 0
        return self._observe(), {"elapsed_step": np.zeros(self.num_envs, np.int32), "players": {"env_id": [0]}}

    def step(self, action: Any) -> Any:
        assert action.dtype == np.int64
        self._age = 0 if self._age == 2 else self._age + 1
        ended = np.full(self.num_envs, self._age == 2)
        info = {"elapsed_step": np.full(self.num_envs, self._age, np.int32)}
        return self._observe(), np.ones(self.num_envs), np.zeros(self.num_envs, np.bool_), ended, info

    def close(self) -> None:
        self.is_closed = True

    def _observe(self) -> Any:
        return np.full((self.num_envs, 1), self.seed + self._age / 10)


def test_the_same_seed_is_the_same_tasks_and_another_one_is_not() -> None:
    pools: List[FakePool] = []

    def make(seed: int) -> FakePool:
        pools.append(FakePool(seed))
        return pools[-1]

    env = EnvPool(make, 4)
    assert env.reset(4)["policy"][0, 0] == 4
    assert len(pools) == 1  # it was made with this seed, and nobody had used it
    env.step(np.zeros(2, np.int64))
    assert env.reset(4)["policy"][0, 0] == 4
    assert env.reset(5)["policy"][0, 0] == 5
    assert env.reset()["policy"][0, 0] == 5
    assert [pool.is_closed for pool in pools] == [True, True, False]


def test_it_is_in_next_step_mode() -> None:
    env = EnvPool(FakePool, 1)
    env.reset(1)
    assert env.autoreset is AutoReset.NEXT_STEP
    valid = [env.step(np.zeros(2, np.int64)).valid.tolist() for _ in range(4)]
    assert valid == [[True] * 2, [True] * 2, [False] * 2, [True] * 2]


def test_make_asks_envpool_for_gymnasiums_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("envpool")

    def make(task: str, env_type: str, num_envs: int, seed: int, num_threads: int) -> FakePool:
        assert (task, env_type, num_threads) == ("Reach-v1", "gymnasium", 1)
        return FakePool(seed, num_envs)

    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "envpool", module)
    env = build_env("services.actor.envs.envpool_adapter:make", {"task": "Reach-v1", "num_threads": 1}, 3, 6)
    assert env.num_lanes == 3
    assert set(env.step(np.zeros(3, np.int64)).metrics) == {"elapsed_step"}


def test_a_missing_envpool_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(EnvFactoryError, match="pip install envpool"):
        build_env("services.actor.envs.envpool_adapter:make", {"task": "Reach-v1"}, 3, 6)


@pytest.mark.filterwarnings("ignore:.*precision lowered")  # of envpool's own boxes
def test_a_real_pool_keeps_the_contract() -> None:
    pytest.importorskip("envpool")
    env = build_env("services.actor.envs.envpool_adapter:make", {"task": "CartPole-v1", "max_episode_steps": 8}, 3, 6)
    first = env.reset(6)["policy"].copy()
    ended = np.zeros(3, np.bool_)
    truncated = 0
    for _ in range(40):
        step = env.step(np.array([0, 1, 0], np.int64))
        assert (step.valid == ~ended).all()
        ended = step.terminated | step.truncated
        truncated += int(step.truncated.sum())
    assert truncated
    assert (env.reset(6)["policy"] == first).all()
    assert (env.reset(7)["policy"] != first).any()
    env.close()
