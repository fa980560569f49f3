"""shoal's table in this process, without codec and gRPC: what the service adds is the difference to `shoal`."""

from __future__ import annotations

import sys
import time
from typing import Any, Dict

import numpy as np

from bench.replay.experience import ChunkStream, schema_of
from bench.replay.protocol import Timing, serve, time_inserts, time_round
from bench.replay.shoal_case import FILL_CHUNK
from bench.replay.shoal_server import N_STEP
from bench.replay.workload import IMPORTANCE_EXPONENT, PRIORITY_EXPONENT, Workload
from services.learner.importance import importance_weights
from services.replay.sampler_settings import SamplerSettings
from services.replay.table import Table, TableSettings


class ShoalTableCase:
    def open(self, load: Workload) -> Dict[str, Any]:
        self._load = load
        self._table = Table(
            TableSettings(
                capacity=load.capacity,
                n_step=N_STEP,
                discount=0.99,
                sampling=SamplerSettings(priority_exponent=PRIORITY_EXPONENT),
                samples_per_insert=0.0,
                error_buffer=0.0,
                min_size_to_sample=512,
                max_chunk_steps=8192,
                max_batch_size=4096,
                max_num_batches=1,
                max_waiting_inserts=1,
                max_actor_silence_s=1e9,
                seed=1,
            ),
            schema_of(load),
            clock=time.monotonic,
        )
        self._streams: Dict[int, ChunkStream] = {}
        self._td_error = np.random.default_rng(2).random(4096)
        fill = FILL_CHUNK[load.name]
        for _ in range(-(-load.capacity // fill)):
            self._insert(fill)
        return {"filled": load.capacity}

    def insert(self, batch: int, count: int, variant: str) -> Timing:  # noqa: ARG002 (there is one way)
        return time_inserts(lambda: self._insert(batch), batch, count)

    def sample(self, batch: int, count: int, variant: str) -> Timing:  # noqa: ARG002
        return time_round(lambda: self._draw(batch), count)

    def close(self) -> None:
        self._streams.clear()

    def _insert(self, chunk_steps: int) -> None:
        if chunk_steps not in self._streams:
            self._streams[chunk_steps] = ChunkStream(self._load, chunk_steps)
        chunk = self._streams[chunk_steps].next()
        self._table.insert(f"actor-of-{chunk_steps}", 1, chunk, max_wait_s=0.0)

    def _draw(self, batch: int) -> None:
        drawn = self._table.sample(1, batch, max_wait_s=0.0).batches[0]
        importance_weights(drawn, IMPORTANCE_EXPONENT)
        self._table.update_priorities(drawn.keys, self._td_error[:batch])


if __name__ == "__main__":
    sys.exit(serve(ShoalTableCase()))
