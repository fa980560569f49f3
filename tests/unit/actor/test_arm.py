from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from services.actor.envs.arm import GOAL_HIGH_M, GOAL_LOW_M, HORIZON, OBSERVATION_SIZE, ArmReach, make_reach
from services.actor.envs.contract import AutoReset, EnvStep

ACTIONS = {"cartesian": 3, "joint": 7}


def random_actions(steps: int, lanes: int, size: int) -> np.ndarray:
    return np.random.default_rng(7).uniform(-1, 1, (steps, lanes, size)).astype(np.float32)


def towards_goal(env: ArmReach) -> np.ndarray:
    return np.clip((env.goal_m - env.tool_m) / 0.06, -1, 1).astype(np.float32)


def same(one: EnvStep, other: EnvStep) -> bool:
    return bool(
        np.array_equal(one.observation["policy"], other.observation["policy"])
        and np.array_equal(one.true_next_observation["policy"], other.true_next_observation["policy"])
        and np.array_equal(one.reward, other.reward)
        and np.array_equal(one.truncated, other.truncated)
    )


@pytest.mark.parametrize("control", ["cartesian", "joint"])
def test_specs_match_what_a_step_returns(control):
    env = make_reach(3, control=control)
    (spec,) = env.observation_spec
    assert (spec.name, spec.dtype, spec.shape) == ("policy", "float32", (OBSERVATION_SIZE,))
    assert env.action_spec.low == (-1.0,) * ACTIONS[control]
    assert env.autoreset is AutoReset.SAME_STEP
    step = env.step(np.zeros((3, ACTIONS[control]), dtype=np.float32))
    for observation in (step.observation, step.true_next_observation):
        assert observation["policy"].shape == (3, OBSERVATION_SIZE)
        assert observation["policy"].dtype == np.float32
    assert step.reward.dtype == np.float32
    assert step.reward.shape == step.terminated.shape == step.truncated.shape == step.valid.shape == (3,)
    assert step.metrics["success"].dtype == np.bool_
    assert step.metrics["distance"].shape == (3,)
    env.close()
    env.close()


@pytest.mark.parametrize("control", ["cartesian", "joint"])
def test_threads_change_nothing(control):
    alone, together = make_reach(7, control, num_threads=1, seed=3), make_reach(7, control, num_threads=3, seed=3)
    for action in random_actions(HORIZON + 5, 7, ACTIONS[control]):
        assert same(alone.step(action), together.step(action))
    together.close()


def test_a_lane_does_not_depend_on_the_number_of_lanes():
    few, many = make_reach(2, seed=5), make_reach(6, seed=5)
    for action in random_actions(HORIZON + 5, 6, 3):
        np.testing.assert_array_equal(
            few.step(action[:2]).observation["policy"], many.step(action).observation["policy"][:2]
        )


def test_reset_with_a_seed_repeats_and_without_goes_on():
    env = make_reach(4, seed=1)
    first = env.reset(11)["policy"].copy()
    second = env.reset()["policy"].copy()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(env.reset(11)["policy"], first)
    np.testing.assert_array_equal(env.reset()["policy"], second)
    assert not np.array_equal(env.reset(12)["policy"], first)
    np.testing.assert_array_equal(make_reach(4, seed=11).step(np.zeros((4, 3))).reward, _first_reward(11))


def _first_reward(seed: int) -> np.ndarray:
    env = make_reach(4, seed=0)
    for _ in range(3):
        env.step(np.ones((4, 3), dtype=np.float32))
    env.reset(seed)
    return env.step(np.zeros((4, 3))).reward


def test_goals_fill_their_box():
    env = make_reach(64)
    goals = []
    for _ in range(8):
        env.reset()
        goals.append(env.goal_m)
    goals = np.concatenate(goals)
    low, high = np.array(GOAL_LOW_M), np.array(GOAL_HIGH_M)
    assert (goals >= low).all()
    assert (goals <= high).all()
    np.testing.assert_allclose(goals.mean(axis=0), (low + high) / 2, atol=0.1 * (high - low).max())


def test_every_goal_can_be_reached_and_the_arm_rests_there():
    env = make_reach(32, horizon=None, seed=2)
    for _ in range(40):
        step = env.step(towards_goal(env))
    assert step.metrics["success"].all()
    assert step.metrics["distance"].max() < 0.003
    assert np.abs(step.observation["policy"][:, 7:14]).max() < 0.02  # joint velocities


def test_corners_of_the_goal_box_can_be_reached():
    corners = np.array(np.meshgrid(*zip(GOAL_LOW_M, GOAL_HIGH_M))).reshape(3, -1).T
    env = make_reach(len(corners), horizon=None)
    for _ in range(40):
        step = env.step(np.clip((corners - env.tool_m) / 0.06, -1, 1).astype(np.float32))
    assert np.isfinite(step.reward).all()
    np.testing.assert_allclose(env.tool_m, corners, atol=0.005)


def test_the_arm_holds_its_posture_against_nothing():
    env = make_reach(2, control="joint", horizon=None)
    before = env.tool_m
    for _ in range(60):
        env.step(np.zeros((2, 7), dtype=np.float32))
    np.testing.assert_allclose(env.tool_m, before, atol=1e-6)


@pytest.mark.parametrize("control", ["cartesian", "joint"])
def test_violent_actions_stay_stable(control):
    env = make_reach(8, control, horizon=None)
    for action in np.sign(random_actions(200, 8, ACTIONS[control])):
        step = env.step(action)
        assert np.isfinite(step.observation["policy"]).all()
    assert np.abs(step.observation["policy"][:, :7]).max() < 1.1  # joints within 10 % of their range
    assert env.tool_m[:, 2].min() > -0.02  # the table holds


def test_reward_is_the_documented_one():
    env = make_reach(5, seed=9)
    action = np.linspace(-2, 2, 15).reshape(5, 3).astype(np.float32)
    step = env.step(action)
    distance = np.linalg.norm(env.goal_m - env.tool_m, axis=1)
    expected = -distance - 0.02 * np.mean(np.clip(action, -1, 1) ** 2, axis=1) + 0.2 * (distance < 0.05)
    np.testing.assert_allclose(step.reward, expected, rtol=1e-5)
    np.testing.assert_allclose(step.metrics["distance"], distance, rtol=1e-6)
    assert not step.terminated.any()


def test_success_is_rewarded_within_five_centimetres():
    env = make_reach(16, horizon=None)
    for _ in range(30):
        step = env.step(towards_goal(env))
    np.testing.assert_array_equal(step.metrics["success"], step.metrics["distance"] < 0.05)
    assert (step.reward[step.metrics["success"]] > 0.1).all()


def test_episodes_are_truncated_and_the_true_end_is_kept():
    limited, endless = make_reach(3, seed=4), make_reach(3, seed=4, horizon=None)
    for number, action in enumerate(random_actions(HORIZON, 3, 3), start=1):
        step, unlimited = limited.step(action), endless.step(action)
        assert step.truncated.all() == (number == HORIZON)
        np.testing.assert_array_equal(step.true_next_observation["policy"], unlimited.true_next_observation["policy"])
        np.testing.assert_array_equal(step.reward, unlimited.reward)
    assert not step.terminated.any()
    assert not np.array_equal(step.observation["policy"], step.true_next_observation["policy"])
    np.testing.assert_array_equal(step.observation["policy"][:, 7:14], 0.0)
    np.testing.assert_array_equal(limited.reset(4)["policy"], make_reach(3, seed=4).reset(4)["policy"])


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"num_lanes": 0}, "num_lanes is 0"),
        ({"num_lanes": 1, "control": "velocity"}, "'cartesian' or 'joint'"),
        ({"num_lanes": 1, "num_threads": -1}, "num_threads is -1"),
        ({"num_lanes": 1, "horizon": 0}, "horizon is 0"),
    ],
)
def test_bad_arguments_are_explained(kwargs, words):
    with pytest.raises(ValueError, match=words):
        make_reach(**kwargs)


def test_bad_actions_are_explained():
    env = make_reach(2)
    with pytest.raises(ValueError, match=r"shape \(2, 7\); it must be \(2, 3\)"):
        env.step(np.zeros((2, 7), dtype=np.float32))
    with pytest.raises(ValueError, match="not finite"):
        env.step(np.full((2, 3), np.nan, dtype=np.float32))


def test_without_a_renderer_the_message_names_the_package(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    env = make_reach(1)
    with pytest.raises(RuntimeError, match="install Debian's libegl1 and libgl1-mesa-dri"):
        env.render(0, 64, 48)
    env.close()


def test_training_imports_no_renderer():
    code = (
        "import sys, numpy as np; from services.actor.envs.arm import make_reach; e = make_reach(1);"
        "e.step(np.zeros((1, 3))); print([m for m in sys.modules if m.endswith('arm_renderer') or m == 'torch'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_render_draws_the_lane_and_changes_nothing():
    drawn, plain = make_reach(2, seed=3), make_reach(2, seed=3)
    try:
        pictures = [drawn.render(lane, 96, 64) for lane in (0, 1)]
    except RuntimeError as error:
        pytest.skip(str(error))
    assert pictures[0].shape == (64, 96, 3)
    assert pictures[0].dtype == np.uint8
    assert pictures[0].std() > 10
    assert not np.array_equal(*pictures)  # the goals differ
    assert drawn.render(0, 64, 64).shape == (64, 64, 3)
    for action in random_actions(3, 2, 3):
        assert same(drawn.step(action), plain.step(action))
    with pytest.raises(ValueError, match="lane 2 cannot be drawn"):
        drawn.render(2)
    drawn.close()


@pytest.mark.parametrize(("name", "size"), [("ArmReach", 3), ("ArmReachJoint", 7)])
def test_gymnasium_registration(name, size):
    env = gymnasium.make(f"services.actor.envs.arm_gymnasium:shoal/{name}-v0")
    check_env(env.unwrapped, skip_render_check=True)
    assert env.action_space.shape == (size,)
    first, _ = env.reset(seed=1)
    again, _ = env.reset(seed=1)
    np.testing.assert_array_equal(first, again)
    for _ in range(HORIZON):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        assert not terminated
    assert truncated
    assert set(info) == {"success", "distance"}
    env.close()
