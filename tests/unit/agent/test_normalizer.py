"""Normalization of observations and rewards, by itself and in both algorithms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict

import numpy as np
import pytest

from services.agent.algorithms import dqn, td3
from services.agent.networks import ObservationEncoder
from services.agent.normalizer import CLIP, MIN_DEVIATION, Normalizer, normalize, reward_scale
from services.common.batch import Batch
from services.common.config.algorithms import DqnSettings, Td3Settings
from services.common.errors import UserError
from services.common.moments import Moments
from services.common.schema import ActionSpec, Schema, TensorSpec

OBSERVATION = (
    TensorSpec("camera", "uint8", (2, 2)),
    TensorSpec("contact", "bool", (1,)),
    TensorSpec("policy", "float32", (3,)),
    TensorSpec("states", "float64", (2,)),
)
ACTIONS = {"td3": ActionSpec((-1.0, -2.0), (1.0, 2.0)), "dqn": ActionSpec(num_actions=4)}
SETTINGS: Dict[str, Any] = {
    "td3": Td3Settings(hidden_sizes=(16, 16), smoothing_stddev=0.0),
    "dqn": DqnSettings(hidden_sizes=(16, 16), target_update_period=7),
}
MODULES: Dict[str, Any] = {"td3": td3, "dqn": dqn}
MOMENTS = {
    "policy": Moments(100, np.array([5.0, -3.0, 0.0]), np.array([400.0, 1.0, 100.0])),
    "states": Moments(90, np.array([100.0, 0.0]), np.array([9000.0, 90.0])),
}
each_algorithm = pytest.mark.parametrize("name", ["td3", "dqn"])


def _schema(name: str) -> Schema:
    return Schema(OBSERVATION, ACTIONS[name])


def _learner(name: str, **changes: Any) -> Any:
    pytest.importorskip("torch")
    return MODULES[name].Learner(_schema(name), SETTINGS[name], seed=0, **changes)


def _policy(name: str) -> Any:
    return MODULES[name].Policy(_schema(name), SETTINGS[name], num_lanes=8, actor_index=0, num_actors=1)


def _normalized(observation: Dict[str, Any]) -> Dict[str, Any]:
    """What the networks are to see, written out."""
    std = np.array([2.0, 0.1, 1.0], np.float32)
    policy = (observation["policy"] - np.array([5.0, -3.0, 0.0], np.float32)) / std
    states = (observation["states"].astype(np.float32) - np.array([100.0, 0.0], np.float32)) / np.array([10, 1], "f")
    return {**observation, "policy": policy.clip(-10, 10), "states": states.clip(-10, 10).astype(np.float64)}


def test_until_there_are_statistics_nothing_is_changed() -> None:
    normalizer = Normalizer(_schema("td3"), observations=True, reward_scale=1.0)
    assert set(normalizer.parameters) == {
        "normalizer.policy.mean",
        "normalizer.policy.std",
        "normalizer.states.mean",
        "normalizer.states.std",
    }
    rows = np.array([[1.5, -2.0, 0.25]], np.float32)
    np.testing.assert_array_equal(normalize(normalizer.parameters, "policy", rows), rows)
    assert normalizer.steps == 0
    assert reward_scale(normalizer.parameters) == 1.0


def test_without_it_the_set_holds_nothing_and_rows_are_themselves() -> None:
    normalizer = Normalizer(_schema("td3"), observations=False, reward_scale=1.0)
    assert normalizer.parameters == normalizer.state() == {}
    rows = np.ones((2, 3), np.float32)
    assert normalize(normalizer.parameters, "policy", rows) is rows
    normalizer.take({})
    assert normalizer.parameters == {}


def test_deviations_have_a_floor_and_results_a_bound() -> None:
    normalizer = Normalizer(_schema("td3"), observations=True, reward_scale=1.0)
    still = {**MOMENTS, "policy": Moments(100, np.zeros(3), np.array([0.0, 1e-12, 400.0]))}
    normalizer.take(still)
    assert normalizer.parameters["normalizer.policy.std"].tolist() == pytest.approx([MIN_DEVIATION, MIN_DEVIATION, 2])
    rows = np.array([[0.5, -1e-3, -1e30]], np.float32)
    np.testing.assert_allclose(normalize(normalizer.parameters, "policy", rows), [[CLIP, -1, -CLIP]], rtol=1e-6)
    assert rows[0, 0] == 0.5  # what came in is left alone


def test_images_and_flags_are_left_alone() -> None:
    normalizer = Normalizer(_schema("td3"), observations=True, reward_scale=1.0)
    normalizer.take(MOMENTS)
    observation = {
        "camera": np.array([[[0, 255], [51, 102]]], np.uint8),
        "contact": np.array([[True]]),
        "policy": np.array([[7.0, -3.0, 1.0]], np.float32),
        "states": np.array([[110.0, -50.0]]),
    }
    policy, critic = ObservationEncoder(_schema("td3")).encode(observation, normalizer.parameters)
    np.testing.assert_allclose(policy, [[0, 1, 0.2, 0.4, 1, 1, 0, 1]])
    np.testing.assert_allclose(critic, [[0, 1, 0.2, 0.4, 1, 1, 0, 1, 1, -10]])
    assert policy.dtype == critic.dtype == np.float32


def test_values_beyond_float32_are_refused() -> None:
    normalizer = Normalizer(_schema("td3"), observations=True, reward_scale=1.0)
    with pytest.raises(UserError, match="observation 'states' has values too large to be normalized"):
        normalizer.take({**MOMENTS, "states": Moments(2, np.array([1e300, 0.0]), np.zeros(2))})
    assert normalizer.steps == 0


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_cannot_be_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="reward_scale is"):
        Normalizer(_schema("td3"), observations=False, reward_scale=scale)


def test_steps_are_those_of_the_tensor_that_was_seen_least() -> None:
    normalizer = Normalizer(_schema("td3"), observations=True, reward_scale=1.0)
    normalizer.take(MOMENTS)
    assert normalizer.steps == 90


@each_algorithm
def test_learning_on_raw_observations_equals_learning_on_normalized_ones(name: str, make_batch: Any) -> None:
    raw, plain = _learner(name, normalize_observations=True), _learner(name)
    raw.normalizer.take(MOMENTS)
    weights = np.linspace(0.1, 1, 16, dtype=np.float32)
    for k in range(12):
        batch: Batch = make_batch(_schema(name), 16, seed=k)
        seen = replace(
            batch,
            observation=_normalized(batch.observation),
            next_observation=_normalized(batch.next_observation),
        )
        errors = raw.update(batch, weights).td_error, plain.update(seen, weights).td_error
        np.testing.assert_allclose(errors[0], errors[1], rtol=1e-3, atol=1e-4)
    for parameter, array in plain.acting_parameters().items():
        np.testing.assert_allclose(raw.acting_parameters()[parameter], array, rtol=1e-3, atol=1e-4)


@each_algorithm
def test_actors_see_what_the_learner_of_the_same_set_sees(name: str, make_batch: Any) -> None:
    """First TD error by the actor's numpy pass = that of the learner's torch pass, under the published statistics."""
    learner = _learner(name, normalize_observations=True, reward_scale=0.25)
    learner.normalizer.take(MOMENTS)
    policy, published = _policy(name), learner.acting_parameters()
    batch: Batch = make_batch(_schema(name), 8)
    decision = policy.act(published, batch.observation, np.random.default_rng(0))
    batch.action = decision.action
    bootstrap = policy.value(published, batch.next_observation)
    td_error = learner.update(batch, np.ones(8, np.float32)).td_error
    first = batch.n_step_return + batch.discount * bootstrap - decision.q_taken
    if name == "dqn":
        np.testing.assert_allclose(np.abs(first), td_error, rtol=1e-3, atol=1e-4)
    else:  # the mean of |delta| over two critics is at least |mean delta|
        assert (td_error >= np.abs(first) - 1e-3).all()
        assert np.abs(td_error - np.abs(first)).max() < 4  # in rewards, not in quarters of them


@each_algorithm
def test_a_scale_of_rewards_is_learning_from_scaled_rewards(name: str, make_batch: Any) -> None:
    scaled, plain = _learner(name, reward_scale=0.25), _learner(name)
    weights = np.ones(16, np.float32)
    for k in range(12):
        batch: Batch = make_batch(_schema(name), 16, seed=k)
        less = replace(batch, n_step_return=batch.n_step_return * np.float32(0.25))
        errors = scaled.update(batch, weights).td_error, plain.update(less, weights).td_error
        np.testing.assert_allclose(errors[0] * 0.25, errors[1], rtol=1e-6)
    ours, theirs = scaled.acting_parameters(), plain.acting_parameters()
    assert ours.pop("normalizer.reward_scale") == np.float32(0.25)
    for parameter, array in theirs.items():
        np.testing.assert_array_equal(ours[parameter], array)
    observation = make_batch(_schema(name), 8).observation
    values = [_policy(name).value(each.acting_parameters(), observation) for each in (scaled, plain)]
    np.testing.assert_allclose(values[0] * 0.25, values[1], rtol=1e-6)


@each_algorithm
def test_statistics_travel_with_every_set_and_with_the_state(name: str) -> None:
    learner = _learner(name, normalize_observations=True, reward_scale=2.0)
    learner.normalizer.take(MOMENTS)
    for published in (learner.acting_parameters(), learner.learning_parameters()):
        assert published["normalizer.policy.mean"].tolist() == [5, -3, 0]
        assert published["normalizer.reward_scale"] == 2
        published["normalizer.policy.mean"][:] = 9  # a copy
    helper = _learner(name, normalize_observations=True, reward_scale=2.0)
    helper.load_learning_parameters(learner.learning_parameters(), 5)
    resumed = _learner(name, normalize_observations=True, reward_scale=2.0)
    resumed.load_state(learner.state())
    for other in (helper, resumed):
        for parameter, array in learner.normalizer.parameters.items():
            np.testing.assert_array_equal(other.normalizer.parameters[parameter], array)
    assert resumed.normalizer.steps == 90
    with pytest.raises(ValueError, match=r"normalizer\.policy\.mean"):
        _learner(name).load_state(_learner(name, normalize_observations=True).state())


def test_tensors_are_normalized_and_clipped_as_arrays_are() -> None:
    torch = pytest.importorskip("torch")
    parameters: Dict[str, Any] = {
        "normalizer.policy.mean": np.array([5.0, -3.0, 0.0], np.float32),
        "normalizer.policy.std": np.array([2.0, 0.1, 1.0], np.float32),
    }
    rows = np.array([[5.0, -3.0, 0.5], [1e6, -1e6, 9.9], [-50.0, 50.0, 10.1]], np.float32)
    tensors = {name: torch.from_numpy(array) for name, array in parameters.items()}
    expected = normalize(parameters, "policy", rows.copy())
    assert np.abs(expected).max() == CLIP
    np.testing.assert_array_equal(normalize(tensors, "policy", torch.from_numpy(rows.copy())).numpy(), expected)
