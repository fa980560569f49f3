"""Batches from the replay, drawn ahead of their use, and priorities on their way back with the next draw."""

from __future__ import annotations

import threading
import time
from typing import Callable, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from services.common.batch import Batch
from services.common.codec import decode_schema
from services.common.errors import Crash, UserError
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.peer import Peer
from services.common.round_trip import RoundTrips
from services.common.rpc import Caller, Refused, Stopped, Unavailable, call_once
from services.common.sample_codec import decode_batch, decode_drawn, read_response
from services.common.schema import Schema, SchemaError
from services.common.security.transport import CALL_IN_THE_CLEAR, ClientSecurity
from services.common.stamps_codec import StampSource
from services.common.waits import Waits
from services.common.wire import WireError
from services.learner.batch_queue import BatchQueue
from services.learner.drawn_batch import DrawnBatch
from services.learner.priority_outbox import PriorityOutbox
from services.learner.ring_rows import RingRows, attach
from shoal.v1 import replay_pb2, replay_pb2_grpc

SAMPLE_METHOD = f"/{replay_pb2.DESCRIPTOR.services_by_name['ReplayService'].full_name}/Sample"
SAMPLE_WAIT_S = 2.0  # how long the replay may hold a Sample; the call's deadline is this and a margin
CALL_MARGIN_S = 3.0  # a stop must not wait longer for a replay that is frozen
INFO_TIMEOUT_S = 3.0
PRIORITIES_TIMEOUT_S = 2.0
WAIT_REASONS = ("batches", "schema")
NAMES_TIMEOUT_S = 1.0
WAIT_S = 0.1  # between two looks at whether to stop
MAX_ROW_BYTES = 32 << 20  # in one piece: larger messages, and larger blocks of memory, are slower
MAX_WAITING_BYTES = 128 << 20  # of rows that wait for the learner: no more are fetched then


class Paused(Exception):
    """The run is drained, and no batch comes until it goes on."""


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
        transport: str,
        newest: Callable[[], Tuple[int, int]],
        rng: np.random.Generator,
        lifecycle: Lifecycle,
        log: Log,
        security: ClientSecurity = CALL_IN_THE_CLEAR,
        waits: Optional[Waits] = None,
        is_draining: Callable[[], bool] = lambda: False,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare; `start` begins to draw.

        Args:
            address: of the replay.
            peer: who asks.
            batch_size: items of a batch (N).
            batches_per_sample: batches asked for in one call (K), fewer where too large rows would come with it.
            samples_in_flight: calls under way at once; as many threads.
            transport: "mapped" gathers rows from the ring of a replay on the same host, "grpc" has them sent, "auto"
                takes the first where it can.
            newest: returns (newest version, updates) to pass on with each call.
            rng: chooses the items that stand in for overwritten ones.
            lifecycle: ends the waits.
            log: where waits are said.
            security: certificates and token.
            waits: of the process, with WAIT_REASONS among its reasons.
            is_draining: whether the run is brought to rest; passed on with each call.
            is_paused: whether nothing more is to be drawn.
        """
        self._caller = Caller("replay", address, lifecycle.stopping, log, security=security)
        self._stub = replay_pb2_grpc.ReplayServiceStub(self._caller.channel)
        # As the stub's, but the answer stays in the bytes that came.
        self._sample: Callable[..., bytes] = self._caller.channel.unary_unary(
            SAMPLE_METHOD,
            request_serializer=replay_pb2.SampleRequest.SerializeToString,
            response_deserializer=bytes,  # which copies nothing
        )
        self._peer = peer
        self._batch_size = batch_size
        self._batches_per_sample = self._batches_of_rows = batches_per_sample
        self._max_waiting = 1  # batches in the queue above which no more rows are fetched
        self._samples_in_flight = samples_in_flight
        self._transport = transport
        self._ring: Optional[RingRows] = None  # None: rows come over gRPC
        self._attaching = threading.Lock()
        self._newest = newest
        self._rng = rng
        self._lifecycle = lifecycle
        self._log = log
        # No more is drawn ahead than all calls under way bring: the older a draw, the staler its priorities.
        self._queue: BatchQueue[DrawnBatch] = BatchQueue(batches_per_sample * samples_in_flight)
        self._priorities = PriorityOutbox()
        self._lock = threading.Lock()
        self._is_draining = is_draining
        self._is_paused = is_paused
        self._num_calls = 0  # draws under way
        self._waiting_since_s: Optional[float] = None  # since then there was no schema, or no batch
        self._ended = threading.Event()
        self._waiting_for = ""
        self._waits = waits or Waits(WAIT_REASONS)
        self._trips = RoundTrips()
        self._names: Tuple[int, Tuple[str, ...]] = (0, ())  # of actors, and the table whose they are
        self._schema: Optional[Schema] = None  # once it is known

    @property
    def waiting_for(self) -> str:
        """One sentence while there are no batches; empty otherwise."""
        return self._caller.waiting_for or (self._waiting_for if not self.depth else "")

    @property
    def waited_s(self) -> float:
        """Seconds for which the caller of `next` or `wait_for_schema` has waited; 0 if nobody waits."""
        since_s = self._waiting_since_s
        return time.monotonic() - since_s if since_s is not None else 0.0

    @property
    def _digest(self) -> str:
        return self._schema.digest if self._schema is not None else ""

    @property
    def depth(self) -> int:
        """Batches that wait to be trained on."""
        return len(self._queue)

    @property
    def num_priorities(self) -> int:
        """Batches whose priorities wait for the next call."""
        return len(self._priorities)

    def wait_for_schema(self) -> Schema:
        """Ask until an actor has introduced itself to the replay.

        Raises:
            Refused: the replay belongs to another run.
            Stopped: the process is to end.
        """
        self._waiting_since_s = time.monotonic()
        with self._waits.on("schema"):
            while not self._lifecycle.stopping.is_set():
                info = self.info()
                if info.HasField("schema"):
                    self._waiting_for, self._waiting_since_s = "", None
                    return decode_schema(info.schema)
                if not self._waiting_for:
                    self._waiting_for = "waiting for the first actor to introduce itself to the replay"
                    self._log.info(self._waiting_for)
                self._lifecycle.stopping.wait(0.2)
        raise Stopped

    def info(self, *, with_moments: bool = False) -> replay_pb2.GetReplayInfoResponse:
        """The replay's state; waits for the replay to be there."""
        request = replay_pb2.GetReplayInfoRequest(peer=self._peer.to_proto(), with_moments=with_moments)
        return self._caller.call(self._stub.GetInfo, request, timeout_s=INFO_TIMEOUT_S)

    def info_once(self) -> replay_pb2.GetReplayInfoResponse:
        """The replay's state.

        Raises:
            Refused: it does not let this process ask, as when its token was withdrawn.
            Unavailable: it does not answer.
        """
        request = replay_pb2.GetReplayInfoRequest(peer=self._peer.to_proto())
        return call_once(self._stub.GetInfo, request, timeout_s=self._lifecycle.last_s(INFO_TIMEOUT_S))

    @property
    def overwritten(self) -> int:
        """Items that the replay overwrote before their rows were gathered."""
        return self._ring.overwritten if self._ring else 0

    def start(self, schema: Schema) -> None:
        """Begin to draw batches under `schema`.

        Raises:
            UserError: the ring must be mapped and cannot be.
        """
        self._schema = schema
        self._batches_of_rows = min(self._batches_per_sample, batches_in(MAX_ROW_BYTES, self._batch_size, schema))
        self._max_waiting = batches_in(MAX_WAITING_BYTES, self._batch_size, schema)
        self._attach(None)
        for number in range(self._samples_in_flight):
            self._lifecycle.spawn(f"sampler-{number}", self._draw_until_stopped)

    def next(self) -> DrawnBatch:
        """The next batch.

        Raises:
            Paused: nothing more is drawn, and all that was is handed out.
            Stopped: the process is to end.
        """
        while not self._lifecycle.stopping.is_set():
            drawn = self.next_within(WAIT_S)
            if drawn is not None:
                return drawn
            if self._is_paused() and self._is_quiet() and not self.depth:
                self._waiting_since_s = None
                raise Paused
        raise Stopped

    def next_within(self, timeout_s: float) -> Optional[DrawnBatch]:
        """The next batch, or None if there is none in time. One thread asks."""
        if self.depth:  # the reader is alone: what is there stays there
            self._waiting_since_s = None
            return self._queue.get(timeout_s)[0]
        if self._waiting_since_s is None:
            self._waiting_since_s = time.monotonic()
        with self._waits.on("batches", self._waiting_since_s):
            drawn = next(iter(self._queue.get(timeout_s)), None)
        if drawn is not None:
            self._waiting_since_s = None
        return drawn

    def report(self, drawn: DrawnBatch, td_error: npt.NDArray[np.float32]) -> None:
        """Send |TD errors| back with the next draw."""
        self._priorities.add(drawn.table_id, drawn.batch.keys, td_error)

    def chunks_of(self, table_id: int, keys: Sequence[int]) -> List[str]:
        """Names of the chunks that brought items, each once, for people: without those that are not to be found now."""
        if table_id != self._names[0]:  # keys of an earlier table name nothing now
            return []
        names: List[str] = []
        try:
            for key in keys:
                request = replay_pb2.InspectRequest(peer=self._peer.to_proto(), one=True, key=key)
                answer = call_once(self._stub.Inspect, request, timeout_s=NAMES_TIMEOUT_S)
                names += [item.chunk for item in answer.items]
        except (Refused, Unavailable) as error:
            self._log.debug("the chunks of items are not to be found", reason=str(error))
        return list(dict.fromkeys(names))

    def finish(self) -> None:
        """Stop drawing for good, and `deliver`."""
        self._ended.set()
        self.deliver()

    def deliver(self) -> None:
        """Send the last priorities without a draw; one try, since losing them harms nothing."""
        updates = self._priorities.take()
        if updates is not None:
            request = replay_pb2.UpdatePrioritiesRequest(peer=self._peer.to_proto(self._digest), priorities=updates)
            try:
                call_once(self._stub.UpdatePriorities, request, timeout_s=self._lifecycle.last_s(PRIORITIES_TIMEOUT_S))
            except (Refused, Unavailable) as error:  # a replay that restarted has no table yet
                self._log.warning("the last priorities were not delivered", reason=str(error))

    def close(self) -> None:
        self._caller.close()

    def _draw_until_stopped(self) -> None:
        while not self._is_over():
            if self._is_paused():
                self._lifecycle.stopping.wait(WAIT_S)
                continue
            ring = self._ring
            left = self._batches_per_sample if ring else self._batches_of_rows
            if not self._queue.reserve(left, WAIT_S):
                continue
            try:
                self._count_call(1)  # before the question: whoever finds no call under way knows that none begins
                if self._is_paused():
                    continue
                for drawn in self._draw(left, ring):
                    self._queue.put(drawn)
                    left -= len(drawn)
            except Stopped:
                return
            except (WireError, SchemaError) as error:
                raise Crash(f"the replay's answer to a Sample is none: {error}") from None
            finally:
                self._count_call(-1)
                self._queue.release(left)

    def _count_call(self, change: int) -> None:
        with self._lock:
            self._num_calls += change

    def _is_quiet(self) -> bool:
        """Whether no call under way may still bring batches; a replay that does not answer brings none."""
        return self._num_calls == 0 or bool(self._caller.waiting_for)

    def _draw(self, num_batches: int, ring: Optional[RingRows]) -> Iterator[List[DrawnBatch]]:
        """Make one call; gives the batches that it brought in lists whose rows lie in one block of memory."""
        if ring is None:
            self._wait_for_memory()
        version, updates = self._newest()
        table_id, names = self._names
        request = replay_pb2.SampleRequest(
            peer=self._peer.to_proto(self._digest),
            num_batches=num_batches,
            batch_size=self._batch_size,
            priorities=self._priorities.take(),
            newest_version=version,
            updates=updates,
            max_wait_seconds=SAMPLE_WAIT_S,
            transport=replay_pb2.TRANSPORT_MAPPED if ring else replay_pb2.TRANSPORT_GRPC,
            nonce=ring.nonce if ring else "",
            known_table_id=table_id,
            known_actors=len(names),
            draining=self._is_draining(),
        )
        sent_s = time.monotonic()
        data = self._caller.call(self._sample, request, timeout_s=SAMPLE_WAIT_S + CALL_MARGIN_S)
        arrived_s = time.monotonic()
        answer = read_response(data)
        response = answer.response
        if response.status == replay_pb2.SAMPLE_STATUS_UNPROVEN:
            self._attach(ring)
            return
        self._trips.note(arrived_s - sent_s, response.held_seconds)
        self._waiting_for = response.reason
        if answer.items is None:
            return
        if response.actor_names:
            names = tuple(response.actor_names)
            self._names = (response.table_id, names)
        source, half_trip_s = StampSource(response.sampling_version, names), self._trips.half_s
        for rows in self._rows_of(answer.items, num_batches, response.num_items, ring, source):
            batches = rows.split(self._batch_size)
            yield [DrawnBatch(batch, response.table_id, arrived_s, half_trip_s) for batch in batches]

    def _rows_of(
        self,
        items: Union[bytes, memoryview],
        num_batches: int,
        num_items: int,
        ring: Optional[RingRows],
        source: StampSource,
    ) -> Iterator[Batch]:
        if ring is None:
            batch = decode_batch(items, num_items, source)
            self._check_number(len(batch), num_batches)
            if self._schema is not None:
                batch.check(self._schema)
            yield batch
            return
        drawn = decode_drawn(items, source)
        self._check_number(len(drawn.keys), num_batches)
        for keys in drawn.split(self._batches_of_rows * self._batch_size):
            self._wait_for_memory()
            rows = ring.gather(keys, num_items)
            if rows is not None:
                yield rows

    def _check_number(self, drawn: int, num_batches: int) -> None:
        """Refuse more or fewer items than there is room for in the queue."""
        if drawn != num_batches * self._batch_size:
            raise SchemaError(f"{num_batches} batches of {self._batch_size} items were asked for, and {drawn} came")

    def _wait_for_memory(self) -> None:
        """Wait until no more rows lie in the queue than it is to hold.

        Raises:
            Stopped: no rows are wanted any more.
        """
        while not self._queue.wait_for_fewer(self._max_waiting, WAIT_S):
            if self._is_over():
                raise Stopped

    def _is_over(self) -> bool:
        return self._lifecycle.stopping.is_set() or self._ended.is_set()

    def _attach(self, outdated: Optional[RingRows]) -> None:
        """Attach to the replay's ring, instead of to `outdated`, or have rows sent where that cannot be."""
        with self._attaching:
            if self._transport == "grpc" or self._ring is not outdated:
                return  # another thread was faster
            try:
                self._ring = attach(self.info(), self._rng)
            except UserError as error:
                if self._transport == "mapped":
                    raise UserError(f"learner.transport is mapped, but {error}") from None
                self._ring = None
                self._log.info("rows come over gRPC", reason=str(error))
            else:
                self._log.info("rows come from the mapped ring")


def batches_in(num_bytes: int, batch_size: int, schema: Schema) -> int:
    """How many batches of `batch_size` items have observations of `num_bytes` together; at least 1."""
    item_bytes = sum(2 * spec.num_bytes for spec in schema.observation)
    return max(1, num_bytes // max(1, batch_size * item_bytes))
