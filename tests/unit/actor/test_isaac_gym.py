from __future__ import annotations

import sys
import types
from typing import Any, Dict, List

import numpy as np
import pytest

from services.actor.envs import isaac_gym
from services.actor.envs.contract import AutoReset
from services.actor.envs.factory import build_env
from services.actor.envs.isaac_gym import IsaacGym
from services.actor.envs.promises import EnvFactoryError
from services.common.errors import UserError
from tests.simulator_fakes import JUNK_REWARD, FakeVecTask, to_fake

ACTION = np.full((3, 2), 0.25, np.float32)


def adapt(task: FakeVecTask, **kwargs: Any) -> IsaacGym:
    return IsaacGym(task, to_device=to_fake, set_seed=lambda _seed: None, **kwargs)


def test_a_reset_begins_new_episodes_by_a_step_of_zero_actions() -> None:
    seeds: List[int] = []
    task = FakeVecTask()
    env = IsaacGym(task, to_device=to_fake, set_seed=seeds.append)
    first = env.reset(5)["policy"].copy()
    assert (first[:, 0] == [lane.observation for lane in task.lanes]).all()
    assert not np.any(task.actions)
    second = env.reset()["policy"]
    assert (second > first).all()
    assert seeds == [5]
    assert not any(lane.log for lane in task.lanes)  # a reset is no transition


@pytest.mark.parametrize("resets_before_physics", [False, True])
def test_the_row_after_an_end_is_no_transition(resets_before_physics: bool) -> None:
    task = FakeVecTask(resets_before_physics=resets_before_physics)
    env = adapt(task)
    env.reset(1)
    assert env.autoreset is AutoReset.NEXT_STEP
    ended = np.zeros(3, np.bool_)
    for _ in range(20):
        step = env.step(ACTION)
        assert (step.valid == ~ended).all()
        assert (step.reward[~step.valid] == JUNK_REWARD).all()
        assert not (step.terminated | step.truncated)[~step.valid].any()
        ended = step.terminated | step.truncated
    assert ended.shape == (3,)


def test_time_outs_are_truncations_and_a_long_reset_flag_becomes_bool() -> None:
    task = FakeVecTask()
    env = adapt(task)
    env.reset(1)
    steps = [env.step(ACTION) for _ in range(30)]
    for step in steps:
        assert step.terminated.dtype == step.truncated.dtype == step.valid.dtype == np.bool_
        assert not (step.terminated & step.truncated).any()
    terminated = sum(int(step.terminated.sum()) for step in steps)
    truncated = sum(int(step.truncated.sum()) for step in steps)
    log = [each for lane in task.lanes for each in lane.log]
    assert truncated == sum(each.truncated for each in log) > 0
    assert terminated == sum(each.terminated and not each.truncated for each in log) > 0


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_what_was_handed_out_is_not_changed_by_the_next_step(device: str) -> None:
    def send(array: Any) -> Any:
        tensor = to_fake(array)
        tensor.device = device
        return tensor

    env = IsaacGym(FakeVecTask(device=device, num_states=1), to_device=send, set_seed=lambda _seed: None)
    env.reset(1)
    step = env.step(ACTION)
    kept = {name: tensor.copy() for name, tensor in step.observation.items()}
    reward = step.reward.copy()
    env.step(ACTION)
    assert all((step.observation[name] == kept[name]).all() for name in kept)
    assert (step.reward == reward).all()


def test_privileged_states_are_a_tensor_of_their_own() -> None:
    env = adapt(FakeVecTask(num_states=3))
    assert [(spec.name, spec.shape) for spec in env.observation_spec] == [("policy", (2,)), ("states", (3,))]
    observation = env.reset(1)
    assert observation["states"].shape == (3, 3)
    assert (observation["states"][:, 0] == -observation["policy"][:, 0]).all()


@pytest.mark.parametrize(("clip", "limit"), [(float("inf"), 1.0), (1.0, 1.0), (0.5, 0.5)])
def test_actions_are_bounded_by_what_the_task_executes(clip: float, limit: float) -> None:
    spec = adapt(FakeVecTask(clip_actions=clip)).action_spec
    assert spec.low == (-limit, -limit)
    assert spec.high == (limit, limit)


def test_metrics_are_those_that_were_asked_for() -> None:
    env = adapt(FakeVecTask(extras=("time_outs", "successes")), metrics=("successes",))
    env.reset(1)
    assert set(env.step(ACTION).metrics) == {"successes"}


@pytest.mark.parametrize(
    ("extras", "metrics", "words"),
    [
        ((), (), "hold nothing, but no 'time_outs'"),
        (("time_outs",), ("success",), "hold time_outs, but no 'success'"),
    ],
)
def test_extras_that_lack_something_are_said(extras: Any, metrics: Any, words: str) -> None:
    env = adapt(FakeVecTask(extras=extras), metrics=metrics)
    env.reset(1)
    with pytest.raises(UserError, match=words):
        env.step(ACTION)


def test_a_task_without_observations_is_refused() -> None:
    task = FakeVecTask()
    task.num_obs = 0
    with pytest.raises(ValueError, match="has 0 observations"):
        adapt(task)


def _install(monkeypatch: pytest.MonkeyPatch, calls: Dict[str, Any]) -> None:
    """Modules of the names that `make` imports; each keeps what it was told."""

    class Config:
        def __init__(self, folder: str, version_base: str) -> None:
            calls["folder"] = folder

        def __enter__(self) -> None:
            calls["is_open"] = True

        def __exit__(self, *_error: object) -> None:
            calls["is_open"] = False

    def compose(config_name: str, overrides: Any) -> str:
        assert calls["is_open"]
        calls["overrides"] = overrides
        return config_name

    def make(**kwargs: Any) -> FakeVecTask:
        calls["make"] = kwargs
        return FakeVecTask(kwargs["num_envs"])

    modules: Dict[str, Dict[str, Any]] = {
        "isaacgym": {},
        "isaacgymenvs": {"make": make, "__file__": "/there/isaacgymenvs/__init__.py"},
        "isaacgymenvs.utils": {},
        "isaacgymenvs.utils.utils": {"set_seed": lambda seed: calls.setdefault("seeds", []).append(seed)},
        "hydra": {"initialize_config_dir": Config, "compose": compose},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(isaac_gym, "torch_sender", lambda device: calls.setdefault("device", device) and to_fake)


def test_make_composes_the_config_so_that_devices_and_pipeline_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Dict[str, Any] = {}
    _install(monkeypatch, calls)
    kwargs = {"task": "FrankaCabinet", "sim_device": "cpu", "overrides": ["task.env.episodeLength=300"]}
    env = build_env("services.actor.envs.isaac_gym:make", kwargs, 3, 11)
    assert env.num_lanes == 3
    assert set(calls["seeds"]) == {11}
    assert calls["folder"] == "/there/isaacgymenvs/cfg"
    assert set(calls["overrides"]) >= {
        "task=FrankaCabinet",
        "num_envs=3",
        "pipeline=cpu",
        "headless=True",
        "task.env.episodeLength=300",
    }
    assert calls["make"]["cfg"] == "config"
    assert calls["make"]["force_render"] is False
    assert calls["device"] == "cpu"  # tensors lie where physics runs
    env.step(ACTION)


def test_torch_before_isaacgym_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.delitem(sys.modules, "isaacgym", raising=False)
    with pytest.raises(EnvFactoryError, match="could not be built: torch was imported before isaacgym"):
        build_env("services.actor.envs.isaac_gym:make", {"task": "Ant"}, 3, 1)


def test_a_missing_simulator_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setitem(sys.modules, "isaacgym", None)
    with pytest.raises(EnvFactoryError, match="needs Isaac Gym Preview 4, IsaacGymEnvs and an NVIDIA driver"):
        build_env("services.actor.envs.isaac_gym:make", {"task": "Ant"}, 3, 1)
