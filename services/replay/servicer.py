"""`ReplayService`: proto in, table call, proto out."""

from __future__ import annotations

import hmac
import threading
import time
from pathlib import Path
from typing import Callable, NoReturn, Optional

import grpc
import numpy as np

from services.common.chunk_id import chunk_id
from services.common.codec import (
    ChecksumError,
    decode_chunk,
    decode_column,
    decode_schema,
    encode_schema,
)
from services.common.errors import UserError
from services.common.log import Log
from services.common.moments import encode_moments
from services.common.peer import objection
from services.common.ring_layout import NONCE_FILE
from services.common.rpc import refuse
from services.common.schema import Schema, SchemaError
from services.common.waits import Waits
from services.replay.admission import InsertStatus, TooManyPeers
from services.replay.answers import fill_info, inspected_item, priority_result, sample_response, unproven_response
from services.replay.chunk_log import RingBroken
from services.replay.footprint import TableTooLarge
from services.replay.inspection import InspectOrder
from services.replay.priorities import PriorityOutcome
from services.replay.quarantine_dump import QuarantineDump
from services.replay.quarantine_log import QuarantineLog
from services.replay.table import Table
from services.replay.table_info import InsertResult
from services.replay.waiting import REASONS, SAMPLE_MIN_SIZE
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc

MAX_WAIT_S = 10.0  # however long a caller would wait, a thread is not held for longer
UNUSUAL = (InsertStatus.REFUSED, InsertStatus.FENCED)
MAX_UPDATES = 1 << 20  # priorities of one call; the table is locked while they are applied
MAX_INSPECTED = 1 << 20  # items of one answer
NO_ACTOR_YET = "no actor has introduced itself yet, so there is nothing to sample"


class ReplayServicer(replay_pb2_grpc.ReplayServiceServicer):
    """Makes the table when the first actor says what its experience looks like, then only translates."""

    def __init__(
        self,
        *,
        run_id: str,
        incarnation: int,
        make_table: Callable[[Schema], Table],
        log: Log,
        fail: Callable[[UserError], None],
        table: Optional[Table] = None,
        dump: Optional[QuarantineDump] = None,
        waits: Optional[Waits] = None,
        on_damaged: Callable[[], object] = lambda: None,
    ) -> None:
        """Serve one run.

        Args:
            run_id: other runs' peers are refused.
            incarnation: random id of this life.
            make_table: makes the table of a schema.
            log: where unusual things are noted.
            fail: told of what ends the process: no table can be made, or nothing can be written down any more.
            table: one that came back from its folder.
            dump: where lanes with values that are not finite are kept; None: nowhere.
            waits: of the process, with the reasons of `waiting`.
            on_damaged: called for each chunk whose checksum does not match.
        """
        self._run_id = run_id
        self._incarnation = incarnation
        self._make_table = make_table
        self._log = log
        self._quarantine_log = QuarantineLog(log, time.monotonic)
        self._dump = dump
        self._fail = fail
        self._table = table
        self._introduced = threading.Condition()
        self._stop_reason = ""
        self._waits = waits or Waits(REASONS)
        self._on_damaged = on_damaged
        self._draining = False  # as the chief said last

    @property
    def table(self) -> Optional[Table]:
        """The table, once an actor has introduced itself."""
        return self._table

    def interrupt(self, reason: str) -> None:
        """Answer every waiting call now; from now on none waits."""
        with self._introduced:
            self._stop_reason = reason
            if self._table is not None:
                self._table.interrupt(reason)
            self._introduced.notify_all()

    def Insert(  # noqa: N802 (gRPC's name)
        self, request: replay_pb2.InsertRequest, context: grpc.ServicerContext
    ) -> replay_pb2.InsertResponse:
        refuse(context, objection(request.peer, self._run_id))
        began_s = time.monotonic()
        if not request.HasField("chunk"):
            return self._hear(request, began_s)
        try:
            table = self._table_for(request)
            if table is None:
                return self._insert_response(InsertResult(InsertStatus.NEED_SCHEMA, "send the schema", 0), began_s)
            chunk = decode_chunk(request.chunk, table.schema)
            chunk.check(table.schema)
        except ChecksumError as error:
            self._on_damaged()
            self._log.warning("a chunk was damaged on its way", chunk=_id_of(request), reason=str(error))
            context.abort(grpc.StatusCode.ABORTED, str(error))
        except SchemaError as error:
            self._log.warning("a chunk is refused", chunk=_id_of(request), reason=str(error))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the chunk is refused: {error}")
        except TableTooLarge as error:
            self._log.error("no table is made for the first actor", actor=request.peer.name, reason=str(error))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except UserError as error:
            self._give_up(error, context)
        max_wait_s = bounded_wait(request.max_wait_seconds)
        try:
            result = table.insert(request.peer.name, request.peer.incarnation, chunk, max_wait_s=max_wait_s)
        except RingBroken as error:
            self._give_up(error, context)
        except TooManyPeers as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._say(result, request)
        if result.status is InsertStatus.APPLIED and chunk.num_steps:
            self._quarantine_log.note(request.peer.name, request.peer.incarnation, chunk, result.quarantined_lanes)
        if self._dump is not None:
            for lane in result.sick_lanes:
                self._dump.write(lane)
        return self._insert_response(result, began_s)

    def _say(self, result: InsertResult, request: replay_pb2.InsertRequest) -> None:
        """One line of what became of a chunk; only what nobody expects is more than a detail."""
        if result.status in UNUSUAL:
            self._log.warning("a chunk is refused", chunk=_id_of(request), reason=result.reason)
        else:
            what = f"a chunk is {result.status.name.lower()}"
            self._log.debug(what, chunk=_id_of(request), reason=result.reason)

    def _hear(self, request: replay_pb2.InsertRequest, began_s: float) -> replay_pb2.InsertResponse:
        """Note what an actor says that has no chunk to send."""
        peer, fenced = request.peer, ""
        if self._table is not None:
            fenced = self._table.hear(peer.name, peer.incarnation, request.waiting_for)
        status = InsertStatus.FENCED if fenced else InsertStatus.APPLIED
        return self._insert_response(InsertResult(status, fenced, 0), began_s)

    def Sample(  # noqa: N802
        self, request: replay_pb2.SampleRequest, context: grpc.ServicerContext
    ) -> replay_pb2.SampleResponse:
        return replay_pb2.SampleResponse.FromString(self.sample_packed(request, context))

    def sample_packed(self, request: replay_pb2.SampleRequest, context: grpc.ServicerContext) -> bytes:
        """Carry out `Sample`; returns its response encoded, which spares its rows the way through a message."""
        refuse(context, objection(request.peer, self._run_id))
        max_wait_s = bounded_wait(request.max_wait_seconds)
        began = time.monotonic()
        table = self._wait_for_table(max_wait_s)
        if table is None:
            return replay_pb2.SampleResponse(
                status=replay_pb2.SAMPLE_STATUS_WAITING,
                reason=self._stop_reason or NO_ACTOR_YET,
            ).SerializeToString()
        self._refuse_other_schema(request.peer.schema_digest, table, context)
        outcome = self._apply_priorities(table, request.priorities, context)
        is_chief = request.peer.role == experience_pb2.ROLE_LEARNER
        if is_chief:
            self._draining = request.draining
        try:
            table.set_newest(request.newest_version, request.updates, chief=request.peer.incarnation if is_chief else 0)
        except RingBroken as error:
            self._give_up(error, context)
        is_mapped = request.transport == replay_pb2.TRANSPORT_MAPPED
        if is_mapped and not _proves_same_host(request.nonce, table):
            return unproven_response(outcome, table.table_id, is_mapped=table.folder is not None).SerializeToString()
        try:
            result = table.sample(
                request.num_batches,
                request.batch_size,
                max_wait_s=max_wait_s - (time.monotonic() - began),
                waiter=request.peer.name,
                with_rows=not is_mapped,
            )
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return sample_response(result, outcome, table.table_id, request, began_s=began)

    def UpdatePriorities(  # noqa: N802
        self, request: replay_pb2.UpdatePrioritiesRequest, context: grpc.ServicerContext
    ) -> replay_pb2.UpdatePrioritiesResponse:
        refuse(context, objection(request.peer, self._run_id))
        if self._table is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, NO_ACTOR_YET)
        outcome = self._apply_priorities(self._table, request.priorities, context)
        return replay_pb2.UpdatePrioritiesResponse(result=priority_result(outcome))

    def GetInfo(  # noqa: N802
        self, request: replay_pb2.GetReplayInfoRequest, context: grpc.ServicerContext
    ) -> replay_pb2.GetReplayInfoResponse:
        refuse(context, objection(request.peer, self._run_id))
        response = replay_pb2.GetReplayInfoResponse(
            run_id=self._run_id, replay_incarnation=self._incarnation, draining=self._draining
        )
        table = self._table
        if table is not None:
            response.schema.CopyFrom(encode_schema(table.schema))
            fill_info(response, table)
            if request.with_moments:
                response.moments.extend(encode_moments(table.moments()))
            response.table_id, response.ring_id = table.table_id, table.ring_id
            if table.folder is not None:
                response.mapped_folder = str(table.folder.path.resolve())
                response.nonce_file = str(table.folder.path.resolve() / NONCE_FILE)
        return response

    def Inspect(  # noqa: N802
        self, request: replay_pb2.InspectRequest, context: grpc.ServicerContext
    ) -> replay_pb2.InspectResponse:
        refuse(context, objection(request.peer, self._run_id))
        table = self._table
        if table is None:
            return replay_pb2.InspectResponse()
        if request.one:
            item = table.inspector.item(request.key)
            return replay_pb2.InspectResponse(items=[inspected_item(item)] if item else [])
        try:
            order = InspectOrder(request.order or replay_pb2.INSPECT_ORDER_HIGHEST_PRIORITY)
        except ValueError:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"there is no order of items with number {request.order}")
        max_items = min(request.max_items, MAX_INSPECTED)
        return replay_pb2.InspectResponse(
            items=[inspected_item(item) for item in table.inspector.find(order, max_items, request.actor)],
            histograms=[
                replay_pb2.Histogram(name=h.name, edges=h.edges, counts=h.counts.tolist())
                for h in table.inspector.histograms()
            ],
        )

    def Snapshot(  # noqa: N802
        self, request: replay_pb2.SnapshotRequest, context: grpc.ServicerContext
    ) -> replay_pb2.SnapshotResponse:
        refuse(context, objection(request.peer, self._run_id))
        if self._table is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no actor has introduced itself yet: nothing to copy")
        if not request.folder or "\0" in request.folder:
            refuse(context, f"{request.folder!r} is no name of a folder that a snapshot could be written to")
        try:
            copied = self._table.snapshot(Path(request.folder))
        except UserError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._log.info("a snapshot is taken", folder=request.folder, steps=copied.steps, seconds=copied.seconds)
        return replay_pb2.SnapshotResponse(steps=copied.steps, bytes=copied.num_bytes, seconds=copied.seconds)

    def Flush(  # noqa: N802
        self, request: replay_pb2.FlushRequest, context: grpc.ServicerContext
    ) -> replay_pb2.FlushResponse:
        refuse(context, objection(request.peer, self._run_id))
        began_s, table = time.monotonic(), self._table
        if table is None:
            return replay_pb2.FlushResponse()
        try:
            steps = table.flush()
        except UserError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        folder = str(table.folder.path.resolve()) if table.folder is not None else ""
        self._log.info("all is flushed", steps=steps)
        return replay_pb2.FlushResponse(steps=steps, seconds=time.monotonic() - began_s, folder=folder)

    def _give_up(self, error: UserError, context: grpc.ServicerContext) -> NoReturn:
        """End the process: what the caller sent is not acknowledged, and may be sent to the next life."""
        self._fail(error)
        context.abort(grpc.StatusCode.UNAVAILABLE, f"the replay ends: {error}")
        raise error

    def _table_for(self, request: replay_pb2.InsertRequest) -> Optional[Table]:
        """The table of the caller's schema, made if it is the first; None: the schema must be sent.

        Raises:
            SchemaError: the caller's schema differs from the table's.
        """
        table = self._table
        if table is not None and request.peer.schema_digest == table.schema.digest:
            return table
        if not request.HasField("schema"):
            return None
        schema = decode_schema(request.schema)
        with self._introduced:
            if self._table is None:
                self._table = self._make_table(schema)
                self._log.info("the first actor has introduced itself", actor=request.peer.name, schema=schema.digest)
                self._introduced.notify_all()
            if self._table.schema != schema:
                raise SchemaError(f"{request.peer.name} has another schema: {self._table.schema.difference(schema)}")
            return self._table

    def _wait_for_table(self, max_wait_s: float) -> Optional[Table]:
        with self._introduced:
            if self._table is None:
                with self._waits.on(SAMPLE_MIN_SIZE):
                    self._introduced.wait_for(lambda: self._table is not None or bool(self._stop_reason), max_wait_s)
            return self._table

    def _refuse_other_schema(self, digest: str, table: Table, context: grpc.ServicerContext) -> None:
        if digest and digest != table.schema.digest:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the learner's schema {digest} differs from the actors' {table.schema.digest}: the environment has "
                "changed since its checkpoint; choose another run.name, or the environment of that run",
            )

    def _apply_priorities(
        self, table: Table, updates: replay_pb2.PriorityUpdates, context: grpc.ServicerContext
    ) -> PriorityOutcome:
        count = len(updates.keys) // 8
        if count > MAX_UPDATES:
            sentence = f"{count} priorities came in one call; it may bring {MAX_UPDATES}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
        try:
            keys = decode_column("priorities.keys", updates.keys, "int64", (count,))
            td_error = decode_column("priorities.td_error", updates.td_error, "float64", (count,))
        except SchemaError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if updates.table_id != table.table_id:
            keys = np.full(count, -1, np.int64)  # keys of another table name nothing here: all are stale
        return table.update_priorities(keys, td_error)

    def _insert_response(self, result: InsertResult, began_s: float) -> replay_pb2.InsertResponse:
        return replay_pb2.InsertResponse(
            status=replay_pb2.InsertStatus.ValueType(int(result.status)),
            reason=result.reason,
            next_sequence=result.next_sequence,
            newest_version=self._table.newest_version if self._table else 0,
            retry_after_seconds=result.retry_after_s,
            quarantined_lanes=result.quarantined_lanes.tolist(),
            replay_incarnation=self._incarnation,
            held_seconds=time.monotonic() - began_s,
            draining=self._draining,
        )


def _id_of(request: replay_pb2.InsertRequest) -> str:
    chunk = request.chunk
    return chunk_id(request.peer.name, request.peer.incarnation, chunk.sequence, chunk.lane_group)


def bounded_wait(wanted_s: float) -> float:
    """How long a caller who would wait for `wanted_s` is held, in [0, MAX_WAIT_S]; NaN is no time at all."""
    return min(max(0.0, wanted_s), MAX_WAIT_S)  # max takes NaN for 0 in this order


def _proves_same_host(nonce: str, table: Table) -> bool:
    return table.folder is not None and hmac.compare_digest(nonce.encode(), table.folder.nonce.encode())
