"""Builds the environment that a run file names, and says in one sentence what is wrong with it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from typing import Any, Callable, List, Mapping, cast

import numpy as np

from services.actor.envs.contract import VectorEnv
from services.common.errors import UserError

_FUNCTION = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
_MEMBERS = ("num_lanes", "autoreset", "observation_spec", "action_spec")
_METHODS = ("reset", "step", "close")


class EnvFactoryError(UserError, ValueError):
    """The environment cannot be built, or does not keep the contract; the message is one sentence for the user."""


def build_env(factory: str, kwargs: Mapping[str, Any], num_lanes: int, seed: int) -> VectorEnv:
    """Build an environment and check that it keeps the contract, by one reset.

    Args:
        factory: "package.module:function", called with num_lanes, seed and `kwargs`; or a gymnasium id, "CartPole-v1"
            or "package.module:Name-v0".
        kwargs: further arguments of the function, or of `gymnasium.make`.
        num_lanes: number of lanes.
        seed: of the environment; it has been reset with it when it is returned.

    Raises:
        EnvFactoryError: says what is wrong and what to do.
    """
    build = _function(factory) if _FUNCTION.match(factory) else _gymnasium(factory)
    try:
        env = build(num_lanes=num_lanes, seed=seed, **kwargs)
    except Exception as error:
        raise EnvFactoryError(f"environment {factory!r} could not be built: {_describe(error)}") from error
    try:
        _check(factory, env, num_lanes, seed)
    except EnvFactoryError:
        close = getattr(env, "close", None)
        if callable(close):
            close()
        raise
    return cast(VectorEnv, env)


def _function(factory: str) -> Callable[..., Any]:
    module_name, name = factory.split(":")
    try:
        module = importlib.import_module(module_name)
    # A module may raise anything at all while it is imported, a simulator's above all.
    except Exception as error:
        raise EnvFactoryError(
            f"environment {factory!r}: the module {module_name!r} cannot be imported: {_describe(error)}"
        ) from error
    function = getattr(module, name, None)
    if function is None:
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise EnvFactoryError(
            f"environment {factory!r}: the module {module_name!r} has no function {name!r}{_nearest(name, known)}"
        )
    if not callable(function):
        raise EnvFactoryError(f"environment {factory!r}: {name!r} is a {type(function).__name__}, not a function")
    return cast(Callable[..., Any], function)


def _gymnasium(env_id: str) -> Callable[..., Any]:
    try:
        import gymnasium

        from services.actor.envs.gymnasium_adapter import make_vector
    except ImportError as error:
        raise EnvFactoryError(
            f"environment {env_id!r} is taken for a gymnasium id, but gymnasium cannot be imported: {_describe(error)};"
            " install shoal[actor], or write package.module:function"
        ) from error
    module_name, _, name = env_id.rpartition(":")
    if module_name:
        try:
            importlib.import_module(module_name)
        except Exception as error:
            raise EnvFactoryError(
                f"environment {env_id!r}: the module {module_name!r} cannot be imported: {_describe(error)}"
            ) from error
    if name not in gymnasium.registry:
        raise EnvFactoryError(
            f"environment {env_id!r} is neither package.module:function nor a registered gymnasium id"
            f"{_nearest(name, list(gymnasium.registry))}"
        )

    def build(num_lanes: int, seed: int, **kwargs: Any) -> Any:
        return make_vector(name, num_lanes, seed=seed, **kwargs)

    return build


def _check(factory: str, env: Any, num_lanes: int, seed: int) -> None:
    for member in _MEMBERS:
        # Looked up without calling it: a property that raises is another fault than one that is missing.
        if inspect.getattr_static(env, member, None) is None and not hasattr(env, member):
            raise EnvFactoryError(
                f"environment {factory!r} returned a {type(env).__name__}, which has no {member}: it is not a VectorEnv"
            )
    for member in _METHODS:
        if not callable(getattr(env, member, None)):
            raise EnvFactoryError(
                f"environment {factory!r} returned a {type(env).__name__}, which has no method {member}: it is not a"
                " VectorEnv"
            )
    if env.num_lanes != num_lanes:
        raise EnvFactoryError(f"environment {factory!r} has {env.num_lanes} lanes; {num_lanes} were asked for")
    try:
        observation = env.reset(seed)
    except Exception as error:
        raise EnvFactoryError(f"environment {factory!r} could not be reset: {_describe(error)}") from error
    _check_observation(factory, env, observation, num_lanes)


def _check_observation(factory: str, env: VectorEnv, observation: Any, num_lanes: int) -> None:
    if not isinstance(observation, Mapping):
        raise EnvFactoryError(
            f"environment {factory!r}: reset returned a {type(observation).__name__}; it must return a dict of tensors"
        )
    promised, given = sorted(spec.name for spec in env.observation_spec), sorted(observation)
    if promised != given:
        raise EnvFactoryError(
            f"environment {factory!r}: observation_spec names {', '.join(promised)}, but reset returned"
            f" {', '.join(given)}"
        )
    for spec in env.observation_spec:
        tensor = observation[spec.name]
        shape, dtype = (num_lanes, *spec.shape), getattr(tensor, "dtype", None)
        if tuple(getattr(tensor, "shape", ())) != shape:
            raise EnvFactoryError(
                f"environment {factory!r}: observation {spec.name!r} has shape {tuple(np.shape(tensor))} after reset;"
                f" observation_spec and {num_lanes} lanes promise {shape}"
            )
        # Torch writes its dtypes as torch.float32.
        if str(dtype).rpartition(".")[2] != spec.dtype:
            raise EnvFactoryError(
                f"environment {factory!r}: observation {spec.name!r} is {dtype} after reset; observation_spec promises"
                f" {spec.dtype}"
            )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _nearest(name: str, known: List[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
