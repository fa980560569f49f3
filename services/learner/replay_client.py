"""Batches from the replay, drawn ahead of their use, and priorities on their way back with the next draw."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

import numpy as np
import numpy.typing as npt

from services.common.batch import Batch
from services.common.codec import decode_batch, decode_schema
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.peer import Peer
from services.common.rpc import Caller, Refused, Stopped, Unavailable, call_once
from services.common.schema import Schema
from shoal.v1 import replay_pb2, replay_pb2_grpc

SAMPLE_WAIT_S = 2.0  # how long the replay may hold a Sample; the call's deadline is this and a margin
CALL_MARGIN_S = 3.0  # a stop must not wait longer for a replay that is frozen
INFO_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class DrawnBatch:
    """A batch and the life of the replay that its keys belong to."""

    batch: Batch
    replay_incarnation: int


class ReplayClient:
    """Keeps a bounded queue of batches full, with several Sample calls in flight."""

    def __init__(
        self,
        address: str,
        *,
        peer: Peer,
        batch_size: int,
        batches_per_sample: int,
        samples_in_flight: int,
        newest: Callable[[], Tuple[int, int]],
        lifecycle: Lifecycle,
        log: Log,
    ) -> None:
        """Prepare; `start` begins to draw.

        Args:
            address: of the replay.
            peer: who asks.
            batch_size: items of a batch (N).
            batches_per_sample: batches asked for in one call (K).
            samples_in_flight: calls under way at once; as many threads.
            newest: returns (newest version, updates) to pass on with each call.
            lifecycle: ends the waits.
            log: where waits are said.
        """
        self._caller = Caller("replay", address, lifecycle.stopping, log)
        self._stub = replay_pb2_grpc.ReplayServiceStub(self._caller.channel)
        self._peer = peer
        self._batch_size = batch_size
        self._batches_per_sample = batches_per_sample
        self._samples_in_flight = samples_in_flight
        self._newest = newest
        self._lifecycle = lifecycle
        self._log = log
        self._queue: queue.Queue[DrawnBatch] = queue.Queue(maxsize=batches_per_sample)
        self._priorities: List[Tuple[int, npt.NDArray[np.int64], npt.NDArray[np.float32]]] = []
        self._lock = threading.Lock()
        self._paused = threading.Event()
        self._waiting_for = ""
        self._digest = ""  # of the schema, once it is known

    @property
    def waiting_for(self) -> str:
        """One sentence while there are no batches; empty otherwise."""
        return self._caller.waiting_for or (self._waiting_for if self._queue.empty() else "")

    @property
    def depth(self) -> int:
        """Batches that wait to be trained on."""
        return self._queue.qsize()

    def wait_for_schema(self) -> Schema:
        """Ask until an actor has introduced itself to the replay.

        Raises:
            Refused: the replay belongs to another run.
            Stopped: the process is to end.
        """
        while not self._lifecycle.stopping.is_set():
            info = self.info()
            if info.HasField("schema"):
                self._waiting_for = ""
                return decode_schema(info.schema)
            if not self._waiting_for:
                self._waiting_for = "waiting for the first actor to introduce itself to the replay"
                self._log.info(self._waiting_for)
            self._lifecycle.stopping.wait(0.2)
        raise Stopped

    def info(self) -> replay_pb2.GetReplayInfoResponse:
        """The replay's state; waits for the replay to be there."""
        request = replay_pb2.GetReplayInfoRequest(peer=self._peer.to_proto())
        return self._caller.call(self._stub.GetInfo, request, timeout_s=INFO_TIMEOUT_S)

    def info_once(self) -> replay_pb2.GetReplayInfoResponse:
        """The replay's state.

        Raises:
            Unavailable: it does not answer.
        """
        request = replay_pb2.GetReplayInfoRequest(peer=self._peer.to_proto())
        return call_once(self._stub.GetInfo, request, timeout_s=INFO_TIMEOUT_S)

    def start(self, schema: Schema) -> None:
        """Begin to draw batches under `schema`."""
        self._digest = schema.digest
        for number in range(self._samples_in_flight):
            self._lifecycle.spawn(f"sampler-{number}", self._draw_until_stopped)

    def next(self) -> DrawnBatch:
        """The next batch.

        Raises:
            Stopped: the process is to end.
        """
        while not self._lifecycle.stopping.is_set():
            try:
                return self._queue.get(timeout=0.1)
            except queue.Empty:
                continue
        raise Stopped

    def report(self, drawn: DrawnBatch, td_error: npt.NDArray[np.float32]) -> None:
        """Send |TD errors| back with the next draw."""
        with self._lock:
            self._priorities.append((drawn.replay_incarnation, drawn.batch.keys, td_error))

    def finish(self) -> None:
        """Stop drawing and deliver the last priorities; one try, since losing them harms nothing."""
        self._paused.set()
        updates = self._take_priorities()
        if updates is not None:
            request = replay_pb2.UpdatePrioritiesRequest(peer=self._peer.to_proto(self._digest), priorities=updates)
            try:
                call_once(self._stub.UpdatePriorities, request, timeout_s=2.0)
            except (Refused, Unavailable) as error:  # a replay that restarted has no table yet
                self._log.warning("the last priorities were not delivered", reason=str(error))

    def close(self) -> None:
        self._caller.close()

    def _draw_until_stopped(self) -> None:
        while not (self._lifecycle.stopping.is_set() or self._paused.is_set()):
            version, updates = self._newest()
            request = replay_pb2.SampleRequest(
                peer=self._peer.to_proto(self._digest),
                num_batches=self._batches_per_sample,
                batch_size=self._batch_size,
                priorities=self._take_priorities(),
                newest_version=version,
                updates=updates,
                max_wait_seconds=SAMPLE_WAIT_S,
                transport=replay_pb2.TRANSPORT_GRPC,
            )
            try:
                response = self._caller.call(self._stub.Sample, request, timeout_s=SAMPLE_WAIT_S + CALL_MARGIN_S)
            except Stopped:
                return
            self._waiting_for = response.reason
            for message in response.batches:
                drawn = DrawnBatch(decode_batch(message, response.num_items), response.replay_incarnation)
                self._put(drawn)

    def _put(self, drawn: DrawnBatch) -> None:
        while not (self._lifecycle.stopping.is_set() or self._paused.is_set()):
            try:
                self._queue.put(drawn, timeout=0.1)
            except queue.Full:
                continue
            return

    def _take_priorities(self) -> Optional[replay_pb2.PriorityUpdates]:
        with self._lock:
            taken, self._priorities = self._priorities, []
        if not taken:
            return None
        incarnation = taken[-1][0]
        alive = [entry for entry in taken if entry[0] == incarnation]  # keys of an earlier life name nothing now
        return replay_pb2.PriorityUpdates(
            replay_incarnation=incarnation,
            keys=np.concatenate([keys for _, keys, _ in alive]).tobytes(),
            td_error=np.concatenate([td_error for _, _, td_error in alive]).astype(np.float64).tobytes(),
        )
