"""Which algorithms there are, by the name that the run file gives."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Tuple

from services.common.parameter_set import ParameterShapes
from services.common.schema import ActionSpec, Schema

ALGORITHMS: Tuple[str, ...] = ("dqn", "td3")  # each a module of services.agent.algorithms with Policy and Learner


def policy_class(name: str) -> Any:
    """The class of `services.agent.algorithm.Policy` of an algorithm; imports no torch.

    Raises:
        ValueError: there is no such algorithm.
    """
    return _module(name).Policy


def learner_class(name: str) -> Any:
    """The class of `services.agent.algorithm.Learner` of an algorithm; its constructor imports torch.

    Raises:
        ValueError: there is no such algorithm.
    """
    return _module(name).Learner


def acting_shapes(name: str, schema: Schema, settings: Any) -> ParameterShapes:
    """What a set must hold for an algorithm's policy to act on it.

    Args:
        name: of the algorithm.
        schema: of the environment.
        settings: of the algorithm.

    Raises:
        ValueError: there is no such algorithm.
    """
    shapes: ParameterShapes = _module(name).acting_shapes(schema, settings)
    return shapes


def check_action(name: str, action: ActionSpec) -> None:
    """Refuse an environment whose kind of action the algorithm cannot learn.

    Raises:
        ValueError: there is no such algorithm.
        SchemaError: the kind of action does not fit.
    """
    _module(name).check_action(action)


def _module(name: str) -> ModuleType:
    if name not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {name!r}; known are {', '.join(ALGORITHMS)}")
    return importlib.import_module(f"services.agent.algorithms.{name}")
