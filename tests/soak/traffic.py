"""Full speed at one replay: a writer and a sampler, each with one call after the other, and what the calls took."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any, List, Optional

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
BATCH_SIZE, NUM_BATCHES = 64, 2
TIMEOUT_S = 30.0


class Traffic:
    """A writer and a sampler of a replay; the sampler sends priorities back."""

    def __init__(self, address: str, name: str) -> None:
        self._channel = connect(address)
        grpc.channel_ready_future(self._channel).result(TIMEOUT_S)  # on a busy machine the first try may fail
        self._stub = replay_pb2_grpc.ReplayServiceStub(self._channel)
        self._actor = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, f"{name}-actor").to_proto(SCHEMA.digest)
        self._learner = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, f"{name}-learner").to_proto(SCHEMA.digest)
        self._chunk = make_chunk(CHUNK_STEPS, CHUNK_LANES, schema=SCHEMA)
        self._sequence = 0
        self._updates = replay_pb2.PriorityUpdates()

    def insert(self) -> float:
        """Insert the next chunk; returns the seconds."""
        chunk = replace(self._chunk, sequence=self._sequence, first_step=self._sequence * CHUNK_STEPS)
        schema = encode_schema(SCHEMA) if self._sequence == 0 else None
        request = replay_pb2.InsertRequest(
            peer=self._actor, schema=schema, chunk=encode_chunk(chunk), max_wait_seconds=5.0
        )
        began_s = time.perf_counter()
        response = call_once(self._stub.Insert, request, timeout_s=TIMEOUT_S)
        took_s = time.perf_counter() - began_s
        assert response.status == replay_pb2.INSERT_STATUS_APPLIED, response.reason
        self._sequence += 1
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
            newest_version=1 + self._sequence // 100,
            updates=self._sequence,
            max_wait_seconds=max_wait_s,
        )
        began_s = time.perf_counter()
        response = call_once(self._stub.Sample, request, timeout_s=TIMEOUT_S)
        took_s = time.perf_counter() - began_s
        if response.status == replay_pb2.SAMPLE_STATUS_WAITING:
            return None
        keys = response.items.keys
        td_error = np.linspace(0.0, 1.0, len(keys) // 8)
        self._updates = replay_pb2.PriorityUpdates(table_id=response.table_id, keys=keys, td_error=td_error.tobytes())
        return took_s

    def fill(self, num_rows: int) -> None:
        """Insert until the ring of so many rows has been written twice."""
        for _ in range(2 * num_rows // (CHUNK_STEPS * CHUNK_LANES) + 1):
            self.insert()

    def info(self) -> Any:
        """The replay's state."""
        peer = Peer("", experience_pb2.ROLE_OPERATOR, "soak").to_proto()
        return call_once(self._stub.GetInfo, replay_pb2.GetReplayInfoRequest(peer=peer), timeout_s=TIMEOUT_S)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


class Window:
    """What the calls of one window took, <float64>[calls], seconds."""

    def __init__(self) -> None:
        self.insert: List[float] = []
        self.sample: List[float] = []

    def run(self, traffic: Traffic, seconds: float) -> None:
        """Insert and sample in turns until the time is over."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.insert.append(traffic.insert())
            self.sample.append(traffic.sample())


def run_at_full_speed(traffic: Traffic, over: threading.Event) -> List[threading.Thread]:
    """Insert on one thread and sample on another until `over`; an error ends both."""

    def repeat(call: Any) -> None:
        try:
            while not over.is_set():
                call()
        finally:
            over.set()

    threads = [threading.Thread(target=repeat, args=(call,)) for call in (traffic.insert, traffic.sample)]
    for thread in threads:
        thread.start()
    return threads


def quantile(windows: List[Window], name: str, share: float) -> float:
    """Median over the windows of a quantile of each, seconds: a neighbour's burst hits some windows, not most."""
    each: List[npt.NDArray[np.float64]] = [np.array(getattr(window, name)) for window in windows]
    return float(np.median([np.quantile(values, share) for values in each if len(values)]))
