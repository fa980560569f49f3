"""The chief as its helper sees it: bases to compute on, and pushes that are sent until they are answered."""

from __future__ import annotations

import random
import time
from typing import Callable, Optional

from services.common.errors import Fenced
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.parameter_download import ParameterDownload
from services.common.parameter_set import ParameterSet, ParameterShapes
from services.common.peer import Peer
from services.common.rpc import Backoff, Caller, Refused, Stopped, Unavailable, call_once
from services.common.security.transport import CALL_IN_THE_CLEAR, ClientSecurity
from services.common.waits import Waits
from services.learner.gradients import EncodedGradients
from shoal.v1 import gradients_pb2, gradients_pb2_grpc, parameters_pb2

WAIT_REASONS = ("parameters", "chief")
JOIN_TIMEOUT_S = 5.0
PUSH_TIMEOUT_S = 8.0  # the chief holds a push for 5 s at most
LAST_PUSH_TIMEOUT_S = 2.0  # at a stop, for the answer to a push that is under way
LEAVE_TIMEOUT_S = 1.0
RENEW_AFTER = 0.3  # of a lease that no push has renewed: a chief that waits for data must not forget its helpers
AT_REST = "the run is drained, and takes no further step"
POLL_S = 0.05  # between two looks for the next base, where the answer to a push did not come with one


class ChiefClient:
    """Joins, fetches bases, pushes, leaves. One thread uses it; any may read `waiting_for`."""

    def __init__(
        self,
        address: str,
        *,
        peer: Peer,
        schema_digest: str,
        first_sequence: int,
        lifecycle: Lifecycle,
        log: Log,
        security: ClientSecurity = CALL_IN_THE_CLEAR,
        waits: Optional[Waits] = None,
        data_waiting_for: Callable[[], str] = lambda: "",
        shapes: Optional[ParameterShapes] = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            address: of the chief.
            peer: this helper.
            schema_digest: of its batches.
            first_sequence: of its pushes: above all that earlier lives have used.
            lifecycle: ends the waits.
            log: where waits and refusals are said.
            security: certificates and token.
            waits: of the process, with WAIT_REASONS among its reasons.
            data_waiting_for: one sentence while there is nothing to compute on but a base; the chief is told.
            shapes: of what this helper's learner takes; None: any.
        """
        self._waits = waits or Waits(WAIT_REASONS)
        self._data_waiting_for = data_waiting_for
        self._shapes = shapes
        self._waiting_for = ""
        self._caller = Caller("chief", address, lifecycle.stopping, log, security=security)
        self._stub = gradients_pb2_grpc.GradientServiceStub(self._caller.channel)
        self._peer = peer
        self._schema_digest = schema_digest
        self._last_s = lifecycle.last_s
        self._stopping = lifecycle.stopping
        self._log = log
        self._download = self._make_download()
        self._joined = 0  # incarnation of the chief
        self._renew_at_s = 0.0
        self._lease_s = 0.0
        self._based_at_s = 0.0  # when the last base was handed out
        self._used_version = 0  # the base of the last gradient, or the last before this helper took part
        self._waits_for_next = True
        self.sequence = first_sequence - 1  # of the last push

    @property
    def waiting_for(self) -> str:
        """One sentence while there is nothing to compute on; empty otherwise."""
        return self._caller.waiting_for or self._waiting_for

    def next_base(self) -> Optional[ParameterSet]:
        """The newest base that this helper may compute on; waits for it, and joins first where need be.

        Returns:
            None when training is finished.

        Raises:
            Fenced: a newer life of this helper has taken over.
            Refused: the chief takes no further helper, or not this one, or trains other networks.
            Stopped: the process is to end.
        """
        with self._waits.on("parameters"):
            return self._next_base()

    def _next_base(self) -> Optional[ParameterSet]:
        while not self._stopping.is_set():
            if not self._joined or time.monotonic() > self._renew_at_s:
                self._join()
            manifest = self._download.fetch()
            if manifest.run_state == parameters_pb2.RUN_STATE_FINISHED:
                return None
            if manifest.chief_incarnation != self._joined:
                self._start_over()
                continue
            newest = self._download.newest
            if newest is not None and newest.version != self._used_version:
                return self._begin_with(newest)
            if newest is not None and not self._waits_for_next and not manifest.draining:
                return self._begin_with(newest)
            # Of the chief's steps until it rests, none is to wait for this helper: it helps on until none comes.
            self._waiting_for = AT_REST if manifest.draining else "waiting for the chief's next step"
            self._stopping.wait(POLL_S)
        raise Stopped

    def push(self, base: ParameterSet, num_samples: int, encoded: Optional[EncodedGradients]) -> int:
        """Push one gradient, or abstain, and wait for the definite answer.

        Args:
            base: what it was computed on.
            num_samples: items behind it, 0 to abstain.
            encoded: None to abstain.

        Returns:
            ACCEPTED, SCALED, TOO_STALE, NON_FINITE or CHIEF_RESTARTED. UNSPECIFIED: the process is to end, and the
            last try was not answered.

        Raises:
            Fenced: a newer life of this helper has taken over.
            Refused: the chief finds fault with the push that a resend does not mend.
        """
        self.sequence += 1
        request = gradients_pb2.PushRequest(
            peer=self._peer.to_proto(self._schema_digest),
            sequence=self.sequence,
            base_version=base.version,
            chief_incarnation=base.chief_incarnation,
            num_samples=num_samples,
            segments=encoded.segments if encoded else [],
            crc32c=encoded.crc32c if encoded else 0,
        )
        self._used_version = base.version
        took_s = time.monotonic() - self._based_at_s
        with self._waits.on("chief"):
            response = self._until_definite(request)
        if response is None:
            return gradients_pb2.PUSH_STATUS_UNSPECIFIED
        if response.status == gradients_pb2.PUSH_STATUS_FENCED:
            raise Fenced(response.reason)
        if response.status == gradients_pb2.PUSH_STATUS_CHIEF_RESTARTED:
            self._start_over()
        if response.status not in (gradients_pb2.PUSH_STATUS_ACCEPTED, gradients_pb2.PUSH_STATUS_SCALED):
            self._say_refusal(response, took_s)
        return response.status

    def leave(self) -> None:
        """Tell the chief not to wait; one try, since the lease ends by itself."""
        if self._joined:
            request = gradients_pb2.LeaveRequest(peer=self._peer.to_proto(self._schema_digest))
            try:
                call_once(self._stub.Leave, request, timeout_s=self._last_s(LEAVE_TIMEOUT_S))
            except (Refused, Unavailable) as error:
                self._log.info("the chief did not hear that this helper leaves", reason=str(error))

    def close(self) -> None:
        self._caller.close()

    def _begin_with(self, base: ParameterSet) -> ParameterSet:
        self._waiting_for = ""
        self._based_at_s = time.monotonic()
        return base

    def _say_refusal(self, response: gradients_pb2.PushResponse, took_s: float) -> None:
        status = gradients_pb2.PushStatus.Name(response.status)
        if response.status == gradients_pb2.PUSH_STATUS_TOO_STALE and took_s > self._lease_s:
            self._log.warning(
                "a gradient took longer than the chief's gradients.lease_s: it does not wait so long; raise it, or "
                "give this helper smaller batches",
                took_s=round(took_s, 1),
                lease_s=self._lease_s,
            )
        self._log.info("a gradient was not taken", status=status, reason=response.reason)

    def _join(self) -> None:
        request = gradients_pb2.JoinRequest(peer=self._peer.to_proto(self._schema_digest))
        response = self._caller.call(self._stub.Join, request, timeout_s=JOIN_TIMEOUT_S)
        if response.fenced:
            raise Fenced(f"a newer life of {self._peer.name} has taken over; give each helper its own helper.name")
        self._lease_s = response.lease_seconds
        self._renew_at_s = time.monotonic() + self._lease_s * RENEW_AFTER
        if response.chief_incarnation == self._joined:
            return
        if self._joined:  # it restarted between two calls
            self._start_over()
        self._joined = response.chief_incarnation
        self._used_version = response.newest_version
        self._waits_for_next = response.mode == gradients_pb2.GRADIENT_MODE_SYNCHRONOUS
        self._log.info("helping the chief", mode=gradients_pb2.GradientMode.Name(response.mode))

    def _until_definite(self, request: gradients_pb2.PushRequest) -> Optional[gradients_pb2.PushResponse]:
        backoff = Backoff(random.Random())
        try:
            while True:
                response = self._caller.call(self._stub.Push, request, timeout_s=PUSH_TIMEOUT_S)
                self._waiting_for = response.reason
                if response.status == gradients_pb2.PUSH_STATUS_BAD_CHECKSUM:
                    self._log.warning("a push was damaged on its way: sent again", sequence=request.sequence)
                    self._stopping.wait(backoff.next_s())
                elif response.status != gradients_pb2.PUSH_STATUS_PENDING:
                    self._waiting_for = ""
                    return response
        except Stopped:
            return self._last_try(request)

    def _last_try(self, request: gradients_pb2.PushRequest) -> Optional[gradients_pb2.PushResponse]:
        """The answer of a chief that gives one in a stop; None otherwise."""
        try:
            response = call_once(self._stub.Push, request, timeout_s=self._last_s(LAST_PUSH_TIMEOUT_S))
        except (Refused, Unavailable):
            return None
        indefinite = (gradients_pb2.PUSH_STATUS_PENDING, gradients_pb2.PUSH_STATUS_BAD_CHECKSUM)
        return None if response.status in indefinite else response

    def _start_over(self) -> None:
        """The chief is another one: what was fetched from the last says nothing about this one's versions."""
        self._joined = 0
        self._download = self._make_download()

    def _make_download(self) -> ParameterDownload:
        return ParameterDownload(
            self._caller,
            peer=self._peer,
            role=parameters_pb2.PARAMETER_ROLE_LEARN,
            stopping=self._stopping,
            log=self._log,
            waiting_for=lambda: self._data_waiting_for() or self._waiting_for,
            shapes=self._shapes,
        )
