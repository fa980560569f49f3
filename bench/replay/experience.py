"""Chunks as an actor would send them, for one lane group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bench.replay.workload import ACTION_SIZE, ENDED_SHARE, Workload
from services.common.chunk import TERMINATED, VALID, Chunk, FinalObservations
from services.common.schema import ActionSpec, Schema, TensorSpec


def schema_of(load: Workload) -> Schema:
    bounds = (1.0,) * ACTION_SIZE
    return Schema(
        (TensorSpec("policy", load.observation_dtype, load.observation_shape),),
        ActionSpec(tuple(-bound for bound in bounds), bounds),
    )


def lanes_of(chunk_steps: int) -> int:
    """Lanes of a chunk: about as many steps in a row as lanes side by side, as actors send them."""
    lanes = 1
    while lanes * lanes * 16 < chunk_steps * 16 and chunk_steps % (lanes * 2) == 0:
        lanes *= 2
    return lanes


class ChunkStream:
    """The endless sequence of chunks of one lane group: the same columns again, numbered on."""

    def __init__(self, load: Workload, chunk_steps: int, lane_group: int = 0, seed: int = 3) -> None:
        self.chunk_steps = chunk_steps
        self._chunk = _make_chunk(load, chunk_steps, lane_group, np.random.default_rng(seed))
        self._sent = 0

    def next(self) -> Chunk:
        first_step = self._sent * self._chunk.num_steps
        chunk = replace(self._chunk, sequence=self._sent, first_step=first_step)
        self._sent += 1
        return chunk


def _make_chunk(load: Workload, chunk_steps: int, lane_group: int, rng: np.random.Generator) -> Chunk:
    lanes = lanes_of(chunk_steps)
    shape = (chunk_steps // lanes, lanes)
    ended = rng.random(shape) < ENDED_SHARE
    steps = np.flatnonzero(ended)
    return Chunk(
        lane_group=lane_group,
        sequence=0,
        first_step=0,
        observation={"policy": load.observations(rng, *shape)},
        action=rng.uniform(-1, 1, (*shape, ACTION_SIZE)).astype(np.float32),
        reward=rng.standard_normal(shape, np.float32),
        flags=np.where(ended, VALID | TERMINATED, VALID).astype(np.uint8),
        policy_version=np.full(shape[0], 1, np.int64),
        q_taken=rng.standard_normal(shape, np.float32),
        value=rng.standard_normal(shape, np.float32),
        final=FinalObservations(
            step=steps.astype(np.int64),
            observation={"policy": load.observations(rng, len(steps))},
            value=np.zeros(len(steps), np.float32),
            cut=np.zeros(len(steps), np.bool_),
        ),
        newest_version=1,
    )
