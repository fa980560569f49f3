"""cpprb's PrioritizedReplayBuffer, in process."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Dict

import numpy as np

from bench.replay.memory import resident_bytes
from bench.replay.protocol import Timing, serve, time_inserts, time_round
from bench.replay.workload import ACTION_SIZE, IMPORTANCE_EXPONENT, PRIORITY_EXPONENT, Workload, take

FILL_BATCH = 4096


class CpprbCase:
    def open(self, load: Workload) -> Dict[str, Any]:
        cpprb: Any = importlib.import_module("cpprb")
        before = resident_bytes(os.getpid())["heap"]
        observation = {"shape": load.observation_shape, "dtype": np.dtype(load.observation_dtype)}
        self._buffer = cpprb.PrioritizedReplayBuffer(
            load.capacity,
            {
                "observation": observation,
                "action": {"shape": ACTION_SIZE},
                "reward": {},
                "next_observation": observation,
                "done": {"dtype": np.bool_},
                "version": {"dtype": np.int64},
            },
            alpha=PRIORITY_EXPONENT,
        )
        self._columns = load.transitions()
        self._added = 0
        rng = np.random.default_rng(2)
        self._td_error = rng.random(4096)
        while self._added < load.capacity:
            self._add(min(FILL_BATCH, load.distinct))
        heap = resident_bytes(os.getpid())["heap"] - before - sum(c.nbytes for c in self._columns.values())
        return {"filled": self._buffer.get_stored_size(), "stored_bytes": heap}

    def insert(self, batch: int, count: int, variant: str) -> Timing:  # noqa: ARG002 (there is one way)
        return time_inserts(lambda: self._add(batch), batch, count)

    def sample(self, batch: int, count: int, variant: str) -> Timing:  # noqa: ARG002
        return time_round(lambda: self._draw(batch), count)

    def close(self) -> None:
        del self._buffer

    def _add(self, batch: int) -> None:
        self._buffer.add(**take(self._columns, self._added, batch))
        self._added += batch

    def _draw(self, batch: int) -> None:
        drawn = self._buffer.sample(batch, beta=IMPORTANCE_EXPONENT)
        self._buffer.update_priorities(drawn["indexes"], self._td_error[:batch])


if __name__ == "__main__":
    sys.exit(serve(CpprbCase()))
