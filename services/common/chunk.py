"""Chunks: T consecutive steps of a lane group's B lanes, the unit in which actors report what happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, Mapping, Tuple

import numpy as np
import numpy.typing as npt

from services.common.schema import MAX_SHOWN, Schema, SchemaError

VALID, TERMINATED, TRUNCATED = 1, 2, 4  # bits of Chunk.flags
MAX_CHUNK_ROWS = 1 << 20  # bounds what a receiver must take before it can look
MAX_COUNT = 1 << 62  # of steps, sequences and versions: what is done with them stays within 64 bits
MAX_SECONDS = 1e9  # thirty years
MAX_DROP_REASONS = 32  # of an actor; each is a label of a metric
MAX_REASON_LENGTH = 64


@dataclass(frozen=True)
class ActorCounters:
    """Steps an actor made in its life: produced = acknowledged + dropped + buffered."""

    produced_steps: int = 0
    buffered_steps: int = 0
    dropped_steps: Mapping[str, int] = field(default_factory=dict)


@dataclass
class FinalObservations:
    """F observations that no step of the chunk holds: the true last ones of episodes and of lanes cut by a stop."""

    step: npt.NDArray[np.int64]  # [F], index t * B + lane of the step that led here; strictly increasing
    observation: Dict[str, npt.NDArray[Any]]  # name -> [F, ...]
    value: npt.NDArray[np.float32]  # [F], bootstrap value; NaN without critics
    cut: npt.NDArray[np.bool_]  # [F], the lane was cut by a stop: bootstrap, but the episode did not end

    def __len__(self) -> int:
        return len(self.step)

    @classmethod
    def none(cls, schema: Schema) -> FinalObservations:
        """No final observations at all."""
        return cls(
            step=np.zeros(0, np.int64),
            observation={s.name: np.zeros((0, *s.shape), s.dtype) for s in schema.observation},
            value=np.zeros(0, np.float32),
            cut=np.zeros(0, np.bool_),
        )


@dataclass
class Chunk:
    """Columns [T, B, ...] of one lane group, with the sequence number that makes a resend harmless.

    A step whose flags lack VALID is not a transition: it is the row that holds an ended episode's true final
    observation in next_step auto-reset. Each ended step is followed by such a row or has a final observation.
    """

    lane_group: int
    sequence: int  # 0, 1, 2, ... of this lane group in this incarnation
    first_step: int  # index of the first step in the lanes' life
    observation: Dict[str, npt.NDArray[Any]]  # name -> [T, B, ...], what the policy acted on
    action: npt.NDArray[Any]  # [T, B, ...], what the environment executed
    reward: npt.NDArray[np.float32]  # [T, B]
    flags: npt.NDArray[np.uint8]  # [T, B], VALID | TERMINATED | TRUNCATED
    policy_version: npt.NDArray[np.int64]  # [T]
    q_taken: npt.NDArray[np.float32]  # [T, B]; NaN without critics
    value: npt.NDArray[np.float32]  # [T, B]; NaN without critics
    final: FinalObservations
    acting_seconds: float = 0.0  # first step to last
    queued_seconds: float = 0.0  # last step to this send
    newest_version: int = 0  # newest that the actor knew at the last step
    counters: ActorCounters = field(default_factory=ActorCounters)

    @property
    def num_steps(self) -> int:
        return int(self.flags.shape[0])

    @property
    def num_lanes(self) -> int:
        return int(self.flags.shape[1])

    @property
    def num_valid(self) -> int:
        """Steps that are transitions: what the conservation equations count."""
        return int(np.count_nonzero(self.flags & VALID))

    def columns(self) -> Iterator[Tuple[str, npt.NDArray[Any]]]:
        """Each column with its name, in the order of the wire."""
        for name, column in sorted(self.observation.items()):
            yield f"observation.{name}", column
        yield "action", self.action
        yield "reward", self.reward
        yield "flags", self.flags
        yield "policy_version", self.policy_version
        yield "q_taken", self.q_taken
        yield "value", self.value
        yield "final.step", self.final.step
        for name, column in sorted(self.final.observation.items()):
            yield f"final.observation.{name}", column
        yield "final.value", self.final.value
        yield "final.cut", self.final.cut

    def check(self, schema: Schema) -> None:
        """Compare names, dtypes and shapes with `schema`, and the flags and final steps with each other.

        Raises:
            SchemaError: something does not fit; one sentence says which column, what it is, what it must be.
        """
        if self.flags.ndim != 2:
            raise SchemaError(f"flags have shape {list(self.flags.shape)}; they must be [T, B]")
        T, B, F = self.num_steps, self.num_lanes, len(self.final)  # noqa: N806 (the field's letters)
        if max(T, 1) * max(B, 1) + F > MAX_CHUNK_ROWS:
            raise SchemaError(
                f"the chunk has {T} x {B} steps and {F} final observations; at most {MAX_CHUNK_ROWS} rows"
            )
        want: Dict[str, Tuple[str, Tuple[int, ...]]] = {
            "action": (schema.action.dtype, (T, B, *schema.action.shape)),
            "reward": ("float32", (T, B)),
            "flags": ("uint8", (T, B)),
            "policy_version": ("int64", (T,)),
            "q_taken": ("float32", (T, B)),
            "value": ("float32", (T, B)),
            "final.step": ("int64", (F,)),
            "final.value": ("float32", (F,)),
            "final.cut": ("bool", (F,)),
        }
        for spec in schema.observation:
            want[f"observation.{spec.name}"] = (spec.dtype, (T, B, *spec.shape))
            want[f"final.observation.{spec.name}"] = (spec.dtype, (F, *spec.shape))
        got = dict(self.columns())
        if set(got) != set(want):
            odd = ", ".join(sorted(set(got) ^ set(want))[:MAX_SHOWN])
            raise SchemaError(f"the chunk's columns differ from the schema in: {odd}")
        for name, column in got.items():
            dtype, shape = want[name]
            if column.dtype != np.dtype(dtype) or column.shape != shape:
                raise SchemaError(
                    f"column {name!r} is {column.dtype}{list(column.shape)}; the schema asks for {dtype}{list(shape)}"
                )
        self._check_final(T * B)
        self._check_facts()

    def _check_facts(self) -> None:
        """Refuse numbers that no actor counts up to, and seconds that no clock measures."""
        if self.num_steps and not self.num_lanes:
            raise SchemaError(f"the chunk has {self.num_steps} steps of no lanes")
        dropped = self.counters.dropped_steps
        if len(dropped) > MAX_DROP_REASONS or any(len(reason) > MAX_REASON_LENGTH for reason in dropped):
            raise SchemaError(
                f"the chunk's counters name {len(dropped)} reasons for dropped steps; there may be "
                f"{MAX_DROP_REASONS}, of {MAX_REASON_LENGTH} characters each"
            )
        counts = {
            "sequence": self.sequence,
            "first_step": self.first_step,
            "newest_version": self.newest_version,
            "produced_steps": self.counters.produced_steps,
            "buffered_steps": self.counters.buffered_steps,
            "dropped_steps": max(dropped.values(), default=0),
            "policy_version": int(self.policy_version.max(initial=0)),
        }
        for name, count in counts.items():
            if not 0 <= count < MAX_COUNT:
                raise SchemaError(f"the chunk's {name} is {count}; it must lie in 0 to 2^62")
        if self.policy_version.min(initial=0) < 0:
            raise SchemaError(f"the chunk's policy_version is {int(self.policy_version.min())}; none is below 0")
        for name, seconds in (("acting_seconds", self.acting_seconds), ("queued_seconds", self.queued_seconds)):
            if not 0.0 <= seconds <= MAX_SECONDS:  # which NaN is not
                raise SchemaError(f"the chunk's {name} is {seconds}; it must lie in 0 to {MAX_SECONDS:g}")

    def _check_final(self, num_rows: int) -> None:
        step = self.final.step
        if len(step) == 0:
            return
        if step[0] < 0 or step[-1] >= num_rows or (step[1:] <= step[:-1]).any():
            raise SchemaError("final.step must be strictly increasing indices of this chunk's steps")
        flags = self.flags.reshape(-1)[step]
        ended = (flags & (TERMINATED | TRUNCATED)) != 0
        if not (flags & VALID).all() or (ended == self.final.cut).any():
            raise SchemaError(
                "final observations must follow a valid step that ended, or be marked as cut where it did not"
            )
