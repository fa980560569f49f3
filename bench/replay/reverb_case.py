"""Reverb over gRPC: its writers in several settings, its datasets, priorities back by its client.

The server is a process of its own: a client in the server's process would read its tables without gRPC.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from bench.replay.memory import resident_bytes
from bench.replay.protocol import Timing, serve, time_round
from bench.replay.reverb_server import RING, SCRATCH
from bench.replay.workload import Workload

# It keeps kilobytes for each small item and takes some 10,000 a second: a million would be 7 GB and minutes of filling.
# A smaller tree is the easier one to draw from.
MAX_RING, MAX_SCRATCH = 100_000, 50_000
CHUNK = 50  # of the writer that packs several steps into one chunk of storage


class ReverbCase:
    def open(self, load: Workload) -> Dict[str, Any]:
        self._reverb: Any = importlib.import_module("reverb")
        self._tf: Any = importlib.import_module("tensorflow")
        size = min(load.capacity, MAX_RING if load.name == "small" else 2_000)
        command = [sys.executable, "-m", "bench.replay.reverb_server", str(size), str(min(size, MAX_SCRATCH))]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None  # noqa: S101 (it is a pipe)
        port = next(line.split()[1] for line in self._server.stdout if line.startswith("port "))
        self._address = f"127.0.0.1:{port}"
        self._client = self._reverb.Client(self._address)
        self._columns = load.transitions()
        self._steps = [{name: column[i] for name, column in self._columns.items()} for i in range(load.distinct)]
        self._datasets: Dict[Tuple[int, str], Iterator[Any]] = {}
        self._td_error = np.random.default_rng(2).random(4096)
        before = resident_bytes(self._server.pid)["heap"]
        self._write(RING, size, flush=50, chunk=1)
        heap = resident_bytes(self._server.pid)["heap"] - before
        return {"filled": size, "stored_bytes": heap}

    def insert(self, batch: int, count: int, variant: str) -> Timing:
        """Variants: `KIND FLUSH CHUNK`, KIND of writer or trajectory."""
        kind, flush, chunk = variant.split()
        count = -(-count // batch) * batch
        write = self._write if kind == "writer" else self._write_trajectories
        write(SCRATCH, min(batch, 200), flush=int(flush), chunk=int(chunk))
        began = time.perf_counter()
        write(SCRATCH, count, flush=int(flush), chunk=int(chunk))
        return Timing(count, time.perf_counter() - began)

    def sample(self, batch: int, count: int, variant: str) -> Timing:
        """Variants: `KIND IN_FLIGHT WORKERS`, KIND of timestep or trajectory."""
        key = (batch, variant)
        if key not in self._datasets:
            self._datasets.clear()  # else the others would go on fetching ahead
            kind, in_flight, workers = variant.split()
            self._datasets[key] = self._dataset(kind, batch, int(in_flight), int(workers))
        batches = self._datasets[key]
        return time_round(lambda: self._draw(batches, batch), count, warm_up=max(6, 4096 // batch))

    def close(self) -> None:
        self._datasets.clear()
        if self._server.stdin is not None:
            self._server.stdin.close()
        self._server.wait(20)

    def _write(self, table: str, count: int, *, flush: int, chunk: int) -> None:
        with self._client.writer(max_sequence_length=chunk, chunk_length=chunk) as writer:
            for index in range(count):
                writer.append(self._steps[index % len(self._steps)])
                writer.create_item(table, 1, 1.0)
                if (index + 1) % flush == 0:
                    writer.flush()
            writer.flush()

    def _write_trajectories(self, table: str, count: int, *, flush: int, chunk: int) -> None:
        with self._client.trajectory_writer(num_keep_alive_refs=chunk) as writer:
            for index in range(count):
                writer.append(self._steps[index % len(self._steps)])
                newest = {name: column[-1:] for name, column in writer.history.items()}
                writer.create_item(table, 1.0, newest)
                if (index + 1) % flush == 0:
                    writer.flush()
            writer.flush()

    def _dataset(self, kind: str, batch: int, in_flight: int, workers: int) -> Iterator[Any]:
        leading: List[int] = [] if kind == "timestep" else [1]
        make = self._reverb.TimestepDataset if kind == "timestep" else self._reverb.TrajectoryDataset
        dataset = make(
            self._address,
            RING,
            dtypes={name: self._tf.as_dtype(column.dtype) for name, column in self._columns.items()},
            shapes={name: self._tf.TensorShape([*leading, *c.shape[1:]]) for name, c in self._columns.items()},
            max_in_flight_samples_per_worker=in_flight,
            num_workers_per_iterator=workers,
        )
        return iter(dataset.batch(batch).prefetch(2))

    def _draw(self, batches: Iterator[Any], batch: int) -> None:
        drawn = next(batches)
        for column in drawn.data.values():
            column.numpy()
        keys = drawn.info.key.numpy().reshape(-1)
        self._client.mutate_priorities(RING, dict(zip(keys.tolist(), self._td_error[:batch].tolist())))


if __name__ == "__main__":
    sys.exit(serve(ReverbCase()))
