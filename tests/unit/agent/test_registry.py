import pytest

from services.agent.algorithms import dqn, td3
from services.agent.registry import ALGORITHMS, check_action, learner_class, policy_class
from services.common.schema import ActionSpec, SchemaError

DISCRETE, CONTINUOUS = ActionSpec(num_actions=3), ActionSpec((-1.0,), (1.0,))


def test_names_give_classes() -> None:
    assert [policy_class(name) for name in ALGORITHMS] == [dqn.Policy, td3.Policy]
    assert [learner_class(name) for name in ALGORITHMS] == [dqn.Learner, td3.Learner]


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
