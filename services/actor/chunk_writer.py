"""Collects steps into chunks: columns filled in place, handed over whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping, Optional

import numpy as np
import numpy.typing as npt

from services.actor.chunk_memory import ChunkMemory, HostMemory
from services.actor.envs.contract import AutoReset, EnvStep
from services.agent.algorithm import Decision
from services.common.chunk import TERMINATED, TRUNCATED, VALID, Chunk, FinalObservations
from services.common.errors import UserError
from services.common.schema import Schema

Observation = Mapping[str, npt.NDArray[Any]]
FinalValue = Callable[[Observation], npt.NDArray[np.float32]]


class ChunkWriter:
    """Chunks of one lane group. `record_outcome` returns a chunk when it is full; the writer then starts the next.

    Args:
        schema: of the steps.
        num_lanes: B.
        chunk_steps: T.
        autoreset: of the environment.
        clock: monotonic, seconds.
        lane_group: number of the group.
        memory: where the columns lie while they fill.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        num_lanes: int,
        chunk_steps: int,
        autoreset: AutoReset,
        clock: Callable[[], float],
        lane_group: int = 0,
        memory: Optional[ChunkMemory] = None,
    ) -> None:
        self._schema = schema
        self._num_lanes = num_lanes
        self._chunk_steps = chunk_steps
        self._autoreset = autoreset
        self._clock = clock
        self._lane_group = lane_group
        self._memory = memory or HostMemory()
        self._first_step = 0
        self._begin()

    @property
    def is_empty(self) -> bool:
        """Whether no step waits in the unfinished chunk."""
        return self._length == 0

    def record_decision(self, observation: Observation, decision: Decision, policy_version: int) -> None:
        """Note what B lanes saw and did; to be called before the step, which may reuse the observation's arrays.

        Args:
            observation: what the policy acted on, name -> [B, ...].
            decision: what it did.
            policy_version: of the parameters behind it.
        """
        t = self._length
        if t == 0:
            self._started_at = self._clock()
        for name, column in self._observation.items():
            column[t] = observation[name]
        self._action[t] = decision.action
        self._policy_version[t] = policy_version
        self._q_taken[t] = decision.q_taken
        self._value[t] = decision.value

    def record_outcome(self, step: EnvStep, final_value: FinalValue, *, newest_version: int) -> Optional[Chunk]:
        """Note what came of the decision.

        Args:
            step: the environment's answer. Its `true_next_observation` is kept for lanes that ended, unless the
                environment is in next_step mode, where the lane's next row holds it.
            final_value: bootstrap values [F] of F final observations.
            newest_version: newest that the actor knows.

        Returns:
            The chunk that this step filled, or None.
        """
        t = self._length
        self._reward[t] = step.reward
        self._valid[t], self._terminated[t], self._truncated[t] = step.valid, step.terminated, step.truncated
        self._newest_version = newest_version
        self._length += 1
        if self._autoreset is not AutoReset.NEXT_STEP:
            has_final = step.valid & (step.terminated | step.truncated)
            if step.no_final is not None:  # the replay counts such a step as lost
                has_final = has_final & ~step.no_final
            ended = self._memory.indices(has_final)
            if len(ended):
                self._add_final(ended, _true_next(step), final_value, cut=False)
        return self._hand_over() if self._length == self._chunk_steps else None

    def introduce(self) -> Chunk:
        """A chunk without steps, to be sent before the first: it tells what this actor's experience looks like."""
        return self._hand_over()

    def cut(self, observation: Observation, final_value: FinalValue) -> Optional[Chunk]:
        """End the unfinished chunk at a stop, with `observation`, which its last step led to.

        Running episodes are cut there. In next_step mode it is the final observation of those that just ended.

        Returns:
            The last chunk, or None if no step is waiting in it.
        """
        if self._length == 0:
            return None
        last = {"valid": self._valid, "terminated": self._terminated, "truncated": self._truncated}
        row = self._memory.fetch({name: column[self._length - 1] for name, column in last.items()})
        valid, ended = row["valid"], row["terminated"] | row["truncated"]
        if self._autoreset is AutoReset.NEXT_STEP and (valid & ended).any():
            self._add_final(np.flatnonzero(valid & ended), observation, final_value, cut=False)
        if (valid & ~ended).any():
            self._add_final(np.flatnonzero(valid & ~ended), observation, final_value, cut=True)
        return self._hand_over()

    def _begin(self) -> None:
        rows, allocate = (self._chunk_steps, self._num_lanes), self._memory.allocate
        self._observation: Dict[str, Any] = {
            spec.name: allocate((*rows, *spec.shape), spec.dtype) for spec in self._schema.observation
        }
        self._action = allocate((*rows, *self._schema.action.shape), self._schema.action.dtype)
        self._reward = allocate(rows, "float32")
        self._valid, self._terminated, self._truncated = (allocate(rows, "bool") for _ in range(3))
        self._policy_version = np.empty(self._chunk_steps, np.int64)
        self._q_taken = allocate(rows, "float32")
        self._value = allocate(rows, "float32")
        self._final: List[FinalObservations] = []
        self._length = 0
        self._started_at = self._clock()
        self._newest_version = 0

    def _add_final(
        self,
        lanes: npt.NDArray[np.int64],
        observation: Observation,
        final_value: FinalValue,
        *,
        cut: bool,
    ) -> None:
        rows = {s.name: self._memory.rows(observation[s.name], lanes, s.dtype) for s in self._schema.observation}
        self._final.append(
            FinalObservations(
                step=(self._length - 1) * self._num_lanes + lanes,
                observation=rows,
                value=final_value(rows),
                cut=np.full(len(lanes), cut),
            )
        )

    def _hand_over(self) -> Chunk:
        n = self._length
        columns = {f"observation.{name}": column[:n] for name, column in self._observation.items()}
        columns.update(
            action=self._action[:n], reward=self._reward[:n], q_taken=self._q_taken[:n], value=self._value[:n]
        )
        columns.update(valid=self._valid[:n], terminated=self._terminated[:n], truncated=self._truncated[:n])
        columns = self._memory.fetch(columns)
        chunk = Chunk(
            lane_group=self._lane_group,
            sequence=0,  # the sender numbers what it sends: a dropped chunk leaves a gap in steps, not in sequences
            first_step=self._first_step,
            observation={name: columns[f"observation.{name}"] for name in self._observation},
            action=columns["action"],
            reward=columns["reward"],
            flags=_flags(columns["valid"], columns["terminated"], columns["truncated"]),
            policy_version=self._policy_version[:n],
            q_taken=columns["q_taken"],
            value=columns["value"],
            final=_join([self._fetched(part) for part in self._final])
            if self._final
            else FinalObservations.none(self._schema),
            acting_seconds=self._clock() - self._started_at,
            newest_version=self._newest_version,
        )
        self._first_step += n
        self._begin()
        return chunk

    def _fetched(self, part: FinalObservations) -> FinalObservations:
        return replace(
            part,
            observation=self._memory.fetch(part.observation),
            value=self._memory.fetch({"value": part.value})["value"],
        )


def _flags(
    valid: npt.NDArray[np.bool_], terminated: npt.NDArray[np.bool_], truncated: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint8]:
    """The bits of `Chunk.flags`, once for all steps of a chunk: a step has little time to spare."""
    flags: npt.NDArray[np.uint8] = valid * np.uint8(VALID)
    flags |= terminated * np.uint8(TERMINATED)
    flags |= truncated * np.uint8(TRUNCATED)
    return flags


def _true_next(step: EnvStep) -> Observation:
    if step.true_next_observation is not None:
        return step.true_next_observation
    is_lost = step.truncated & ~step.terminated & step.valid
    if step.no_final is not None:
        is_lost = is_lost & ~step.no_final
    if is_lost.any():
        raise UserError(
            "the environment resets itself and loses the final observation of a truncated episode, so its value cannot "
            "be bootstrapped: let its adapter return the true next observation, or set"
            ' env.kwargs.allow_missing_final_obs = "drop"'
        )
    return step.observation  # never read: beyond a termination the discount is 0


def _join(parts: List[FinalObservations]) -> FinalObservations:
    # A cut adds to the same last step as an end may have: order them by step.
    step = np.concatenate([part.step for part in parts])
    order = np.argsort(step, kind="stable")
    return FinalObservations(
        step=step[order],
        observation={
            name: np.concatenate([part.observation[name] for part in parts])[order] for name in parts[0].observation
        },
        value=np.concatenate([part.value for part in parts])[order],
        cut=np.concatenate([part.cut for part in parts])[order],
    )
