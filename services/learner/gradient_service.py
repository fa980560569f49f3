"""`GradientService`: checks who pushes what, decodes it on the caller's thread, and answers when there is an answer."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple, Union

import grpc

from services.common.log import Log
from services.common.peer import objection
from services.common.rpc import refuse
from services.learner.contributions import Share
from services.learner.gradient_exchange import GradientExchange
from services.learner.gradient_metrics import GradientMetrics
from services.learner.gradients import BadChecksum, NonFinite, decode_gradients
from services.learner.helpers import Answer, HelperFenced, PushStatus, TooManyHelpers
from shoal.v1 import experience_pb2, gradients_pb2, gradients_pb2_grpc

PUSH_WAIT_S = 5.0  # how long a push is held; its helper resends it then, which costs little and proves that it lives
MARGIN_S = 0.5  # of a call's deadline, for the answer to arrive
MAX_SAMPLES = 1 << 24  # items of one batch
SPARE_BYTES = 64 * 1024  # of a push, for names, scales and a packing that does not pack

Shapes = Mapping[str, Tuple[int, ...]]
_MODES = {
    "synchronous": gradients_pb2.GRADIENT_MODE_SYNCHRONOUS,
    "asynchronous": gradients_pb2.GRADIENT_MODE_ASYNCHRONOUS,
}


class GradientServicer(gradients_pb2_grpc.GradientServiceServicer):
    """Translates calls into the exchange. Until `expect`, the chief does not know what gradients look like."""

    def __init__(
        self,
        *,
        run_id: str,
        incarnation: int,
        exchange: GradientExchange,
        metrics: GradientMetrics,
        mode: str,
        lease_s: float,
        log: Log,
    ) -> None:
        self._run_id = run_id
        self._incarnation = incarnation
        self._exchange = exchange
        self._metrics = metrics
        self._mode = _MODES[mode]
        self._lease_s = lease_s
        self._log = log
        self._shapes: Dict[str, Tuple[int, ...]] = {}
        self._schema_digest = ""
        self._max_bytes = 0

    def expect(self, shapes: Shapes, schema_digest: str) -> None:
        """Serve from now on.

        Args:
            shapes: of all tensors that are trained, by name.
            schema_digest: what the chief's batches look like; helpers' must look alike.
        """
        sizes = [_size(shape) for shape in shapes.values()]
        self._max_bytes = int(1.1 * 4 * sum(sizes)) + SPARE_BYTES
        self._schema_digest = schema_digest
        self._shapes = dict(shapes)

    def Join(  # noqa: N802 (gRPC's name)
        self, request: gradients_pb2.JoinRequest, context: grpc.ServicerContext
    ) -> gradients_pb2.JoinResponse:
        peer = self._check(request.peer, context)
        try:
            newest_version, took_part = self._exchange.join(peer.name, peer.incarnation)
        except HelperFenced:
            return gradients_pb2.JoinResponse(fenced=True)
        except TooManyHelpers as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        if not took_part:
            self._log.info("a helper joins", helper=peer.name)
        return gradients_pb2.JoinResponse(
            chief_incarnation=self._incarnation,
            mode=self._mode,
            newest_version=newest_version,
            lease_seconds=self._lease_s,
        )

    def Leave(  # noqa: N802
        self, request: gradients_pb2.LeaveRequest, context: grpc.ServicerContext
    ) -> gradients_pb2.LeaveResponse:
        peer = self._check(request.peer, context)
        self._exchange.leave(peer.name, peer.incarnation)
        self._log.info("a helper leaves", helper=peer.name)
        return gradients_pb2.LeaveResponse()

    def Push(  # noqa: N802
        self, request: gradients_pb2.PushRequest, context: grpc.ServicerContext
    ) -> gradients_pb2.PushResponse:
        peer = self._check(request.peer, context)
        try:
            answer = self._answer(request, peer, context)
        except HelperFenced as error:
            answer = Answer(PushStatus.FENCED, str(error))
        except TooManyHelpers as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except ValueError as error:  # BadGradient among them: a resend is of no use
            self._metrics.invalid()
            self._exchange.leave(peer.name, peer.incarnation)
            self._log.warning("a push is refused for good", helper=peer.name, reason=str(error))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self._metrics.answered(answer.status)
        return gradients_pb2.PushResponse(
            status=answer.status.value,  # type: ignore[arg-type]  # the numbers are those of the wire
            reason=answer.reason,
            weight=answer.weight,
            newest_version=self._exchange.newest_version,
        )

    def _answer(
        self, request: gradients_pb2.PushRequest, peer: experience_pb2.Peer, context: grpc.ServicerContext
    ) -> Answer:
        if request.chief_incarnation != self._incarnation:
            return Answer(
                PushStatus.CHIEF_RESTARTED,
                f"the gradient's base, version {request.base_version}, was published by an earlier life of the chief",
            )
        name, incarnation, sequence = peer.name, peer.incarnation, request.sequence
        wait_s = _wait_s(context)
        answer = self._exchange.begin(name, incarnation, sequence, request.base_version)
        if answer is None:
            share = self._decode(request)
            if isinstance(share, Answer):
                if share.status is not PushStatus.BAD_CHECKSUM:  # which the same bytes, whole, will be taken up for
                    self._exchange.refuse(name, incarnation, sequence, share)
                self._log.warning("a push is refused", helper=name, status=share.status.name, reason=share.reason)
                return share
            answer = self._exchange.add(incarnation, sequence, request.base_version, share, wait_s)
            if answer.reason:  # there was no room for it
                return answer
        if answer.status is PushStatus.PENDING:
            context.add_callback(self._exchange.wake)
            answer = self._exchange.wait(name, incarnation, sequence, wait_s, context.is_active)
        return answer

    def _decode(self, request: gradients_pb2.PushRequest) -> Union[Share, Answer]:
        """The push as a share, or why it is none.

        Raises:
            ValueError: its content is not what it should be.
        """
        name, num_samples = request.peer.name, request.num_samples
        num_bytes = sum(len(segment.data) + len(segment.scales) for segment in request.segments)
        if num_bytes > self._max_bytes or len(request.segments) > len(self._shapes):
            raise ValueError(
                f"the push of {name} has {num_bytes} bytes in {len(request.segments)} segments; the parameters take "
                f"{self._max_bytes} in {len(self._shapes)} at most: give helper and chief the same run file"
            )
        if num_samples > MAX_SAMPLES or bool(num_samples) != bool(request.segments):
            raise ValueError(
                f"the push of {name} is of {num_samples} items and {len(request.segments)} segments; it must be of 1 "
                f"to {MAX_SAMPLES} items, or of none without segments"
            )
        if not num_samples:
            return Share(name, 0, {})
        try:
            gradients = decode_gradients(request.segments, request.crc32c, self._shapes)
        except BadChecksum as error:
            return Answer(PushStatus.BAD_CHECKSUM, str(error))
        except NonFinite as error:
            return Answer(PushStatus.NON_FINITE, str(error))
        self._metrics.received(num_bytes, sum(gradient.nbytes for gradient in gradients.values()))
        return Share(name, num_samples, gradients)

    def _check(self, peer: experience_pb2.Peer, context: grpc.ServicerContext) -> experience_pb2.Peer:
        refuse(context, objection(peer, self._run_id))
        if peer.role != experience_pb2.ROLE_HELPER:
            refuse(context, f"{peer.name} is no helper; only `shoal learner --chief` pushes gradients")
        if not self._shapes:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the chief waits for the first actor to introduce itself")
        if peer.schema_digest != self._schema_digest:
            refuse(
                context,
                f"{peer.name} has batches of schema {peer.schema_digest or 'none'}, the chief of "
                f"{self._schema_digest}: both must sample from the same replay",
            )
        return peer


def _wait_s(context: grpc.ServicerContext) -> float:
    left_s: Optional[float] = context.time_remaining()
    return PUSH_WAIT_S if left_s is None else max(0.0, min(PUSH_WAIT_S, left_s - MARGIN_S))


def _size(shape: Tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
