"""Sends an actor's chunks to the replay, one in flight, from a bounded buffer; every wait has a reason."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable, Deque, Dict

from services.common.chunk import ActorCounters, Chunk
from services.common.chunk_id import chunk_id
from services.common.codec import encode_schema, fill_chunk, fill_counters
from services.common.errors import Fenced
from services.common.log import Log
from services.common.peer import Peer
from services.common.round_trip import RoundTrips
from services.common.rpc import Caller, Refused, Stopped, TokenRefused, Unavailable, call_once
from services.common.schema import Schema
from services.common.security.transport import CALL_IN_THE_CLEAR, ClientSecurity
from services.common.waits import Held
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc

INSERT_WAIT_S = 2.0  # how long the replay may hold an Insert before it answers BLOCKED
CALL_MARGIN_S = 3.0  # a stop must not wait longer for a replay that is frozen
LOOK_S = 0.5  # while nothing is to be sent
TELL_PERIOD_S = 2.0  # between two words to the replay while nothing is sent
FLUSH_BUDGET_S = 2.0  # of a stop: what cannot be delivered in it is dropped and counted


@dataclass
class _Queued:
    """A chunk packed, checksum and all; what only the send knows is written over at the send."""

    request: replay_pb2.InsertRequest
    lane_group: int
    num_valid: int
    num_bytes: int  # of the chunk as it travels
    since: float

    @classmethod
    def of(cls, chunk: Chunk, peer: experience_pb2.Peer, codec: str) -> _Queued:
        request = replay_pb2.InsertRequest(peer=peer)
        fill_chunk(request.chunk, chunk, codec)
        return cls(request, chunk.lane_group, chunk.num_valid, request.chunk.ByteSize(), 0.0)


class ChunkSender:
    """A bounded buffer with a thread behind it, for all lane groups of an actor.

    One chunk of the whole actor is in flight, so that its counters and what is acknowledged always add up.
    """

    def __init__(
        self,
        address: str,
        *,
        peer: Peer,
        schema: Schema,
        buffer_chunks: int,
        drop_oldest: bool,
        on_version: Callable[[int], None],
        on_draining: Callable[[bool], None] = lambda _draining: None,
        idle_for: Callable[[], str] = lambda: "",
        stopping: threading.Event,
        log: Log,
        codec: str = "none",
        on_drop: Callable[[str, int], None] = lambda _reason, _steps: None,
        on_acknowledged: Callable[[float], None] = lambda _seconds: None,
        security: ClientSecurity = CALL_IN_THE_CLEAR,
        full: Held = contextlib.nullcontext,
        away: Held = contextlib.nullcontext,
    ) -> None:
        """Prepare; `run` is the thread.

        Args:
            address: of the replay.
            peer: who sends.
            schema: of the chunks; sent with the first call and when the replay asks.
            buffer_chunks: chunks that may wait.
            drop_oldest: when the buffer is full, drop its oldest chunk (counted) rather than hold the caller.
            on_version: told the chief's newest version with each acknowledgement.
            on_draining: told with each acknowledgement whether the chief brings the run to rest.
            idle_for: what keeps the actor from acting, in one sentence or none; the replay is told meanwhile.
            stopping: ends the waits; `run` then delivers what it can.
            log: where waits are said.
            codec: "none", "lz4" or "zstd": how images are packed.
            on_drop: told the reason and the number of steps that will not be delivered.
            on_acknowledged: told the seconds from the first send of a chunk to its acknowledgement.
            security: certificates and token.
            full: entered while a full buffer holds the caller of `put`.
            away: entered while the replay does not answer.
        """
        self._caller = Caller("replay", address, stopping, log, security=security, held=away)
        self._full = full
        self._stub = replay_pb2_grpc.ReplayServiceStub(self._caller.channel)
        self._peer = peer.to_proto(schema.digest)
        self._schema = schema
        self._send_schema = True
        self._buffer_chunks = buffer_chunks
        self._drop_oldest = drop_oldest
        self._on_version = on_version
        self._on_draining = on_draining
        self._idle_for = idle_for
        self._told_s = 0.0  # when the replay was told last
        self._in_flight = False
        self._stopping = stopping
        self._log = log
        self._queue: Deque[_Queued] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._ended = False  # nothing is delivered any more
        self._codec = codec
        self._on_drop = on_drop
        self._on_acknowledged = on_acknowledged
        self._sequences: Dict[int, int] = {}  # by lane group: the next
        self._produced = 0
        self._trips = RoundTrips()
        self._dropped: Dict[str, int] = {}
        self._blocked = ""
        self.acknowledged_steps = 0
        self.acknowledged_bytes = 0

    @property
    def waiting_for(self) -> str:
        """One sentence while chunks cannot be delivered; empty otherwise."""
        return self._caller.waiting_for or self._blocked

    @property
    def unanswered(self) -> str:
        """One sentence while the replay does not answer at all; who is held by its limiter, it tells itself."""
        return self._caller.waiting_for

    @property
    def depth(self) -> int:
        """Chunks that wait."""
        return len(self._queue)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        with self._changed:
            return not self._queue and not self._in_flight

    @property
    def dropped_steps(self) -> Dict[str, int]:
        """Steps that were never delivered, by reason."""
        return dict(self._dropped)

    def put(self, chunk: Chunk) -> None:
        """Buffer a chunk; a full buffer holds the caller or drops its oldest chunk, as configured.

        In a stop the buffer is delivered or given up within a budget, so that the caller is held no longer than that.

        Raises:
            SchemaError: a column's dtype does not travel.
        """
        queued = _Queued.of(
            chunk, self._peer, self._codec
        )  # here and not at the send: the chunk before it is on its way meanwhile
        with self._changed:
            if self._drop_oldest:
                while self._is_full:
                    self._drop(self._queue.popleft(), "buffer_full")
            elif self._is_full:
                with self._full():
                    while self._is_full:
                        self._changed.wait(0.1)
            # Not before: steps that are held back are in no buffer yet, and the counters must add up.
            self._produced += queued.num_valid
            if self._ended:
                self._drop(queued, "stopped")
                return
            queued.since = time.monotonic()
            self._queue.append(queued)
            self._changed.notify_all()

    @property
    def _is_full(self) -> bool:
        return len(self._queue) >= self._buffer_chunks and not self._ended

    def close(self) -> None:
        """No further chunk will come: `run` returns when the buffer is delivered, or the stop's budget is used up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """Deliver until closed; run it on a thread.

        Raises:
            Fenced, Refused: the replay takes no more of this actor's chunks; not in a stop, where it is a warning.
        """
        try:
            self._deliver_until_stopped()
            self._flush()
        except (Fenced, Refused) as error:
            if not self._stopping.is_set():
                raise
            self._log.warning("the replay takes none of the last chunks", reason=str(error))
        finally:
            with self._changed:
                self._give_up()
            self._caller.close()

    def _deliver_until_stopped(self) -> None:
        while True:
            with self._changed:
                if not self._queue and not self._closed:
                    self._changed.wait(LOOK_S)
                if (self._closed and not self._queue) or (self._queue and self._stopping.is_set()):
                    return
                queued = self._queue.popleft() if self._queue else None
                self._in_flight = queued is not None
                self._changed.notify_all()
            if queued is None:
                self._tell()
                continue
            try:
                self._deliver(queued)
            except Stopped:
                self._put_back(queued)
                return
            except (Fenced, Refused):
                self._put_back(queued)
                raise

    def _tell(self) -> None:
        """Tell the replay now and then why no chunk comes: people ask it when the chief is away."""
        sentence = self._idle_for()
        if not sentence or self._stopping.is_set() or time.monotonic() - self._told_s < TELL_PERIOD_S:
            return
        self._told_s = time.monotonic()
        request = replay_pb2.InsertRequest(peer=self._peer, waiting_for=sentence)
        with contextlib.suppress(Unavailable, Refused):  # a replay of an older version knows no such word
            response = call_once(self._stub.Insert, request, timeout_s=TELL_PERIOD_S)
            self._on_version(response.newest_version)
            self._on_draining(response.draining)
            if response.status == replay_pb2.INSERT_STATUS_FENCED:
                raise Fenced(response.reason)

    def _deliver(self, queued: _Queued) -> None:
        began_s = time.monotonic()
        while True:
            request = self._request(queued, INSERT_WAIT_S)
            sent_s = time.monotonic()
            response = self._caller.call(self._stub.Insert, request, timeout_s=INSERT_WAIT_S + CALL_MARGIN_S)
            self._trips.note(time.monotonic() - sent_s, response.held_seconds)
            if self._settled(response, queued):
                self._on_acknowledged(time.monotonic() - began_s)
                return
            if self._stopping.wait(response.retry_after_seconds):
                raise Stopped

    def _settled(self, response: replay_pb2.InsertResponse, queued: _Queued) -> bool:
        """Whether the chunk is done with; False: send it again."""
        status = response.status
        self._on_version(response.newest_version)
        self._on_draining(response.draining)
        if status in (replay_pb2.INSERT_STATUS_APPLIED, replay_pb2.INSERT_STATUS_DUPLICATE):
            self._log.debug("a chunk is acknowledged", chunk=self._id_of(queued), steps=queued.num_valid)
            self._sequences[queued.lane_group] = self._sequence_of(queued) + 1
            self._send_schema = False
            self._blocked = ""
            self.acknowledged_steps += queued.num_valid
            self.acknowledged_bytes += queued.num_bytes
            self._in_flight = False
            return True
        if status == replay_pb2.INSERT_STATUS_NEED_SCHEMA:
            self._send_schema = True
            return False
        if status == replay_pb2.INSERT_STATUS_BLOCKED:
            if not self._blocked:
                self._log.debug("held by the replay", chunk=self._id_of(queued), reason=response.reason)
            self._blocked = response.reason
            return False
        if status == replay_pb2.INSERT_STATUS_FENCED:
            raise Fenced(response.reason)
        raise Refused(f"the replay refuses chunk={self._id_of(queued)}: {response.reason}")

    def _flush(self) -> None:
        """Deliver what is left within the stop's budget, without repeating for ever; count the rest as dropped.

        Raises:
            Fenced, Refused: the replay will not take it.
        """
        deadline = time.monotonic() + FLUSH_BUDGET_S
        said = False
        while True:
            with self._changed:
                while not self._queue and not self._closed:  # a slow environment makes its last step: nothing waits
                    self._changed.wait(0.5)
                    deadline = time.monotonic() + FLUSH_BUDGET_S
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    self._give_up()
                if not self._queue:
                    return
                queued = self._queue.popleft()
                self._changed.notify_all()
            is_settled = False
            try:
                response = call_once(self._stub.Insert, self._request(queued, left_s), timeout_s=left_s + 0.5)
                is_settled = self._settled(response, queued)
            except (TokenRefused, Unavailable) as error:  # the file of a withdrawn token may be replaced at any time
                if not said:
                    self._log.warning("the last chunks wait for the replay", reason=str(error))
                    said = True
            finally:
                if not is_settled:
                    self._put_back(queued)
            if not is_settled:
                time.sleep(0.05)

    def _put_back(self, queued: _Queued) -> None:
        """It was not delivered, and is the first to be tried again, or dropped."""
        with self._changed:
            self._queue.appendleft(queued)

    def _give_up(self) -> None:
        """Nothing is delivered any more: what waits is dropped, and so is what still comes."""
        self._ended = True
        while self._queue:
            self._drop(self._queue.popleft(), "stopped")

    def _request(self, queued: _Queued, max_wait_s: float) -> replay_pb2.InsertRequest:
        request = queued.request
        request.ClearField("schema")
        if self._send_schema:
            request.schema.CopyFrom(encode_schema(self._schema))
        request.max_wait_seconds = max_wait_s
        request.chunk.sequence = self._sequence_of(queued)
        request.chunk.queued_seconds = time.monotonic() - queued.since + self._trips.half_s
        with self._changed:
            buffered = sum(waiting.num_valid for waiting in self._queue)
            fill_counters(request.chunk.counters, ActorCounters(self._produced, buffered, self.dropped_steps))
        return request

    def _drop(self, queued: _Queued, reason: str) -> None:
        self._dropped[reason] = self._dropped.get(reason, 0) + queued.num_valid
        self._on_drop(reason, queued.num_valid)

    def _id_of(self, queued: _Queued) -> str:
        return chunk_id(self._peer.name, self._peer.incarnation, self._sequence_of(queued), queued.lane_group)

    def _sequence_of(self, queued: _Queued) -> int:
        return self._sequences.get(queued.lane_group, 0)
