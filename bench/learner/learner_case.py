"""One learner, fed by a replay process in two ways, and by batches that lie ready in memory."""

from __future__ import annotations

import io
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from bench.replay.experience import schema_of
from bench.replay.protocol import serve_calls
from bench.replay.shoal_case import FILL_CHUNK, Inserter
from bench.replay.shoal_server import RUN_ID, ShoalServer
from bench.replay.workload import IMPORTANCE_EXPONENT, workload
from services.agent.registry import learner_class
from services.common.batch import Batch
from services.common.config.algorithms import Td3Settings
from services.common.config.run import LearnerSection
from services.common.lifecycle import Lifecycle
from services.common.log import make_log
from services.common.peer import Peer
from services.learner.drawn_batch import DrawnBatch
from services.learner.importance import importance_weights
from services.learner.replay_client import ReplayClient
from shoal.v1 import experience_pb2

HIDDEN = (256, 256)
NUM_PRELOADED = 64  # batches, used round and round: more than the processor's caches hold
WARM_UP = 8  # updates before the timer starts: what was drawn ahead between the rounds is used up
DEFAULTS = LearnerSection()  # of the run file


class LearnerCase:
    """The chief's loop without its checkpoints and publishing: next batch, weights, update, priorities back."""

    def open(self, capacity: int, torch_threads: int) -> Dict[str, Any]:
        """Fill a replay process of `capacity` rows, and make the learner."""
        load = workload("small", capacity)
        self._schema = schema_of(load)
        self._lifecycle = Lifecycle()
        self._data = tempfile.TemporaryDirectory(prefix="shoal-bench-ring-")
        flags = ("--replay.data_dir", self._data.name)
        self._server = ShoalServer(load, flags=flags)
        chunk = FILL_CHUNK[load.name]
        inserter = Inserter(load, self._schema, self._server.address, chunk, self._lifecycle, "actor")
        inserter.send(1)
        inserter.send(-(-capacity // chunk))
        inserter.close()
        settings = Td3Settings(hidden_sizes=HIDDEN)
        self._learner: Any = learner_class("td3")(self._schema, settings, seed=1, num_threads=torch_threads)
        self._clients: Dict[Tuple[str, int], ReplayClient] = {}
        self._preloaded: Dict[int, List[Batch]] = {}
        parameters = sum(array.size for array in self._learner.acting_parameters().values())
        return {"capacity": capacity, "parameters": parameters, "torch_threads": torch_threads}

    def train(self, source: str, batch: int, count: int) -> Dict[str, float]:
        """Take `count` updates on batches of `batch` items.

        Args:
            source: "memory", or the transport of a client: "mapped" or "grpc".
            batch: items.
            count: updates.

        Returns:
            `count`, `seconds`, and `cpu_s` of all threads of this process.
        """
        update = self._from_memory(batch) if source == "memory" else self._from_service(source, batch)
        for number in range(WARM_UP):
            update(number)
        began, cpu_began = time.perf_counter(), time.process_time()
        for number in range(count):
            update(number)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
        return {"count": count, "seconds": seconds, "cpu_s": cpu_s}

    def close(self) -> None:
        self._lifecycle.stop("the benchmark is over")
        for client in self._clients.values():
            client.close()
        self._lifecycle.join()
        self._server.stop()
        self._data.cleanup()

    def _from_memory(self, size: int) -> Callable[[int], None]:
        if size not in self._preloaded:
            client = self._client("grpc", size)
            self._preloaded[size] = [client.next().batch for _ in range(NUM_PRELOADED)]
        batches, learner = self._preloaded[size], self._learner

        def update(number: int) -> None:
            batch = batches[number % NUM_PRELOADED]
            learner.update(batch, importance_weights(batch, IMPORTANCE_EXPONENT))

        return update

    def _from_service(self, transport: str, size: int) -> Callable[[int], None]:
        client, learner = self._client(transport, size), self._learner

        def update(_number: int) -> None:
            drawn: DrawnBatch = client.next()
            made = learner.update(drawn.batch, importance_weights(drawn.batch, IMPORTANCE_EXPONENT))
            client.report(drawn, made.td_error)

        return update

    def _client(self, transport: str, size: int) -> ReplayClient:
        key = (transport, size)
        if key not in self._clients:
            self._clients[key] = ReplayClient(
                self._server.address,
                peer=Peer(RUN_ID, experience_pb2.ROLE_LEARNER, f"learner-{transport}-{size}"),
                batch_size=size,
                batches_per_sample=DEFAULTS.batches_per_sample,
                samples_in_flight=DEFAULTS.samples_in_flight,
                transport=transport,
                rng=np.random.default_rng(0),
                newest=lambda: (1, 1),
                lifecycle=self._lifecycle,
                log=make_log(io.StringIO()),
            )
            self._clients[key].start(self._schema)
        return self._clients[key]


def main() -> int:
    case = LearnerCase()
    try:
        return serve_calls({"open": case.open, "train": case.train})
    finally:
        case.close()


if __name__ == "__main__":
    sys.exit(main())
