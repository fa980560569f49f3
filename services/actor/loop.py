"""The actor's loop: newest parameters, act, step, append to the chunk, hand a full chunk to the writer."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Callable, Optional

import numpy as np

from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.contract import VectorEnv
from services.actor.parameter_client import ParameterClient
from services.agent.algorithm import Policy
from services.common.chunk import Chunk
from services.common.lifecycle import Lifecycle
from services.common.parameter_set import ParameterSet
from services.common.rpc import Stopped


def act(
    env: VectorEnv,
    policy: Policy,
    parameters: ParameterClient,
    writer: ChunkWriter,
    *,
    send: Callable[[Chunk], None],
    rng: np.random.Generator,
    seed: int,
    max_policy_age_s: float,
    lifecycle: Lifecycle,
) -> None:
    """Act until the process is to end; the loop knows no gRPC. Running episodes are cut at the stop, and sent."""
    observation = env.reset(seed)
    acting: Optional[ParameterSet] = None
    with contextlib.suppress(Stopped):
        # A stop on a chunk's border takes one more step, so that there is a row to cut the episodes at. One, and no
        # further: chunks of a single step never leave such a row.
        is_last_step = False
        while not lifecycle.stopping.is_set() or (writer.is_empty and not is_last_step):
            is_last_step = lifecycle.stopping.is_set()
            newest = parameters.wait_for_newest(max_policy_age_s)
            if newest is not acting:
                policy.anneal(newest.updates)
                acting = newest
            decision = policy.act(newest.parameters, observation, rng)
            writer.record_decision(observation, decision, newest.version)
            step = env.step(decision.action)
            chunk = writer.record_outcome(
                step, partial(policy.value, newest.parameters), newest_version=parameters.newest_known_version
            )
            if chunk is not None:
                send(chunk)
            observation = step.observation
    last = parameters.newest
    if last is not None:
        tail = writer.cut(observation, partial(policy.value, last.parameters))
        if tail is not None:
            send(tail)
