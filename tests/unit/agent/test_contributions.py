"""An update in two halves: gradients that anyone may compute, and the step that the chief takes with their mean."""

from __future__ import annotations

import numpy as np
import pytest

from services.agent.algorithm import NonFiniteUpdate
from services.agent.health import REPORT_PERIOD
from services.agent.registry import learner_class
from services.common.config.algorithms import DqnSettings, Td3Settings
from services.common.schema import ActionSpec, Schema, TensorSpec

pytest.importorskip("torch")

OBSERVATION = (TensorSpec("policy", "float32", (5,)),)
CASES = {
    "td3": (Schema(OBSERVATION, ActionSpec(low=(-1.0, 0.0), high=(1.0, 2.0))), Td3Settings(hidden_sizes=(16, 16))),
    "dqn": (Schema(OBSERVATION, ActionSpec(num_actions=3)), DqnSettings(hidden_sizes=(16, 16), target_update_period=3)),
}
ONES = np.ones(16, dtype=np.float32)


@pytest.fixture(params=sorted(CASES))
def case(request, make_batch):
    schema, settings = CASES[request.param]

    def make_learner(seed=0):
        return learner_class(request.param)(schema, settings, seed=seed)

    def batch(seed):
        return make_batch(schema, 16, seed=seed)

    return make_learner, batch


def _assert_equal(state, expected) -> None:
    assert set(state) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)


def test_computing_changes_no_parameter_and_applying_takes_the_step(case) -> None:
    make_learner, batch = case
    learner, updating = make_learner(), make_learner()
    before = learner.state()
    contribution = learner.compute(batch(0), ONES)
    after = learner.state()
    before.pop("generator", None), after.pop("generator", None)
    _assert_equal(after, before)
    # The first update moves no policy that is delayed: its two halves and the whole are the same step.
    learner.apply(contribution.gradients)
    update = updating.update(batch(0), ONES)
    np.testing.assert_array_equal(contribution.td_error, update.td_error)
    _assert_equal(learner.state(), updating.state())
    assert learner.updates == 1


def test_a_helper_with_the_chiefs_parameters_computes_the_chiefs_gradients(case) -> None:
    make_learner, batch = case
    chief, helper = make_learner(seed=0), make_learner(seed=0)
    for k in range(7):
        chief.update(batch(k), ONES)
        helper.compute(batch(k), ONES)  # moves its generator as the chief's
    assert helper.updates == 0
    helper.load_learning_parameters(chief.learning_parameters(), chief.updates)
    assert helper.updates == chief.updates == 7
    ours, theirs = chief.compute(batch(9), ONES), helper.compute(batch(9), ONES)
    _assert_equal(theirs.gradients, ours.gradients)
    np.testing.assert_array_equal(theirs.td_error, ours.td_error)
    names = {name for name in ours.gradients if name.startswith("policy")}
    assert bool(names) == any(name.startswith("policy") for name in chief.acting_parameters())  # due at the 8th


def test_gradients_that_are_not_finite_change_nothing(case) -> None:
    make_learner, batch = case
    learner = make_learner()
    learner.update(batch(0), ONES)
    gradients = learner.compute(batch(1), ONES).gradients
    for name in gradients:  # one value in any tensor is enough
        for poison in (np.nan, np.inf):
            poisoned = {key: array.copy() for key, array in gradients.items()}
            poisoned[name].flat[-1] = poison
            before = learner.state()
            with pytest.raises(NonFiniteUpdate, match=name):
                learner.apply(poisoned)
            _assert_equal(learner.state(), before)


def test_a_batch_that_is_not_finite_changes_no_parameter(case) -> None:
    make_learner, batch = case
    learner = make_learner()
    learner.update(batch(0), ONES)
    poisoned = batch(1)
    poisoned.n_step_return[3] = np.inf
    before = learner.state()
    for attempt in (learner.update, learner.compute):
        with pytest.raises(NonFiniteUpdate, match="not finite"):
            attempt(poisoned, ONES)
    after = learner.state()
    before.pop("generator", None), after.pop("generator", None)
    _assert_equal(after, before)


def test_the_rate_is_scaled_for_one_step(case) -> None:
    make_learner, batch = case
    steps = {}
    for scale in (1.0, 0.25):
        learner = make_learner()
        start = learner.acting_parameters()
        learner.apply(learner.compute(batch(0), ONES).gradients, rate_scale=scale)
        between = learner.acting_parameters()
        learner.apply(learner.compute(batch(0), ONES).gradients)
        end = learner.acting_parameters()
        steps[scale] = [
            np.concatenate([(later[name] - earlier[name]).ravel() for name in start])
            for earlier, later in ((start, between), (between, end))
        ]
    np.testing.assert_allclose(steps[0.25][0], 0.25 * steps[1.0][0], atol=2e-7)
    assert np.linalg.norm(steps[0.25][1]) > 0.5 * np.linalg.norm(steps[1.0][1])


def test_applied_gradients_are_reported_on_like_an_update(case) -> None:
    make_learner, batch = case
    chief, updating = make_learner(), make_learner()
    for k in range(2 * REPORT_PERIOD):
        applied = chief.apply(chief.compute(batch(k), ONES).gradients)
        updated = updating.update(batch(k), ONES).metrics
        assert bool(applied) == bool(updated) == ((k + 1) % REPORT_PERIOD == 0)
    assert set(applied) == set(updated)
    # Gradients that came from elsewhere: what is known of no batch is left out.
    gradients = chief.compute(batch(0), ONES).gradients
    for _ in range(REPORT_PERIOD - 1):
        chief.apply(gradients)
    chief.compute(batch(0), ONES)
    assert "q_mean" in chief.apply(gradients)
    for _ in range(REPORT_PERIOD):
        applied = chief.apply(gradients)
    assert not {name for name in applied if name == "q_mean" or name.endswith("_loss")}
    assert any(name.endswith("_update_ratio") for name in applied)


def test_a_state_is_copied_into_the_memory_of_an_earlier_one(case) -> None:
    make_learner, batch = case
    learner = make_learner()
    first = learner.state()
    held = {name: array.copy() for name, array in first.items()}
    learner.update(batch(0), ONES)
    _assert_equal(first, held)  # a copy
    second = learner.state(into=first)
    _assert_equal(second, learner.state())
    assert all(second[name] is first[name] for name in first)
    assert any((second[name] != held[name]).any() for name in held)
    _assert_equal(learner.state(into={"updates": np.zeros(3)}), second)  # what does not fit is not used


def test_another_networks_learning_parameters_are_refused(case) -> None:
    make_learner, _ = case
    learner = make_learner()
    parameters = learner.learning_parameters()
    name = sorted(parameters)[0]
    parameters[name] = parameters[name][..., :1]
    with pytest.raises(ValueError, match=name):
        learner.load_learning_parameters(parameters, 3)
    assert learner.updates == 0
