"""What an environment promises, against what it hands out; what differs is said in one sentence."""

from __future__ import annotations

import inspect
from typing import Any, Iterator, Mapping, NamedTuple, Tuple

import numpy as np

from services.actor.envs.contract import AutoReset, VectorEnv
from services.common.errors import UserError
from services.common.schema import ActionSpec, TensorSpec

_MEMBERS = ("num_lanes", "autoreset", "observation_spec", "action_spec")
_METHODS = ("reset", "step", "close")
_STEP_FIELDS = ("observation", "true_next_observation", "reward", "terminated", "truncated", "valid", "metrics")
MAX_TEXT = 80  # characters of a value in a sentence
_FLAGS = ("terminated", "truncated", "valid")


class Problem(NamedTuple):
    """Something that an environment handed out, and had promised otherwise."""

    text: str  # a sentence without its full stop
    is_readable: bool = False  # only a dtype differs: the numbers can be looked at all the same


class EnvFactoryError(UserError, ValueError):
    """The environment cannot be built, or does not keep the contract; the message is one sentence for the user."""


def check_members(factory: str, env: Any, num_lanes: int) -> None:
    """Look for the members of a `VectorEnv`, and at the types of its specs.

    Args:
        factory: as the run file names it, for the sentences.
        env: what the factory returned.
        num_lanes: what it was asked for.

    Raises:
        EnvFactoryError: names the member.
    """
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
    specs = env.observation_spec
    if not isinstance(specs, (tuple, list)) or not all(isinstance(spec, TensorSpec) for spec in specs):
        raise EnvFactoryError(
            f"environment {factory!r}: observation_spec is {_short(specs)}; it must be a tuple of TensorSpec"
        )
    if not isinstance(env.action_spec, ActionSpec):
        raise EnvFactoryError(
            f"environment {factory!r}: action_spec is {_short(env.action_spec)}; it must be an ActionSpec"
        )
    if not isinstance(env.autoreset, AutoReset):
        raise EnvFactoryError(
            f"environment {factory!r}: autoreset is {_short(env.autoreset)}; it must be AutoReset.SAME_STEP or"
            " AutoReset.NEXT_STEP"
        )


def check_observation(
    factory: str, env: VectorEnv, observation: Any, *, call: str = "reset", member: str = "observation"
) -> None:
    """Compare an observation of all lanes with the specs; the arguments are those of `observation_problems`.

    Raises:
        EnvFactoryError: names the tensor, what it is and what was promised.
    """
    _refuse_first(factory, observation_problems(env, observation, call=call, member=member))


def check_step(factory: str, env: VectorEnv, step: Any) -> None:
    """Compare what `step` returned with the specs and with `EnvStep`.

    Raises:
        EnvFactoryError: names the member, what it is and what it must be.
    """
    _refuse_first(factory, step_problems(env, step))


def _refuse_first(factory: str, problems: Iterator[Problem]) -> None:
    for problem in problems:
        raise EnvFactoryError(f"environment {factory!r}: {problem.text}")


def observation_problems(
    env: VectorEnv, observation: Any, *, call: str = "reset", member: str = "observation"
) -> Iterator[Problem]:
    """What an observation of all lanes has against the specs.

    Args:
        env: whose members were checked.
        observation: name -> <dtype>[num_lanes, *shape], if all is well.
        call: the method that returned it.
        member: what it is of the method's answer.
    """
    role = "" if call == "reset" else f" as {member}"
    if not isinstance(observation, Mapping):
        yield Problem(f"{call} returned {_kind(observation)}{role}; it must return a dict of tensors")
        return
    promised, given = sorted(spec.name for spec in env.observation_spec), sorted(map(str, observation))
    if promised != given:
        yield Problem(
            f"observation_spec names {', '.join(promised)}, but {call} returned {', '.join(given) or 'nothing'}{role}"
        )
        return
    for spec in env.observation_spec:
        tensor = observation[spec.name]
        shape = (env.num_lanes, *spec.shape)
        if _shape(tensor) != shape:
            yield Problem(
                f"{member} {spec.name!r} {_form(tensor)} after {call}; observation_spec and {env.num_lanes} lanes"
                f" promise {shape}"
            )
        elif _dtype(tensor) != spec.dtype:
            yield Problem(
                f"{member} {spec.name!r} is {tensor.dtype} after {call}; observation_spec promises {spec.dtype}",
                is_readable=True,
            )


def step_problems(env: VectorEnv, step: Any) -> Iterator[Problem]:
    """What `step` returned has against the specs and `EnvStep`.

    Args:
        env: whose members were checked.
        step: an `EnvStep`, if all is well.
    """
    for field in _STEP_FIELDS:
        if not hasattr(step, field):
            yield Problem(f"step returned {_kind(step)}, which has no {field}; it must return an EnvStep")
            return
    yield from observation_problems(env, step.observation, call="step")
    if step.true_next_observation is not None:
        yield from observation_problems(env, step.true_next_observation, call="step", member="true_next_observation")
    lanes = (env.num_lanes,)
    if _shape(step.reward) != lanes:
        yield _misshapen("reward", step.reward, lanes, "float32")
    elif not _is_number(step.reward):
        yield Problem(f"step's reward is {step.reward.dtype}; it must be float32")
    for flag in _FLAGS:
        column = getattr(step, flag)
        if _shape(column) != lanes:
            yield _misshapen(flag, column, lanes, "bool")
        elif _dtype(column) != "bool":
            yield Problem(f"step's {flag} is {column.dtype}; it must be bool", is_readable=True)
    if not isinstance(step.metrics, Mapping):
        yield Problem(f"step's metrics is {_kind(step.metrics)}; it must be a dict of arrays")
        return
    for name, column in step.metrics.items():
        if _shape(column) != lanes:
            yield _misshapen(f"metrics[{name!r}]", column, lanes, "number")


def _is_number(column: Any) -> bool:
    try:
        return np.can_cast(np.dtype(_dtype(column)), np.float32, casting="same_kind")
    except TypeError:
        return False


def _misshapen(member: str, column: Any, shape: Tuple[int, ...], dtype: str) -> Problem:
    return Problem(f"step's {member} {_form(column)}; it must be a {dtype} array of shape {shape}, one for each lane")


def _shape(tensor: Any) -> Any:
    """Of an array or tensor; None of anything else, since a list cannot be stepped with."""
    return tuple(tensor.shape) if hasattr(tensor, "shape") and hasattr(tensor, "dtype") else None


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).rpartition(".")[2]  # torch writes its dtypes as torch.float32


def _form(tensor: Any) -> str:
    shape = _shape(tensor)
    return f"is {_kind(tensor)}" if shape is None else f"has shape {shape}"


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _short(value: Any) -> str:
    """A value on one line, whatever its own text is like."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
