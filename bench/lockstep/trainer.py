"""Lockstep training: act, then learn, then act again, in one process that may use all cores in each phase.

python -m bench.lockstep.trainer FILE.toml OUT.jsonl [--section.key VALUE ...] writes one evaluation a line.

The same parts as the services': environment, policy, chunks, table and learner. What it spares is all that makes them
services: processes, messages, the rate limiter's waits, and the evaluator beside them (its clock stands still while it
evaluates).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.factory import build_env
from services.actor.evaluator.episodes import run_episodes
from services.actor.seeds import SELECTION, TRAINING, env_seed
from services.agent.registry import learner_class, policy_class
from services.common.config.load import load
from services.common.config.run import RunConfig
from services.common.schema import Schema
from services.learner.importance import importance_weights
from services.replay.sampler_settings import SamplerSettings
from services.replay.table import Table, TableSettings

EVALUATION_UPDATES = 100
MAX_EVALUATION_LANES = 100


class Trainer:
    """One run: all lanes of all actors in one environment, stepped and trained in turn."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        seed, kwargs = config.run.seed, {**config.env.kwargs, "num_threads": os.cpu_count() or 1}
        lanes = config.env.lanes * config.actor.count
        self._env = build_env(config.env.factory, kwargs, lanes, env_seed(seed, TRAINING, "lockstep"))
        self._schema = schema = Schema(tuple(self._env.observation_spec), self._env.action_spec)
        evaluated = min(config.evaluator.episodes, MAX_EVALUATION_LANES)
        self._judged = build_env(config.env.factory, kwargs, evaluated, self._evaluation_seed(0))
        make = partial(policy_class(config.algorithm.name), schema, config.algorithm_settings)
        self._policy = make(num_lanes=lanes, actor_index=0, num_actors=1)
        self._learner = learner_class(config.algorithm.name)(
            schema, config.algorithm_settings, seed=seed, num_threads=config.learner.torch_threads
        )
        replay = config.replay
        self._table = Table(
            TableSettings(
                capacity=replay.capacity_rows or 0,
                n_step=replay.n_step,
                discount=replay.discount,
                sampling=SamplerSettings(priority_exponent=replay.priority_exponent),
                max_batch_size=config.learner.batch_size,
                seed=seed,
            ),
            schema,
            clock=time.monotonic,
        )
        self._writer = ChunkWriter(
            schema,
            num_lanes=lanes,
            chunk_steps=config.actor.chunk_steps,
            autoreset=self._env.autoreset,
            clock=time.monotonic,
        )
        self._rng = np.random.default_rng(seed)
        self._steps, self._sequence, self._spent_s = 0, 0, 0.0

    def train(self, out: Any) -> None:
        """Train to the end; an evaluation after each EVALUATION_UPDATES updates goes to the stream `out`."""
        config, learner = self._config, self._learner
        parameters = learner.acting_parameters()
        observation = self._env.reset(env_seed(config.run.seed, TRAINING, "lockstep"))
        while learner.updates < config.learner.max_updates:
            began = time.perf_counter()
            observation = self._act(parameters, observation)
            due = int(self._steps * config.replay.samples_per_insert / config.learner.batch_size)
            ready = self._steps >= config.replay.min_size_to_sample
            until = min(due if ready else 0, config.learner.max_updates)
            while learner.updates < until:
                self._update()
                if learner.updates % EVALUATION_UPDATES == 0:
                    self._spent_s += time.perf_counter() - began
                    self._evaluate(out)
                    began = time.perf_counter()
            parameters = learner.acting_parameters()
            self._spent_s += time.perf_counter() - began

    def _act(self, parameters: Dict[str, Any], observation: Any) -> Any:
        """One chunk of all lanes, into the table."""
        value = partial(self._policy.value, parameters)
        while True:
            decision = self._policy.act(parameters, observation, self._rng)
            self._writer.record_decision(observation, decision, 1)
            step = self._env.step(decision.action)
            chunk = self._writer.record_outcome(step, value, newest_version=1)
            observation = step.observation
            if chunk is not None:
                chunk.sequence, self._sequence = self._sequence, self._sequence + 1
                self._table.insert("lockstep", 1, chunk, max_wait_s=0.0)
                self._steps += chunk.num_valid
                return observation

    def _update(self) -> None:
        (batch,) = self._table.sample(1, self._config.learner.batch_size, max_wait_s=0.0).batches
        update = self._learner.update(batch, importance_weights(batch, self._config.learner.importance_exponent))
        self._table.update_priorities(batch.keys, update.td_error.astype(np.float64))

    def _evaluate(self, out: Any) -> None:
        parameters = self._learner.acting_parameters()
        statistics = run_episodes(
            self._judged,
            lambda observation: self._policy.act_greedily(parameters, observation),
            episodes=self._config.evaluator.episodes,
            seed_of_round=self._evaluation_seed,
            stopping=threading.Event(),
        )
        line = {
            "updates": self._learner.updates,
            "env_steps": self._steps,
            "training_seconds": self._spent_s,
            "success_rate": statistics.success_rate,
        }
        out.write(json.dumps(line) + "\n")
        out.flush()

    def _evaluation_seed(self, number: int) -> int:
        return env_seed(self._config.run.seed, SELECTION, f"round-{number}")


def main(arguments: List[str]) -> int:
    config = load(Path(arguments[0]), arguments[2:]).config
    with Path(arguments[1]).open("w", encoding="utf-8") as out:
        Trainer(config).train(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
