from __future__ import annotations

import sys
import types
from typing import Any, Dict

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from services.actor.envs import isaac_lab
from services.actor.envs.contract import AutoReset
from services.actor.envs.factory import build_env
from services.actor.envs.isaac_lab import IsaacLab
from services.actor.envs.promises import EnvFactoryError
from services.common.errors import UserError
from tests.simulator_fakes import FakeLabEnv, to_fake

ACTION = np.full((3, 2), 0.25, np.float32)


def adapt(env: FakeLabEnv, **kwargs: Any) -> IsaacLab:
    return IsaacLab(env, to_device=to_fake, **kwargs)


def test_groups_become_policy_and_states_and_others_are_left_out() -> None:
    env = adapt(FakeLabEnv())
    assert [(spec.name, spec.dtype, spec.shape) for spec in env.observation_spec] == [
        ("policy", "float32", (2,)),
        ("states", "float32", (1,)),
    ]
    assert set(env.reset(3)) == {"policy", "states"}
    assert env.autoreset is AutoReset.SAME_STEP


def test_final_observations_are_those_before_the_reset_and_only_of_lanes_that_ended() -> None:
    fake = FakeLabEnv()
    env = adapt(fake)
    env.reset(3)
    kinds = set()
    for _ in range(25):
        step = env.step(ACTION)
        ended = step.terminated | step.truncated
        last = [lane.log[-1] for lane in fake.lanes]
        assert step.true_next_observation is not None
        assert (step.true_next_observation["policy"][:, 0] == [each.led_to for each in last]).all()
        assert (step.true_next_observation["states"][:, 0] == [-each.led_to for each in last]).all()
        assert ((step.observation["policy"] != step.true_next_observation["policy"]).all(axis=1) == ended).all()
        assert (step.terminated == [each.terminated for each in last]).all()
        assert (step.truncated == [each.truncated for each in last]).all()
        kinds |= {(each.terminated, each.truncated) for each in last}
    assert len(kinds) == 4


@pytest.mark.parametrize("is_known", [True, False])
def test_a_lost_final_observation_is_said_to_be_lost(is_known: bool) -> None:
    # Both an old version, and a new one whose task forgets it in spite of the setting.
    env = adapt(FakeLabEnv(final_obs=False), has_final_observations=not is_known)
    env.reset(3)
    steps = [env.step(ACTION) for _ in range(6)]
    for step in steps:
        assert (step.true_next_observation is None) == bool((step.terminated | step.truncated).any())
    assert any(step.true_next_observation is None for step in steps)


def test_what_was_handed_out_is_not_changed_by_the_next_step() -> None:
    env = adapt(FakeLabEnv())
    env.reset(1)
    step = env.step(ACTION)
    policy, reward = step.observation["policy"].copy(), step.reward.copy()
    env.step(ACTION)
    assert (step.observation["policy"] == policy).all()
    assert (step.reward == reward).all()


def test_actions_without_bounds_get_the_limit_and_bounds_are_kept() -> None:
    fake = FakeLabEnv()
    assert adapt(fake, action_limit=2.0).action_spec.high == (2.0, 2.0)
    fake.single_action_space = spaces.Box(np.array([-3.0, -np.inf], np.float32), np.array([4.0, np.inf], np.float32))
    spec = adapt(fake).action_spec
    assert (spec.low, spec.high) == ((-3.0, -1.0), (4.0, 1.0))


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan")])
def test_an_action_limit_out_of_range_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        adapt(FakeLabEnv(), action_limit=limit)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Dict({"critic": spaces.Box(-1, 1, (1,))}), "need a group 'policy'"),
        (spaces.Box(-1, 1, (1,)), "need a group 'policy'"),
        (spaces.Dict({"policy": spaces.Dict({"joints": spaces.Box(-1, 1, (1,))})}), "set concatenate_terms = True"),
    ],
)
def test_observations_beyond_the_contract_are_refused(space: Any, words: str) -> None:
    fake = FakeLabEnv()
    fake.single_observation_space = space
    with pytest.raises(ValueError, match=words):
        adapt(fake)


def test_discrete_actions_are_refused() -> None:
    fake = FakeLabEnv()
    fake.single_action_space = spaces.Discrete(3)
    with pytest.raises(ValueError, match="only a Box"):
        adapt(fake)


def test_a_metric_that_is_not_there_is_said() -> None:
    env = adapt(FakeLabEnv(), metrics=("success",))
    env.reset(1)
    with pytest.raises(UserError, match="extras hold final_obs, log, but no 'success'"):
        env.step(ACTION)


def test_it_is_closed_once() -> None:
    fake = FakeLabEnv()
    env = adapt(fake)
    env.close()
    env.close()
    assert fake.num_closed == 1


def _install(monkeypatch: pytest.MonkeyPatch, config: Any, calls: Dict[str, Any]) -> None:
    def parse(task: str, device: str, num_envs: int) -> Any:
        assert calls["launched"], "the application must run first"
        calls["parsed"] = (task, device, num_envs)
        return config

    def launch(**kwargs: Any) -> object:
        calls["launched"] = kwargs
        return object()

    for name, members in {
        "isaaclab": {},
        "isaaclab.app": {"AppLauncher": launch},
        "isaaclab_tasks": {},
        "isaaclab_tasks.utils": {"parse_env_cfg": parse},
    }.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)

    def make(task: str, cfg: Any) -> Any:
        fake = FakeLabEnv(calls["parsed"][2], final_obs=getattr(cfg, "compute_final_obs", False))
        return types.SimpleNamespace(unwrapped=fake)

    monkeypatch.setattr(gymnasium, "make", make)
    monkeypatch.setattr(isaac_lab, "torch_sender", lambda device: to_fake)


def test_make_starts_the_application_and_asks_for_final_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Dict[str, Any] = {}
    config = types.SimpleNamespace(compute_final_obs=False)
    _install(monkeypatch, config, calls)
    env = build_env("services.actor.envs.isaac_lab:make", {"task": "Isaac-Reach-Franka-v0", "device": "cpu"}, 3, 9)
    assert calls["launched"] == {"headless": True, "device": "cpu"}
    assert calls["parsed"] == ("Isaac-Reach-Franka-v0", "cpu", 3)
    assert config.seed == 9
    assert config.compute_final_obs is True
    assert env.step(ACTION).true_next_observation is not None


def test_a_version_that_loses_final_observations_is_refused_unless_told_to_drop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _install(monkeypatch, types.SimpleNamespace(), {})
    with pytest.raises(EnvFactoryError, match='allow_missing_final_obs = "drop" trains without those steps'):
        build_env("services.actor.envs.isaac_lab:make", {"task": "T"}, 3, 9)
    kwargs = {"task": "T", "allow_missing_final_obs": "drop"}
    env = build_env("services.actor.envs.isaac_lab:make", kwargs, 3, 9)
    steps = [env.step(ACTION) for _ in range(6)]
    lost = [step.no_final for step in steps if step.no_final is not None]
    assert sum(int(mask.sum()) for mask in lost) > 0


def test_a_missing_simulator_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isaaclab.app", None)
    with pytest.raises(EnvFactoryError, match="this environment needs Isaac Lab"):
        build_env("services.actor.envs.isaac_lab:make", {"task": "T"}, 3, 9)
