"""Builds the environment that a run file names, and says in one sentence what is wrong with it."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import re
import sys
from types import ModuleType
from typing import Any, Callable, List, Mapping, cast

from services.actor.envs.checked_env import CheckedEnv, without_exit
from services.actor.envs.contract import AutoReset, VectorEnv
from services.actor.envs.lost_tails import DROP, OPTION, DropLostTails
from services.actor.envs.masked_reset import MaskedReset
from services.actor.envs.promises import EnvFactoryError, check_members, check_observation
from services.common.errors import UserError

_FUNCTION = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


def build_env(factory: str, kwargs: Mapping[str, Any], num_lanes: int, seed: int) -> VectorEnv:
    """Build an environment and check that it keeps the contract, by one reset; its first step is checked too.

    Args:
        factory: "package.module:function", called with num_lanes, seed and `kwargs`; or a gymnasium id, "CartPole-v1"
            or "package.module:Name-v0".
        kwargs: further arguments of the function, or of `gymnasium.make`.
        num_lanes: number of lanes.
        seed: of the environment; it has been reset with it when it is returned.

    Raises:
        EnvFactoryError: says what is wrong and what to do.
    """
    env = make_env(factory, kwargs, num_lanes, seed)
    try:
        _check_reset(factory, env, seed)
    except EnvFactoryError:
        close_quietly(env)
        raise
    return CheckedEnv(factory, env)


def make_env(factory: str, kwargs: Mapping[str, Any], num_lanes: int, seed: int) -> VectorEnv:
    """Build an environment with the members of the contract, as yet untried; the arguments are those of `build_env`.

    A gymnasium vector environment that the factory returns is wrapped, one whose auto-reset is disabled is reset by
    mask, and steps without final observation are refused or dropped as `env.kwargs` says.

    Raises:
        EnvFactoryError: it cannot be imported or built, or a member is missing; says what to do.
    """
    build = _function(factory) if _FUNCTION.match(factory) else _gymnasium(factory)
    kwargs = dict(kwargs)
    missing_final = kwargs.pop(OPTION, None)
    if missing_final not in (None, DROP):
        raise EnvFactoryError(
            f"environment {factory!r}: env.kwargs.{OPTION} is {missing_final!r}; it must be {DROP!r}, or left out"
        )
    with without_exit(factory, "the factory"):
        try:
            env = _adapted(factory, build(num_lanes=num_lanes, seed=seed, **kwargs))
        except EnvFactoryError:
            raise
        except Exception as error:
            raise EnvFactoryError(f"environment {factory!r} could not be built: {_describe(error)}") from error
    try:
        check_members(factory, env, num_lanes)
        if missing_final is None:
            _refuse_lost_tails(factory, env)
    except EnvFactoryError:
        close_quietly(env)
        raise
    if env.autoreset is AutoReset.DISABLED and callable(getattr(env, "reset_lanes", None)):
        env = MaskedReset(env)
    return DropLostTails(env) if missing_final == DROP else cast(VectorEnv, env)


def _refuse_lost_tails(factory: str, env: Any) -> None:
    if not getattr(env, "has_final_observations", True):
        raise EnvFactoryError(
            f"environment {factory!r} resets itself and loses the final observation of a truncated episode, so its"
            f' value cannot be bootstrapped; env.kwargs.{OPTION} = "{DROP}" trains without those steps'
        )


def close_quietly(env: Any) -> None:
    """Close what may be no environment at all, so that the sentence about it is not lost."""
    close = getattr(env, "close", None)
    if callable(close):
        with contextlib.suppress(SystemExit):
            close()


def _adapted(factory: str, env: Any) -> Any:
    """What the factory returned, wrapped where gymnasium made it."""
    gymnasium = sys.modules.get("gymnasium")  # whoever returns such an environment has imported it
    if gymnasium is None or hasattr(env, "num_lanes"):
        return env
    if isinstance(env, gymnasium.vector.VectorEnv):
        from services.actor.envs.gymnasium_adapter import GymnasiumVector

        return GymnasiumVector(env)
    if isinstance(env, gymnasium.Env):
        close_quietly(env)
        raise EnvFactoryError(
            f"environment {factory!r} returned a single gymnasium environment; an actor steps a batch: return"
            " vectorize(make_one, num_lanes) of services.actor.envs.gymnasium_adapter"
        )
    return env


def _function(factory: str) -> Callable[..., Any]:
    module_name, name = factory.split(":")
    module = _import(factory, module_name)
    function = getattr(module, name, None)
    if function is None:
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise EnvFactoryError(
            f"environment {factory!r}: the module {module_name!r} has no function {name!r}{_nearest(name, known)}"
        )
    if not callable(function):
        raise EnvFactoryError(f"environment {factory!r}: {name!r} is a {type(function).__name__}, not a function")
    return cast(Callable[..., Any], function)


def _import(factory: str, module_name: str) -> ModuleType:
    with without_exit(factory, f"the import of {module_name}"):
        try:
            return importlib.import_module(module_name)
        # A module may raise anything at all while it is imported, a simulator's above all.
        except Exception as error:
            raise EnvFactoryError(
                f"environment {factory!r}: the module {module_name!r} cannot be imported: {_describe(error)}"
            ) from error


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
        _import(env_id, module_name)
    if name not in gymnasium.registry:
        raise EnvFactoryError(
            f"environment {env_id!r} is neither package.module:function nor a registered gymnasium id"
            f"{_nearest(name, list(gymnasium.registry))}"
        )

    def build(num_lanes: int, seed: int, **kwargs: Any) -> Any:
        return make_vector(name, num_lanes, seed=seed, **kwargs)

    return build


def _check_reset(factory: str, env: VectorEnv, seed: int) -> None:
    with without_exit(factory, "reset"):
        try:
            observation = env.reset(seed)
        except Exception as error:
            raise EnvFactoryError(f"environment {factory!r} could not be reset: {_describe(error)}") from error
    check_observation(factory, env, observation)


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())  # a message of several lines becomes one sentence
    if isinstance(error, UserError):
        return text
    return f"{type(error).__name__}: {text}".rstrip(": ")


def _nearest(name: str, known: List[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
