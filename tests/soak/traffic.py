"""Full speed at one replay: a writer and a sampler, each with one call after the other, and what the calls took."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any, Callable, List, Optional

import grpc
import numpy as np
import numpy.typing as npt

from bench.replay.shoal_server import RUN_ID
from services.common.codec import encode_chunk, encode_schema
from services.common.peer import Peer
from services.common.rpc import call_once, connect
from services.common.schema import ActionSpec, Schema, TensorSpec
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc
from tests.fakes import make_chunk

SCHEMA = Schema((TensorSpec("policy", "float32", (16,)),), ActionSpec((-1.0,) * 4, (1.0,) * 4))
CHUNK_STEPS, CHUNK_LANES = 16, 8
CHUNK_ROWS = CHUNK_STEPS * CHUNK_LANES
BATCH_SIZE, NUM_BATCHES = 64, 2
UPDATES_A_VERSION = 100
TIMEOUT_S = 30.0
JOIN_S = 60.0  # longer than any call may take


class Traffic:
    """A writer and a sampler of a replay; the sampler sends priorities back."""

    def __init__(self, address: str, name: str, first: int = 0) -> None:
        """Connect.

        Args:
            address: of the replay.
            name: of the run's part that this traffic is.
            first: number of the first chunk, of its first step, of the updates and of the version then.
        """
        self._channel = connect(address)
        grpc.channel_ready_future(self._channel).result(TIMEOUT_S)  # on a busy machine the first try may fail
        self._stub = replay_pb2_grpc.ReplayServiceStub(self._channel)
        self._actor = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, f"{name}-actor").to_proto(SCHEMA.digest)
        self._learner = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, f"{name}-learner").to_proto(SCHEMA.digest)
        self._chunk = make_chunk(CHUNK_STEPS, CHUNK_LANES, schema=SCHEMA, version=1 + first)
        self._first = first
        self.inserted = 0  # chunks
        self.drawn = 0  # items
        self.last_keys: npt.NDArray[np.int64] = np.zeros(0, np.int64)  # of the last draw
        self._updates = replay_pb2.PriorityUpdates()

    def insert(self) -> float:
        """Insert the next chunk; returns the seconds."""
        number = self.inserted
        chunk = replace(self._chunk, sequence=self._first + number, first_step=self._first + number * CHUNK_STEPS)
        schema = encode_schema(SCHEMA) if number == 0 else None
        request = replay_pb2.InsertRequest(
            peer=self._actor, schema=schema, chunk=encode_chunk(chunk), max_wait_seconds=5.0
        )
        began_s = time.perf_counter()
        response = call_once(self._stub.Insert, request, timeout_s=TIMEOUT_S)
        took_s = time.perf_counter() - began_s
        assert response.status == replay_pb2.INSERT_STATUS_APPLIED, response.reason
        self.inserted += 1
        return took_s

    def sample(self) -> float:
        """Draw, and set the priorities of the last draw; returns the seconds."""
        took_s = self.try_sample(5.0)
        assert took_s is not None, "there is nothing to draw"
        return took_s

    def try_sample(self, max_wait_s: float) -> Optional[float]:
        """As `sample`; None where the limiter held the draw for longer than `max_wait_s`."""
        request = replay_pb2.SampleRequest(
            peer=self._learner,
            num_batches=NUM_BATCHES,
            batch_size=BATCH_SIZE,
            priorities=self._updates,
            newest_version=1 + self._first + self.inserted // UPDATES_A_VERSION,
            updates=self._first + self.inserted,
            max_wait_seconds=max_wait_s,
        )
        began_s = time.perf_counter()
        response = call_once(self._stub.Sample, request, timeout_s=TIMEOUT_S)
        took_s = time.perf_counter() - began_s
        if response.status == replay_pb2.SAMPLE_STATUS_WAITING:
            return None
        keys = response.items.keys
        self.last_keys = np.frombuffer(keys, np.int64)
        self.drawn += len(self.last_keys)
        td_error = np.linspace(0.0, 1.0, len(self.last_keys))
        self._updates = replay_pb2.PriorityUpdates(table_id=response.table_id, keys=keys, td_error=td_error.tobytes())
        return took_s

    def fill(self, num_rows: int) -> None:
        """Insert until the ring of so many rows has been written twice."""
        for _ in range(2 * num_rows // CHUNK_ROWS + 1):
            self.insert()

    def info(self) -> Any:
        """The replay's state."""
        peer = Peer("", experience_pb2.ROLE_OPERATOR, "soak").to_proto()
        return call_once(self._stub.GetInfo, replay_pb2.GetReplayInfoRequest(peer=peer), timeout_s=TIMEOUT_S)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


class FullSpeed:
    """Calls one function on one thread and another on a second, without a pause, until the stop.

    Each returns the seconds that it took. What one raises ends both, and is told by `stop`.
    """

    def __init__(self, insert: Callable[[], float], sample: Callable[[], float]) -> None:
        self.inserts: List[float] = []  # seconds, in the order of the calls
        self.samples: List[float] = []
        self.over = threading.Event()  # set by the stop, and by an error
        self._faults: List[str] = []
        parts = (("insert", insert, self.inserts), ("sample", sample, self.samples))
        self._threads = [threading.Thread(target=self._repeat, args=part, name=part[0], daemon=True) for part in parts]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = JOIN_S) -> List[str]:
        """End both; returns what went wrong, one sentence each."""
        self.over.set()
        for thread in self._threads:
            thread.join(timeout_s)
        stuck = [f"the last {thread.name} does not end" for thread in self._threads if thread.is_alive()]
        return self._faults + stuck

    def _repeat(self, name: str, call: Callable[[], float], took_s: List[float]) -> None:
        try:
            while not self.over.is_set():
                took_s.append(call())
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
            self._faults.append(f"{name} number {len(took_s) + 1} failed: {type(error).__name__}: {error}")
        finally:
            self.over.set()
