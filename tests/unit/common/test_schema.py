from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Dict

import pytest

from services.common.schema import ActionSpec, Schema, SchemaError, TensorSpec

POLICY, STATES = TensorSpec("policy", "float32", (3,)), TensorSpec("states", "uint8", (2, 2))
ACTION = ActionSpec((-1.0, -2.0), (1.0, 2.0))
SCHEMA = Schema((STATES, POLICY), ACTION)

CHANGES: Dict[str, Schema] = {
    "a name": Schema((replace(POLICY, name="other"), STATES), ACTION),
    "a dtype": Schema((replace(POLICY, dtype="float64"), STATES), ACTION),
    "a shape": Schema((replace(POLICY, shape=(4,)), STATES), ACTION),
    "a tensor less": Schema((POLICY,), ACTION),
    "a bound": Schema((POLICY, STATES), ActionSpec((-1.0, -2.0), (1.0, 2.5))),
    "discrete": Schema((POLICY, STATES), ActionSpec(num_actions=2)),
}


def test_the_order_of_observations_makes_no_difference() -> None:
    assert Schema((POLICY, STATES), ACTION) == SCHEMA
    assert [spec.name for spec in SCHEMA.observation] == ["policy", "states"]
    assert SCHEMA.difference(Schema((POLICY, STATES), ACTION)) == ""


@pytest.mark.parametrize("what", CHANGES)
def test_any_change_changes_the_digest_and_is_told(what: str) -> None:
    assert CHANGES[what].digest != SCHEMA.digest
    assert SCHEMA.difference(CHANGES[what])


def test_the_difference_says_what_is_where() -> None:
    assert SCHEMA.difference(CHANGES["a shape"]) == "observation 'policy' is float32[3] here, float32[4] there"
    assert SCHEMA.difference(CHANGES["a tensor less"]) == "observation 'states' is missing there"
    assert CHANGES["a tensor less"].difference(SCHEMA) == "observation 'states' is missing here"
    assert "the action is" in SCHEMA.difference(CHANGES["discrete"])


def test_a_schema_survives_json() -> None:
    for schema in (SCHEMA, CHANGES["discrete"]):
        again = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
        assert again == schema
        assert again.digest == schema.digest
        assert len(again.digest) == 16


def test_action_kinds() -> None:
    assert (ACTION.shape, ACTION.dtype, ACTION.is_discrete) == ((2,), "float32", False)
    discrete = ActionSpec(num_actions=3)
    assert (discrete.shape, discrete.dtype, discrete.is_discrete) == ((), "int64", True)
    assert (POLICY.num_bytes, STATES.num_bytes, TensorSpec("x", "int64", ()).num_bytes) == (12, 4, 8)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "needs bounds"),
        ({"low": (0.0,), "high": (1.0,), "num_actions": 2}, "not both"),
        ({"num_actions": -1}, "at least 1"),
        ({"low": (0.0,), "high": (1.0, 2.0)}, "must match"),
        ({"low": (0.0,), "high": (0.0,)}, "low < high"),
        ({"low": (0.0,), "high": (float("inf"),)}, "finite"),
    ],
)
def test_impossible_actions_are_refused(values: Any, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        ActionSpec(**values)


def test_impossible_tensors_and_schemas_are_refused() -> None:
    with pytest.raises(SchemaError, match="no name"):
        TensorSpec("", "float32", (1,))
    with pytest.raises(SchemaError, match="'complex64'"):
        TensorSpec("x", "complex64", (1,))
    with pytest.raises(SchemaError, match="at least 1"):
        TensorSpec("x", "float32", (2, 0))
    with pytest.raises(SchemaError, match="no observation"):
        Schema((), ACTION)
    with pytest.raises(SchemaError, match="repeat: policy, policy"):
        Schema((POLICY, POLICY), ACTION)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((2**32 - 1,) * 8, "policy"),
        ((1,) * 17, "policy"),
        ((1 << 27,), "policy"),
        ((1,), "x" * 201),
        ((1,), "\u00e9" * 40),
    ],
)
def test_what_nobody_has_room_for_is_refused(shape: Any, name: str) -> None:
    with pytest.raises(SchemaError):
        Schema((TensorSpec(name, "float64", shape),), ActionSpec(num_actions=2))


def test_a_schema_of_too_many_tensors_is_refused() -> None:
    specs = tuple(TensorSpec(f"t{number}", "float32", (1,)) for number in range(300))
    with pytest.raises(SchemaError, match="it may have 256"):
        Schema(specs, ActionSpec(num_actions=2))
    with pytest.raises(SchemaError, match="dimensions"):
        Schema(specs[:1], ActionSpec((0.0,) * 70_000, (1.0,) * 70_000))


def test_bytes_of_a_step_are_counted_without_wrapping() -> None:
    assert TensorSpec("a", "float64", (2**32 - 1,) * 4).num_bytes == 8 * (2**32 - 1) ** 4
