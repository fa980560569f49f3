import pytest

from services.agent.algorithms import dqn, td3
from services.agent.registry import ALGORITHMS, acting_shapes, check_action, learner_class, policy_class
from services.common.config.algorithms import DqnSettings, Td3Settings
from services.common.schema import ActionSpec, Schema, SchemaError, TensorSpec

DISCRETE, CONTINUOUS = ActionSpec(num_actions=3), ActionSpec((-1.0,), (1.0,))
OBSERVATION = (
    TensorSpec("image", "uint8", (4, 4, 3)),
    TensorSpec("policy", "float32", (3, 2)),
    TensorSpec("states", "float32", (2,)),
)
CASES = {"dqn": (DISCRETE, DqnSettings(hidden_sizes=(5, 6))), "td3": (CONTINUOUS, Td3Settings(hidden_sizes=(5, 6)))}


def test_names_give_classes() -> None:
    assert [policy_class(name) for name in ALGORITHMS] == [dqn.Policy, td3.Policy]
    assert [learner_class(name) for name in ALGORITHMS] == [dqn.Learner, td3.Learner]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_a_policy_expects_is_what_its_learner_publishes(name: str) -> None:
    pytest.importorskip("torch")
    action, settings = CASES[name]
    schema = Schema(OBSERVATION, action)
    shapes = acting_shapes(name, schema, settings)
    plain = learner_class(name)(schema, settings, seed=0).acting_parameters()
    assert dict(shapes.required) == {name: array.shape for name, array in plain.items()}
    rich = learner_class(name)(schema, settings, seed=0, normalize_observations=True, reward_scale=0.5)
    everything = {name: array.shape for name, array in rich.acting_parameters().items()}
    assert {**shapes.required, **shapes.optional} == everything
    assert shapes.difference(plain) == shapes.difference(rich.acting_parameters()) == ""
    wider = type(settings)(hidden_sizes=(7, 6))
    first = next(iter(shapes.required))
    theirs = acting_shapes(name, schema, wider).required[first]
    other = learner_class(name)(schema, wider, seed=0).acting_parameters()
    assert shapes.difference(other) == f"{first!r} is {theirs} there, and {shapes.required[first]} here"


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    for function in (policy_class, learner_class):
        with pytest.raises(ValueError, match="'ppo'; known are dqn, td3"):
            function("ppo")


def test_kind_of_action_must_fit() -> None:
    check_action("dqn", DISCRETE)
    check_action("td3", CONTINUOUS)
    with pytest.raises(SchemaError, match="dqn needs discrete actions"):
        check_action("dqn", CONTINUOUS)
    with pytest.raises(SchemaError, match="td3 needs continuous actions"):
        check_action("td3", DISCRETE)
