from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from services.actor.envs.contract import AutoReset
from services.actor.envs.gymnasium_adapter import GymnasiumVector, make_vector


class Counter(gymnasium.Env):
    """Counts its steps in a buffer that it reuses; episode number e lasts e + length steps, and then ends."""

    def __init__(self, length: int = 2, truncates: bool = False, named: bool = False) -> None:
        box = spaces.Box(-1e6, 1e6, (2,), dtype=np.float64)
        pixels = spaces.Box(0, 255, (3, 2), dtype=np.uint8)
        self.observation_space = spaces.Dict({"policy": box, "camera": pixels}) if named else box
        self.action_space = spaces.Discrete(3, start=5)
        self.length, self.truncates, self.named = length, truncates, named
        self.buffer, self.episode = np.zeros(2), 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.buffer[:] = (self.episode, 0)
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(int(action))
        self.buffer[1] += 1
        ended = bool(self.buffer[1] >= self.length + self.episode - 1)
        info = {"success": ended, "count": int(self.buffer[1])}
        return self.observe(), float(action), ended and not self.truncates, ended and self.truncates, info

    def observe(self):
        pixels = np.full((3, 2), self.buffer[1], dtype=np.uint8)
        return {"policy": self.buffer, "camera": pixels} if self.named else self.buffer


for name, arguments in (("Ends", {}), ("Truncates", {"truncates": True}), ("Named", {"named": True})):
    gymnasium.register(f"shoaltest/{name}-v0", entry_point=Counter, kwargs=arguments, disable_env_checker=True)

FIRST = np.zeros(2, dtype=np.int64)


def test_same_step_gives_the_true_end_even_if_buffers_are_reused():
    env = make_vector("shoaltest/Ends-v0", 2, length=1)
    assert env.autoreset is AutoReset.SAME_STEP
    np.testing.assert_array_equal(env.reset(0)["policy"], [[1, 0], [1, 0]])
    step = env.step(FIRST)
    assert step.terminated.all()
    assert not step.truncated.any()
    assert step.valid.all()
    np.testing.assert_array_equal(step.true_next_observation["policy"], [[1, 1], [1, 1]])
    np.testing.assert_array_equal(step.observation["policy"], [[2, 0], [2, 0]])
    step = env.step(FIRST)
    np.testing.assert_array_equal(step.true_next_observation["policy"], step.observation["policy"])
    np.testing.assert_array_equal(step.observation["policy"], [[2, 1], [2, 1]])


def test_same_step_replaces_only_the_lanes_that_ended():
    lanes = SyncVectorEnv([lambda: Counter(1), lambda: Counter(3)], autoreset_mode=AutoresetMode.SAME_STEP)
    lanes.envs[0] = gymnasium.wrappers.TransformObservation(lanes.envs[0], np.copy, lanes.envs[0].observation_space)
    env = GymnasiumVector(lanes)
    env.reset(0)
    step = env.step(FIRST)
    np.testing.assert_array_equal(step.terminated, [True, False])
    np.testing.assert_array_equal(step.true_next_observation["policy"], [[1, 1], [1, 1]])
    np.testing.assert_array_equal(step.observation["policy"], [[2, 0], [1, 1]])


def test_truncation_is_told_apart_from_termination():
    step = make_vector("shoaltest/Truncates-v0", 2, length=1, seed=0).step(FIRST)
    assert step.truncated.all()
    assert not step.terminated.any()


def test_next_step_marks_the_reset_row():
    env = make_vector("shoaltest/Ends-v0", 2, autoreset="next_step", length=1, seed=0)
    end = env.step(FIRST)
    assert end.terminated.all()
    assert end.valid.all()
    np.testing.assert_array_equal(end.true_next_observation["policy"], [[1, 1], [1, 1]])
    row = env.step(FIRST)
    assert not row.valid.any()
    assert not row.terminated.any()
    np.testing.assert_array_equal(row.reward, 0.0)
    np.testing.assert_array_equal(row.observation["policy"], [[2, 0], [2, 0]])
    assert env.step(FIRST).valid.all()


def test_next_step_forgets_an_end_when_all_is_reset():
    env = make_vector("shoaltest/Ends-v0", 2, autoreset="next_step", length=1, seed=0)
    assert env.step(FIRST).terminated.all()
    env.reset()
    assert env.step(FIRST).valid.all()


def test_disabled_asks_for_a_reset_by_mask():
    lanes = SyncVectorEnv([lambda: Counter(1), lambda: Counter(3)], autoreset_mode=AutoresetMode.DISABLED)
    env = GymnasiumVector(lanes)
    assert env.autoreset is AutoReset.DISABLED
    env.reset(0)
    end = env.step(FIRST)
    np.testing.assert_array_equal(end.observation["policy"], [[1, 1], [1, 1]])
    np.testing.assert_array_equal(end.true_next_observation["policy"], [[1, 1], [1, 1]])
    with pytest.raises(RuntimeError, match=r"lanes \[0\] ended; call reset_lanes"):
        env.step(FIRST)
    with pytest.raises(ValueError, match="names no lane"):
        env.reset_lanes(np.array([False, False]))
    np.testing.assert_array_equal(env.reset_lanes(np.array([True, False]))["policy"], [[2, 0], [1, 1]])
    np.testing.assert_array_equal(env.step(FIRST).observation["policy"], [[2, 1], [1, 2]])


def test_other_modes_refuse_a_reset_by_mask():
    with pytest.raises(RuntimeError, match="resets its lanes itself"):
        make_vector("shoaltest/Ends-v0", 1).reset_lanes(np.array([True]))


def test_named_observations_keep_their_dtypes():
    env = make_vector("shoaltest/Named-v0", 2, length=1, seed=0)
    assert [(spec.name, spec.dtype, spec.shape) for spec in env.observation_spec] == [
        ("camera", "uint8", (3, 2)),
        ("policy", "float32", (2,)),
    ]
    step = env.step(FIRST)
    for observation, count in ((step.observation, 0), (step.true_next_observation, 1)):
        assert observation["camera"].dtype == np.uint8
        assert observation["policy"].dtype == np.float32
        assert (observation["camera"] == count).all()
        assert (observation["policy"][:, 1] == count).all()


def test_discrete_actions_count_from_zero():
    env = make_vector("shoaltest/Ends-v0", 2, seed=0)
    assert env.action_spec.num_actions == 3
    np.testing.assert_array_equal(env.step(np.array([0, 2])).reward, [5.0, 7.0])


def test_metrics_of_an_end_come_from_before_the_reset():
    env = make_vector("shoaltest/Ends-v0", 2, length=2, seed=0)
    before, end = env.step(FIRST).metrics, env.step(FIRST).metrics
    np.testing.assert_array_equal(before["success"], [False, False])
    np.testing.assert_array_equal(end["success"], [True, True])
    np.testing.assert_array_equal(end["count"], [2, 2])


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_cartpole_is_truncated_by_its_time_limit(autoreset):
    env = make_vector("CartPole-v1", 2, autoreset=autoreset, max_episode_steps=5, seed=3)
    for number in range(1, 6):
        step = env.step(np.full(2, number % 2))
        assert step.truncated.all() == (number == 5)
    assert not step.terminated.any()
    assert (np.abs(step.true_next_observation["policy"][:, 1]) > 0.06).all() or autoreset == "next_step"
    assert env.step(FIRST).valid.all() == (autoreset == "same_step")
    env.close()
    env.close()


def test_cartpole_ends_by_falling_with_the_fallen_pole_kept():
    env = make_vector("CartPole-v1", 2, seed=3)
    for _ in range(30):
        step = env.step(np.ones(2, dtype=np.int64))
        if step.terminated.any():
            break
    lane = int(np.flatnonzero(step.terminated)[0])
    assert abs(step.true_next_observation["policy"][lane, 2]) > 0.2
    assert abs(step.observation["policy"][lane, 2]) <= 0.05


def test_seeds_repeat():
    env = make_vector("CartPole-v1", 3, seed=1)
    first = env.reset(8)["policy"].copy()
    assert not np.array_equal(first, env.reset()["policy"])
    np.testing.assert_array_equal(env.reset(8)["policy"], first)
    np.testing.assert_array_equal(env.reset(9)["policy"][:2], first[1:])


def test_a_bounded_box_action_passes_through():
    env = make_vector("Pendulum-v1", 2, seed=1)
    assert env.action_spec.low == (-2.0,)
    assert env.action_spec.high == (2.0,)
    assert env.step(np.array([[-2.0], [2.0]], dtype=np.float32)).reward.shape == (2,)


class Odd(Counter):
    def __init__(self, observation=None, action=None) -> None:
        super().__init__()
        self.observation_space = observation or self.observation_space
        self.action_space = action or self.action_space


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": spaces.Box(-np.inf, np.inf, (2,))}, "not bounded; wrap"),
        ({"action": spaces.Text(3)}, "only Discrete, MultiDiscrete, MultiBinary and Box of floats"),
        ({"observation": spaces.Discrete(4)}, "'policy' is a Discrete space; only Box"),
        ({"observation": spaces.Dict({"a": spaces.Dict({"b": spaces.Box(0, 1)})})}, "'a' is a Dict space; only Box"),
    ],
)
def test_spaces_beyond_the_contract_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        GymnasiumVector(SyncVectorEnv([lambda: Odd(**arguments)]))


class Stub:
    """A vector environment that ends at once and keeps its final observations in its own way."""

    num_envs = 2
    single_observation_space = spaces.Dict({"policy": spaces.Box(-1, 1, (1,))})
    single_action_space = spaces.Discrete(2)

    def __init__(self, info, mode=AutoresetMode.SAME_STEP) -> None:
        self.metadata, self.info = {"autoreset_mode": mode}, info

    def step(self, action):
        ended = np.array([True, False])
        return {"policy": np.zeros((2, 1), np.float32)}, np.zeros(2), np.zeros(2, bool), ended, self.info


def test_batched_final_observations_are_understood():
    final = {"policy": np.array([[0.5], [0.7]], dtype=np.float32)}
    step = GymnasiumVector(Stub({"final_observation": final})).step(FIRST)
    np.testing.assert_array_equal(step.true_next_observation["policy"], np.array([[0.5], [0.0]], dtype=np.float32))


def test_a_lost_final_observation_is_said_to_be_lost():
    assert GymnasiumVector(Stub({})).step(FIRST).true_next_observation is None


def test_an_unknown_autoreset_mode_is_refused():
    with pytest.raises(ValueError, match="gives autoreset_mode as None"):
        GymnasiumVector(Stub({}, mode=None))


def test_no_lanes_are_refused():
    with pytest.raises(ValueError, match="num_lanes is 0"):
        make_vector("CartPole-v1", 0)
