"""Gradients to measure on: TD3 learns the arm in this process, and what its updates would push is kept."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any, Iterator, List

import numpy as np

from bench.gradients.recording import Gradients, RecordingInfo, write
from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.arm import ArmReach
from services.agent.algorithms import td3
from services.common.config.algorithms import Td3Settings
from services.common.schema import Schema
from services.learner.importance import importance_weights
from services.replay.table import Table, TableSettings

NUM_LANES = 16
BATCH_SIZE = 128
CHUNK_STEPS = 8
STEPS_BEFORE = 1_000  # of experience, before the first update
UPDATES_PER_CHUNK = 32
NUM_LAYERS = 2  # hidden ones, of equal width


def hidden_size(num_parameters: int, schema: Schema) -> int:
    """Width of two hidden layers with which TD3's policy and two critics have about `num_parameters` parameters."""
    inputs, actions = schema.observation[0].shape[0], schema.action.shape[0]

    def count(width: int) -> int:
        policy = (inputs + 1) * width + (width + 1) * width + (width + 1) * actions
        critic = (inputs + actions + 1) * width + (width + 1) * width + width + 1
        return policy + 2 * critic

    width = round(float(np.sqrt(num_parameters / 3)))
    while count(width) > num_parameters:
        width -= 1
    return width


def record(file: Path, num_parameters: int, *, num_updates: int, num_pushes: int, seed: int) -> None:
    """Train for `num_updates` updates and write the last `num_pushes` gradients: critics' and policy's together.

    Args:
        file: where they are written.
        num_parameters: aimed at.
        num_updates: critic updates; every second comes with a policy update, and these are kept.
        num_pushes: at most half of `num_updates`.
        seed: of the arm, the networks, exploration and sampling.
    """
    began_s = time.perf_counter()
    env = ArmReach(NUM_LANES, seed=seed)
    schema = Schema(env.observation_spec, env.action_spec)
    width = hidden_size(num_parameters, schema)
    settings = Td3Settings(hidden_sizes=(width,) * NUM_LAYERS)
    learner = td3.Learner(schema, settings, seed=seed)
    critics, policy = (
        Tap(learner._critics, settings.max_gradient_norm),
        Tap(learner._policy, settings.max_gradient_norm),
    )
    table = Table(
        TableSettings(capacity=100_000, n_step=3, discount=0.95, min_size_to_sample=STEPS_BEFORE, seed=seed),
        schema,
        clock=time.monotonic,
    )
    experience = _experience(env, schema, settings, learner, table, seed)
    pushes: List[Gradients] = []
    while learner.updates < num_updates:
        next(experience)
        if table.store.num_items < STEPS_BEFORE:
            continue
        for _ in range(min(UPDATES_PER_CHUNK, num_updates - learner.updates)):
            batch = table.sample(1, BATCH_SIZE, max_wait_s=0.0).batches[0]
            update = learner.update(batch, importance_weights(batch, 0.4))
            table.update_priorities(batch.keys, update.td_error.astype(np.float64))
            is_kept = learner.updates > num_updates - settings.policy_period * num_pushes
            if is_kept and learner.updates % settings.policy_period == 0:
                pushes.append({**policy.gradients(), **critics.gradients()})
    env.close()
    count = sum(gradient.size for gradient in pushes[0].values())
    info = RecordingInfo(count, width, num_updates, num_pushes, seed, time.perf_counter() - began_s)
    write(file, pushes, info)


def _experience(
    env: ArmReach, schema: Schema, settings: Td3Settings, learner: td3.Learner, table: Table, seed: int
) -> Iterator[None]:
    """Act with the learner's newest parameters for ever; yields after each chunk."""
    policy = td3.Policy(schema, settings, num_lanes=NUM_LANES, actor_index=0, num_actors=1)
    writer = ChunkWriter(
        schema, num_lanes=NUM_LANES, chunk_steps=CHUNK_STEPS, autoreset=env.autoreset, clock=time.monotonic
    )
    rng = np.random.default_rng(seed)
    parameters = learner.acting_parameters()
    observation = env.reset(seed)
    sequence = 0
    while True:
        decision = policy.act(parameters, observation, rng)
        writer.record_decision(observation, decision, 0)
        step = env.step(decision.action)
        chunk = writer.record_outcome(step, partial(policy.value, parameters), newest_version=0)
        observation = step.observation
        if chunk is not None:
            chunk.sequence, sequence = sequence, sequence + 1
            table.insert("recorder", 1, chunk, max_wait_s=0.0)
            yield
            parameters = learner.acting_parameters()


class Tap:
    """Looks at the gradients of one optimizer: as they were before clipping, which is what a helper pushes."""

    def __init__(self, trained: Any, max_norm: float) -> None:
        self._trained = trained
        self._max_norm = max_norm
        self._norm = 0.0
        self._minimize = trained.minimize
        trained.minimize = self._watch

    def _watch(self, loss: Any) -> Any:
        norm = self._minimize(loss)
        self._norm = float(norm)
        return norm

    def gradients(self) -> Gradients:
        clipped_by = np.float32(min(1.0, self._max_norm / (self._norm + 1e-6)))
        views = self._trained.split(self._trained._gradient)
        return {name: view.numpy() / clipped_by for name, view in views.items()}
