"""shoal's replay over gRPC: a real server process, chunks from the actor's sender, batches by the learner's client."""

from __future__ import annotations

import io
import sys
import threading
import time
from typing import Any, Dict, Tuple

import numpy as np

from bench.replay.experience import ChunkStream, schema_of
from bench.replay.memory import resident_bytes
from bench.replay.protocol import Timing, serve, time_round
from bench.replay.shoal_server import RUN_ID, ShoalServer
from bench.replay.workload import IMPORTANCE_EXPONENT, Workload
from services.actor.chunk_sender import ChunkSender
from services.common.config.run import LearnerSection
from services.common.lifecycle import Lifecycle
from services.common.log import make_log
from services.common.peer import Peer
from services.common.schema import Schema
from services.learner.drawn_batch import DrawnBatch
from services.learner.importance import importance_weights
from services.learner.replay_client import ReplayClient
from shoal.v1 import experience_pb2

DEFAULTS = LearnerSection()
AHEAD = DEFAULTS.batches_per_sample * DEFAULTS.samples_in_flight  # batches that are drawn ahead at most
BUFFER_CHUNKS = 4
FILL_CHUNK = {"small": 8192, "large": 512}


class Inserter:
    """One actor: a stream of chunks behind the actor's own sender."""

    def __init__(
        self, load: Workload, schema: Schema, address: str, chunk_steps: int, lifecycle: Lifecycle, name: str
    ) -> None:
        self._stream = ChunkStream(load, chunk_steps)
        self._answers, self._awaited = 0, 0
        self._all_answered = threading.Event()
        self._sender = ChunkSender(
            address,
            peer=Peer(RUN_ID, experience_pb2.ROLE_ACTOR, name),
            schema=schema,
            buffer_chunks=BUFFER_CHUNKS,
            drop_oldest=False,
            on_version=self._count_answer,
            stopping=lifecycle.stopping,
            log=make_log(io.StringIO()),
        )
        lifecycle.spawn(f"sender-{chunk_steps}", self._sender.run)

    def send(self, num_chunks: int) -> None:
        """Send that many chunks and wait until each is answered."""
        self._answers, self._awaited = 0, num_chunks
        self._all_answered.clear()
        for _ in range(num_chunks):
            self._sender.put(self._stream.next())
        if not self._all_answered.wait(120):
            raise RuntimeError(f"only {self._answers} of {num_chunks} chunks were answered: {self._sender.waiting_for}")

    def close(self) -> None:
        self._sender.close()

    def _count_answer(self, _version: int) -> None:
        self._answers += 1
        if self._answers == self._awaited:
            self._all_answered.set()


class ShoalCase:
    """Drawn from with the product's defaults; `transport` and `server_flags` are what another way to draw overrides."""

    transport = "grpc"

    @property
    def server_flags(self) -> Tuple[str, ...]:
        return ()

    def open(self, load: Workload) -> Dict[str, Any]:
        self._load, self._schema = load, schema_of(load)
        self._lifecycle = Lifecycle()
        self._server = ShoalServer(load, flags=self.server_flags)
        self._inserters: Dict[int, Inserter] = {}
        self._clients: Dict[int, ReplayClient] = {}
        self._td_error = np.random.default_rng(2).random(4096, np.float32)
        before = resident_bytes(self._server.pid)
        fill = FILL_CHUNK[load.name]
        self._inserter(fill).send(-(-load.capacity // fill))
        after = resident_bytes(self._server.pid)
        return {
            "filled": load.capacity,
            "stored_bytes": sum(after[kind] - before[kind] for kind in after),
            "observation_bytes": self._schema.observation[0].num_bytes,
        }

    def insert(self, batch: int, count: int, variant: str) -> Timing:  # noqa: ARG002 (there is one way)
        inserter = self._inserter(batch)
        inserter.send(BUFFER_CHUNKS)
        num_chunks = -(-count // batch)
        began = time.perf_counter()
        inserter.send(num_chunks)
        return Timing(num_chunks * batch, time.perf_counter() - began)

    def sample(self, batch: int, count: int, variant: str) -> Timing:  # noqa: ARG002
        client = self._client(batch)
        return time_round(lambda: self._draw(client), count, warm_up=2 * AHEAD)

    def close(self) -> None:
        self._lifecycle.stop("the benchmark is over")
        for inserter in self._inserters.values():
            inserter.close()
        for client in self._clients.values():
            client.close()
        self._lifecycle.join()
        self._server.stop()

    def make_client(self, batch: int) -> ReplayClient:
        """A learner's client that draws batches of `batch` items."""
        return ReplayClient(
            self._server.address,
            peer=Peer(RUN_ID, experience_pb2.ROLE_LEARNER, f"learner-of-{batch}"),
            batch_size=batch,
            batches_per_sample=DEFAULTS.batches_per_sample,
            samples_in_flight=DEFAULTS.samples_in_flight,
            transport=self.transport,
            rng=np.random.default_rng(0),
            newest=lambda: (1, 1),
            lifecycle=self._lifecycle,
            log=make_log(io.StringIO()),
        )

    def _draw(self, client: ReplayClient) -> None:
        drawn: DrawnBatch = client.next()
        importance_weights(drawn.batch, IMPORTANCE_EXPONENT)
        client.report(drawn, self._td_error[: len(drawn.batch)])

    def _inserter(self, chunk_steps: int) -> Inserter:
        if chunk_steps not in self._inserters:
            name = f"actor-of-{chunk_steps}"
            made = Inserter(self._load, self._schema, self._server.address, chunk_steps, self._lifecycle, name)
            self._inserters[chunk_steps] = made
            made.send(1)  # it introduces itself: the schema is asked for and sent
        return self._inserters[chunk_steps]

    def _client(self, batch: int) -> ReplayClient:
        if batch not in self._clients:
            self._clients[batch] = self.make_client(batch)
            self._clients[batch].start(self._schema)
        return self._clients[batch]


if __name__ == "__main__":
    sys.exit(serve(ShoalCase()))
