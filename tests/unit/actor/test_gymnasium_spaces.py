from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from services.actor.envs.gymnasium_adapter import vectorize
from services.actor.envs.gymnasium_spaces import MAX_COMBINATIONS, action_translator

BOX = spaces.Box(-1.0, np.array([1.0, 2.0], np.float32), dtype=np.float32)

discrete = st.builds(spaces.Discrete, st.integers(1, 4), start=st.integers(-2, 2))
multi = st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 3), min_size=1, max_size=3))
binary = st.builds(spaces.MultiBinary, st.integers(1, 3))
leaves = st.one_of(discrete, multi, binary)
nested = st.one_of(
    leaves,
    st.builds(spaces.Dict, st.dictionaries(st.sampled_from("abc"), leaves, min_size=1, max_size=2)),
    st.builds(spaces.Tuple, st.lists(leaves, min_size=1, max_size=2)),
)


def row(batch: Any, lane: int) -> Any:
    """One lane's sample of a batch."""
    if isinstance(batch, dict):
        return {name: row(part, lane) for name, part in batch.items()}
    return tuple(row(part, lane) for part in batch) if isinstance(batch, tuple) else batch[lane]


def flat(sample: Any) -> Any:
    if isinstance(sample, dict):
        return tuple(flat(part) for part in sample.values())
    return tuple(flat(part) for part in sample) if isinstance(sample, tuple) else tuple(np.ravel(sample).tolist())


@settings(deadline=None)  # a loaded machine is no fault
@given(nested)
def test_every_number_is_another_sample_of_the_space(space: Any) -> None:
    actions = action_translator(space)
    count = actions.spec.num_actions
    batch = actions.translate(np.arange(count, dtype=np.int64))
    samples = [row(batch, lane) for lane in range(count)]
    assert all(space.contains(sample) for sample in samples)
    assert len({flat(sample) for sample in samples}) == count


def test_the_last_choice_changes_fastest() -> None:
    actions = action_translator(spaces.MultiDiscrete([2, 3]))
    assert actions.spec.num_actions == 6
    assert actions.translate(np.arange(6)).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def test_boxes_of_a_dict_are_joined() -> None:
    space = spaces.Dict({"gripper": spaces.Box(0.0, 3.0, (1, 1)), "arm": BOX})
    actions = action_translator(space)
    assert actions.spec.low == (-1.0, -1.0, 0.0)
    assert actions.spec.high == (1.0, 2.0, 3.0)
    batch = actions.translate(np.array([[0.5, 1.5, 2.5], [0.0, 1.0, 2.0]], np.float32))
    assert batch["arm"].tolist() == [[0.5, 1.5], [0.0, 1.0]]
    assert batch["gripper"].tolist() == [[[2.5]], [[2.0]]]
    assert space.contains(row(batch, 0))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.MultiDiscrete([17, 16, 16]), f"has 4352 combinations; at most {MAX_COMBINATIONS}"),
        (spaces.MultiBinary(80), f"has {2**80} combinations"),
        (spaces.Dict({"arm": BOX, "gripper": spaces.Discrete(2)}), "a Dict or Tuple of one kind"),
        (spaces.Box(0, 5, (2,), np.int64), "Box of floats"),
        (spaces.Dict({"arm": spaces.Box(-np.inf, 1.0, (2,))}), "not bounded"),
        (spaces.Dict({}), "only Discrete"),
    ],
)
def test_other_actions_are_refused(space: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        action_translator(space)


class Checks(gymnasium.Env):
    """Checks each action and returns it as the observation."""

    def __init__(self, space: Any, size: int) -> None:
        self.action_space = space
        self.observation_space = spaces.Box(-9, 9, (size,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return np.concatenate([np.ravel(v) for v in _values(action)]).astype(np.float32), 0.0, False, False, {}


def _values(action: Any) -> Any:
    if isinstance(action, dict):
        return list(action.values())
    return list(action) if isinstance(action, tuple) else [action]


@pytest.mark.parametrize(
    ("space", "action", "want"),
    [
        (spaces.MultiDiscrete([2, 3]), np.array([5, 1]), [[1, 2], [0, 1]]),
        (spaces.MultiBinary(2), np.array([2, 1]), [[1, 0], [0, 1]]),
        (
            spaces.Tuple((spaces.Discrete(2, start=3), spaces.MultiDiscrete([2]))),
            np.array([1, 2]),
            [[3, 1], [4, 0]],
        ),
        (
            spaces.Dict({"arm": BOX, "gripper": spaces.Box(0, 1, (1,))}),
            np.array([[0.5, 1.5, 1.0], [-1.0, 0.0, 0.0]], np.float32),
            [[0.5, 1.5, 1.0], [-1.0, 0.0, 0.0]],
        ),
    ],
)
def test_environments_get_the_samples_that_they_ask_for(space: Any, action: Any, want: Any) -> None:
    env = vectorize(lambda: Checks(space, len(want[0])), 2, seed=1)
    assert env.step(action).observation["policy"].tolist() == want
