"""What a run's experience looks like: names, dtypes and shapes, and a digest that peers compare."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Dict, List, Tuple
from urllib.parse import quote

import numpy as np

from services.common.errors import UserError

# Bounds of what a stranger may ask others to make room for; a step of ten camera images has some 10 MB.
MAX_TENSORS = 256
MAX_NAME_BYTES = 200  # of a tensor, as a file's name holds it
MAX_DIMENSIONS = 16
MAX_STEP_BYTES = 256 << 20  # of all tensors of a step together
MAX_ACTION_SIZE = 1 << 16
MAX_SHOWN = 8  # names in a sentence
MAX_SENTENCE = 2000  # characters

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")


class SchemaError(UserError, ValueError):
    """A schema, or data offered under it, is not what it must be; the message is one sentence for the user."""


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor of a step; `shape` is that of a single step, without time and lanes."""

    name: str
    dtype: str
    shape: Tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.name:
            raise SchemaError("a tensor of the schema has no name")
        if len(quote(self.name, safe="")) > MAX_NAME_BYTES:
            raise SchemaError(f"a tensor's name is longer than {MAX_NAME_BYTES} bytes: {self.name[:40]!r}…")
        if len(self.shape) > MAX_DIMENSIONS:
            raise SchemaError(
                f"tensor {self.name!r} has {len(self.shape)} dimensions; a step's have at most {MAX_DIMENSIONS}"
            )
        if self.dtype not in DTYPES:
            raise SchemaError(f"tensor {self.name!r} has dtype {self.dtype!r}; known are {', '.join(DTYPES)}")
        if any(size < 1 for size in self.shape):
            raise SchemaError(f"tensor {self.name!r} has shape {self.shape}; every dimension must be at least 1")

    @property
    def num_bytes(self) -> int:
        """Bytes of one step of this tensor."""
        num_bytes: int = np.dtype(self.dtype).itemsize
        for size in self.shape:  # in Python's integers: a product of hostile sizes must not wrap
            num_bytes *= size
        return num_bytes


@dataclass(frozen=True)
class ActionSpec:
    """The action of a step: a bounded float32 vector, or one of `num_actions` integers.

    Exactly one of the two kinds: `num_actions` is 0 for continuous actions; `low` and `high` are empty for discrete.
    """

    low: Tuple[float, ...] = ()
    high: Tuple[float, ...] = ()
    num_actions: int = 0

    def __post_init__(self) -> None:
        if self.num_actions and (self.low or self.high):
            raise SchemaError("an action is either discrete (num_actions) or continuous (low, high), not both")
        if not self.num_actions and not self.low:
            raise SchemaError("an action needs bounds (low, high) or a number of discrete actions (num_actions)")
        if self.num_actions < 0:
            raise SchemaError(f"num_actions is {self.num_actions}; it must be at least 1")
        if len(self.low) > MAX_ACTION_SIZE or len(self.high) > MAX_ACTION_SIZE:
            raise SchemaError(f"the action has {len(self.low)} dimensions; it may have {MAX_ACTION_SIZE}")
        if len(self.low) != len(self.high):
            raise SchemaError(
                f"the action has {len(self.low)} lower and {len(self.high)} upper bounds; they must match"
            )
        bounds = np.array([self.low, self.high], dtype=np.float64)
        if self.low and not (np.isfinite(bounds).all() and (bounds[0] < bounds[1]).all()):
            raise SchemaError("action bounds must be finite with low < high; wrap the environment to bound its actions")

    @property
    def is_discrete(self) -> bool:
        return self.num_actions > 0

    @property
    def shape(self) -> Tuple[int, ...]:
        """Shape of one step's action: (A,) for continuous, () for discrete."""
        return () if self.is_discrete else (len(self.low),)

    @property
    def dtype(self) -> str:
        return "int64" if self.is_discrete else "float32"


@dataclass(frozen=True)
class Schema:
    """Everything that must agree between actors, replay and learner. Observations are sorted by name."""

    observation: Tuple[TensorSpec, ...]
    action: ActionSpec

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.observation]
        if not names:
            raise SchemaError("the schema has no observation tensor; an environment must offer at least one")
        if len(set(names)) != len(names):
            raise SchemaError(f"observation names repeat: {', '.join(names[:MAX_SHOWN])}")
        if len(names) > MAX_TENSORS:
            raise SchemaError(f"the schema has {len(names)} observation tensors; it may have {MAX_TENSORS}")
        step_bytes = sum(spec.num_bytes for spec in self.observation)
        if step_bytes > MAX_STEP_BYTES:
            raise SchemaError(f"a step's observations take {step_bytes} bytes; they may take {MAX_STEP_BYTES}")
        object.__setattr__(self, "observation", tuple(sorted(self.observation, key=lambda spec: spec.name)))

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that two peers compare; equal exactly if names, dtypes, shapes and bounds are.

        Kept once computed: every call between processes asks for it.
        """
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> Dict[str, Any]:
        """As plain JSON types (checkpoints, digests)."""
        return {
            "observation": [[s.name, s.dtype, list(s.shape)] for s in self.observation],
            "action": {
                "low": list(self.action.low),
                "high": list(self.action.high),
                "num_actions": self.action.num_actions,
            },
        }

    @classmethod
    def from_dict(cls, data: Dict[str, Any]) -> Schema:
        """The inverse of `to_dict`."""
        action = data["action"]
        return cls(
            observation=tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in data["observation"]),
            action=ActionSpec(tuple(action["low"]), tuple(action["high"]), action["num_actions"]),
        )

    def difference(self, other: Schema) -> str:
        """One sentence that says how `other` differs from this schema; empty if it does not."""
        ours, theirs = {s.name: s for s in self.observation}, {s.name: s for s in other.observation}
        parts: List[str] = []
        for name in sorted(set(ours) | set(theirs)):
            mine, its = ours.get(name), theirs.get(name)
            if mine is None or its is None:
                parts.append(f"observation {name!r} is {'missing here' if mine is None else 'missing there'}")
            elif mine != its:
                parts.append(
                    f"observation {name!r} is {mine.dtype}{list(mine.shape)} here, {its.dtype}{list(its.shape)} there"
                )
        if self.action != other.action:
            parts.append(f"the action is {self.action} here, {other.action} there")
        return _shortened("; ".join(parts))


def _shortened(sentence: str) -> str:
    """As much of a sentence as travels in the trailer of a call."""
    return sentence if len(sentence) <= MAX_SENTENCE else f"{sentence[:MAX_SENTENCE]}…"
