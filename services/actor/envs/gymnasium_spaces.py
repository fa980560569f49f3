"""Gymnasium's spaces under our contract: the tensors of an observation, and how an action is put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Tuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from services.common.schema import DTYPES, ActionSpec, TensorSpec

MAX_COMBINATIONS = 4096  # of several discrete actions as one: a network has an output for each


@dataclass(frozen=True)
class ActionTranslator:
    """Our actions of B lanes, and what a vector environment's `step` takes instead of them."""

    spec: ActionSpec
    translate: Callable[[npt.NDArray[Any]], Any]  # <float32>[B, A] or <int64>[B] -> a sample of the batched space


def observation_spec(space: Any) -> Tuple[TensorSpec, ...]:
    """The tensors of a Box (`policy`) or of a Dict of boxes (its keys), sorted by name.

    Raises:
        ValueError: there is something else in the space.
    """
    parts = space.spaces if isinstance(space, spaces.Dict) else {"policy": space}
    for name, part in parts.items():
        if not isinstance(part, spaces.Box):
            raise ValueError(  # noqa: TRY004 (the caller's environment is at fault, not a type in our code)
                f"observation {name!r} is a {type(part).__name__} space; only Box, or a Dict of Box, is supported: wrap"
                " the environment (gymnasium.wrappers.FlattenObservation makes a Box)"
            )
    return tuple(
        TensorSpec(str(name), kept_dtype(part.dtype), tuple(part.shape)) for name, part in sorted(parts.items())
    )


def kept_dtype(dtype: Any) -> str:
    """The dtype that a tensor has under our contract: its own where a schema knows it, else float32."""
    name = np.dtype(dtype).name
    return name if name in DTYPES and name not in ("float16", "float64") else "float32"


def action_translator(space: Any) -> ActionTranslator:
    """Bring an action space under the contract.

    Boxes of floats, also several in a Dict or Tuple, become one vector in the order of the space. Discrete,
    MultiDiscrete and MultiBinary, also several of them, become one number: the last of them changes fastest.

    Raises:
        ValueError: the space is unbounded, mixed, of another kind, or has more than `MAX_COMBINATIONS` actions.
    """
    leaves = list(_leaves(space))
    if leaves and all(isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind == "f" for leaf in leaves):
        return _continuous(space, leaves)
    if leaves and all(isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)) for leaf in leaves):
        return _discrete(space, leaves)
    raise ValueError(
        f"the action space is {space}; only Discrete, MultiDiscrete, MultiBinary and Box of floats are supported, and a"
        " Dict or Tuple of one kind: wrap the environment"
    )


def _continuous(space: Any, leaves: List[Any]) -> ActionTranslator:
    if not all(np.isfinite(leaf.low).all() and np.isfinite(leaf.high).all() for leaf in leaves):
        raise ValueError(
            "the action space is not bounded; wrap the environment to bound its actions"
            " (gymnasium.wrappers.RescaleAction or ClipAction over finite limits)"
        )
    borders = np.cumsum([0, *(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves)])

    def translate(action: npt.NDArray[Any]) -> Any:
        columns = (
            np.asarray(action[:, begin:end], dtype=leaf.dtype).reshape((len(action), *leaf.shape))
            for leaf, begin, end in zip(leaves, borders[:-1], borders[1:])
        )
        return _assemble(space, columns)

    low, high = ([float(v) for leaf in leaves for v in getattr(leaf, end).ravel()] for end in ("low", "high"))
    return ActionTranslator(ActionSpec(low=tuple(low), high=tuple(high)), translate)


def _discrete(space: Any, leaves: List[Any]) -> ActionTranslator:
    choices = [_choices(leaf) for leaf in leaves]
    sizes = [size for nvec, _ in choices for size in nvec.ravel().tolist()]
    combinations = 1
    for size in sizes:  # of Python's integers: a product of many would overflow
        combinations *= size
    if combinations > MAX_COMBINATIONS:
        raise ValueError(
            f"the action space has {combinations} combinations; at most {MAX_COMBINATIONS} can be taken for one"
            " discrete action: wrap the environment to have fewer choices, or bounded continuous ones (Box)"
        )

    def translate(action: npt.NDArray[Any]) -> Any:
        digits = np.stack(np.unravel_index(np.asarray(action, np.int64), sizes), axis=-1)
        borders = np.cumsum([0, *(nvec.size for nvec, _ in choices)])
        columns = (
            np.asarray(digits[:, begin:end].reshape((len(action), *nvec.shape)) + start, dtype=leaf.dtype)
            for leaf, (nvec, start), begin, end in zip(leaves, choices, borders[:-1], borders[1:])
        )
        return _assemble(space, columns)

    return ActionTranslator(ActionSpec(num_actions=combinations), translate)


def _choices(leaf: Any) -> Tuple[npt.NDArray[np.int64], Any]:
    """Number of choices, in the shape of one lane's action, and the first of them."""
    if isinstance(leaf, spaces.Discrete):
        return np.array(leaf.n, np.int64), int(leaf.start)
    if isinstance(leaf, spaces.MultiDiscrete):
        return np.asarray(leaf.nvec, np.int64), np.asarray(leaf.start, np.int64)
    return np.full(leaf.shape, 2, np.int64), 0


def _leaves(space: Any) -> Iterator[Any]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for part in _parts(space):
            yield from _leaves(part)
    else:
        yield space


def _parts(space: Any) -> List[Any]:
    return list(space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces)


def _assemble(space: Any, columns: Iterator[npt.NDArray[Any]]) -> Any:
    """Put the leaves' columns [B, ...] together as the batched space has them."""
    if isinstance(space, spaces.Dict):
        return {name: _assemble(part, columns) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_assemble(part, columns) for part in space.spaces)
    return next(columns)
