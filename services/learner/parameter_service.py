"""`ParameterService`: hands out the newest set, keeps the best, and knows who runs what."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from typing import Callable, List, Optional, Sequence, Union

import grpc
import numpy as np
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from services.common.errors import UserError
from services.common.log import Log
from services.common.parameter_download import PART_BYTES
from services.common.parameter_set import decode_set, encode_set
from services.common.peer import objection
from services.common.rpc import refuse
from services.common.run_folder import Evaluation, Progress, RunFolder
from services.common.staleness_log import LedgerRow
from services.learner.drain import Drain
from services.learner.helpers import HelperView
from services.learner.learner_info import drain_state, helper_infos, lag_parts
from services.learner.parameter_store import ACT, AVERAGE, LEARN, ParameterStore
from services.learner.published_set import PublishedSet
from services.learner.readers import FORGET_S, Question, Reader, Readers
from shoal.v1 import experience_pb2, parameters_pb2

ROLES = (ACT, LEARN, AVERAGE)
UNHEEDED = 10  # sets in a row that a reader asked for and did not take: that is told
LISTED_S = 60.0  # readers that were silent for longer are not listed


@dataclass
class Status:
    """What the training loop tells the world; it replaces fields, calls read them."""

    run_state: parameters_pb2.RunState.ValueType = parameters_pb2.RUN_STATE_WAITING
    progress: Progress = field(default_factory=Progress)
    lag_p50: float = 0.0
    lag_p95: float = 0.0
    non_finite_updates: int = 0  # stopped in this life
    last_row: Optional[LedgerRow] = None  # of the staleness ledger: some seconds of training

    def note_row(self, row: LedgerRow) -> None:
        """Take note of the staleness ledger's newest row."""
        self.last_row = row


def add_to_server(servicer: ParameterServicer, server: grpc.Server) -> None:
    """Register all calls of `ParameterService`.

    As the generated function, but for answers that are serialized already: a part of a set is made into a message once
    and not once for each of its readers, which halves the CPU of a download.
    """
    service = parameters_pb2.DESCRIPTOR.services_by_name["ParameterService"]
    handlers = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=_serialize,
        )
        for method in service.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def _serialize(response: Union[Message, bytes]) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()


def _load_best(folder: RunFolder, log: Log) -> Optional[Evaluation]:
    """What was seen of the best parameters; a damaged file counts as none, so that the next evaluation replaces it."""
    try:
        best = folder.load_best()
    except UserError as error:
        log.warning("damaged best parameters are passed over", reason=str(error))
        return None
    return best[1] if best else None


class ParameterServicer:
    """Translates calls into the store, the readers and the run folder; `add_to_server` registers it."""

    def __init__(
        self,
        *,
        run_id: str,
        incarnation: int,
        store: ParameterStore,
        readers: Readers,
        folder: RunFolder,
        status: Status,
        num_actors: int,
        max_updates: int,
        waiting_for: Callable[[], str],
        fail: Callable[[BaseException], None],
        log: Log,
        drain: Optional[Drain] = None,
        waited_s: Callable[[], float] = lambda: 0.0,
        queue_depth: Callable[[], int] = lambda: 0,
        helpers: Callable[[], Sequence[HelperView]] = lambda: (),
    ) -> None:
        self._run_id = run_id
        self._incarnation = incarnation
        self._store = store
        self._readers = readers
        self._folder = folder
        self._status = status
        self._num_actors = num_actors
        self._max_updates = max_updates
        self._waiting_for = waiting_for
        self._fail = fail
        self._log = log
        self._drain = drain or Drain(readers, time.monotonic, log)
        self._waited_s = waited_s
        self._queue_depth = queue_depth
        self._helpers = helpers
        self._lock = threading.Lock()
        self._best = _load_best(folder, log)
        self._last_report, self._last_was_best = b"", False
        evaluations = folder.evaluations()
        self.latest: Optional[Evaluation] = evaluations[-1] if evaluations else None

    def GetManifest(  # noqa: N802 (gRPC's name)
        self, request: parameters_pb2.GetManifestRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.GetManifestResponse:
        self._check(request, context)
        return self._manifest(request, self._newer(request))

    def Get(  # noqa: N802
        self, request: parameters_pb2.GetParametersRequest, context: grpc.ServicerContext
    ) -> Union[parameters_pb2.GetParametersResponse, bytes]:
        self._check(request, context)
        head, offset_bytes = b"", request.offset_bytes
        if request.version == 0:
            published = self._newer(request)
            response = parameters_pb2.GetParametersResponse(manifest=self._manifest(request, published))
            if published is None:
                return response
            head, offset_bytes = response.SerializeToString(), 0
        else:
            published = self._store.find(request.role, request.version)
            if published is None:
                return parameters_pb2.GetParametersResponse(superseded=True)
        part = published.answer(offset_bytes, request.max_bytes)
        end = offset_bytes + (request.max_bytes or PART_BYTES)
        self._store.note_fetch(published, request.peer.name, is_last_part=end >= published.size_bytes)
        return head + part  # messages one after the other are one message with the fields of both

    def _check(self, question: Question, context: grpc.ServicerContext) -> None:
        """Refuse who does not belong here, and who asks for what this run does not publish."""
        peer = question.peer
        refuse(context, objection(peer, self._run_id))
        refuse(context, self._readers.why_no_room(peer.name))
        if question.role not in ROLES:
            refuse(
                context,
                f"{peer.name} does not say which parameters it wants; install the same version of shoal on both",
            )
        is_average = question.role == parameters_pb2.PARAMETER_ROLE_AVERAGE
        if is_average and self._store.newest is not None and self._store.newest_of(question.role) is None:
            refuse(
                context,
                f"{peer.name} asks for the averaged policy, and this run has none: set learner.average_rate above 0, "
                "or evaluator.parameters to act",
            )

    def _newer(self, question: Question) -> Optional[PublishedSet]:
        """Note who asks; what it should run instead of what it runs, if there is anything."""
        peer, running, role = question.peer, question.running_version, question.role
        if peer.role == experience_pb2.ROLE_EVALUATOR:
            newest = self._store.hold_newest(peer.name, role)
        else:
            newest = self._store.newest_of(role)
        published_digest = self._store.digest_of(role, running) if running else ""
        differs = bool(running and published_digest) and question.running_digest != published_digest
        # One above the newest: the folder of the run was replaced, and versions began anew.
        offered = newest if newest is not None and (differs or question.newer_than != newest.version) else None
        reader, is_mismatch = self._readers.saw(
            question,
            finished=self._status.run_state == parameters_pb2.RUN_STATE_FINISHED,
            offered=offered is not None,
            published_digest=published_digest,
        )
        if is_mismatch:
            self._log.warning(
                "a reader does not run the version that it says: it is sent the newest again",
                reader=peer.name,
                version=running,
                runs_digest=question.running_digest or "none",
                published_digest=published_digest,
            )
        if reader.unheeded == UNHEEDED:
            self._log.warning(
                "a reader asks for newer parameters and goes on with old ones: what it is sent does not arrive whole",
                reader=peer.name,
                version=running,
                lag_updates=self._store.lag_of_reader(role, running, self._status.progress.updates),
            )
        return offered

    def _manifest(self, question: Question, published: Optional[PublishedSet]) -> parameters_pb2.GetManifestResponse:
        response = parameters_pb2.GetManifestResponse(
            run_state=self._status.run_state,
            chief_incarnation=self._incarnation,
            num_actors=self._num_actors,
            ask_again_seconds=self._readers.ask_again_s,
            draining=self._drain.is_on,
        )
        if question.peer.role == experience_pb2.ROLE_ACTOR:
            response.actor_index = self._readers.lease_rung(question.peer.name)
        if published is not None:
            response.available = True
            response.version, response.updates = published.version, published.updates
            response.size_bytes, response.digest = published.size_bytes, published.digest
        return response

    def ReportEvaluation(  # noqa: N802
        self, request: parameters_pb2.ReportEvaluationRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.ReportEvaluationResponse:
        refuse(context, objection(request.peer, self._run_id))
        published = self._store.find_held(request.version, request.digest)
        if published is None:
            return parameters_pb2.ReportEvaluationResponse(
                reason=f"version {request.version} is not held any more: evaluate the newest"
            )
        if not np.isfinite([request.success_rate, request.mean_return, request.mean_episode_steps]).all():
            return parameters_pb2.ReportEvaluationResponse(reason="success rate and mean return must be finite")
        if not -1.0 <= request.success_rate <= 1.0:  # a larger one would stay the best for ever
            return parameters_pb2.ReportEvaluationResponse(reason="a success rate lies in 0 to 1, or is -1: none")
        evaluation = Evaluation(
            version=published.version,
            updates=published.updates,
            episodes=request.episodes,
            success_rate=request.success_rate,
            mean_return=request.mean_return,
            mean_episode_steps=request.mean_episode_steps,
            training_seconds=self._status.progress.training_seconds,
            env_steps=self._status.progress.env_steps,
        )
        try:
            best = self._keep(evaluation, published, request.SerializeToString(deterministic=True))
        except UserError as error:  # the disk is full: the chief cannot go on, and its caller is not to blame
            self._fail(error)
            context.abort(grpc.StatusCode.UNAVAILABLE, f"the chief ends: {error}")
        self._log.info(
            "evaluated",
            version=evaluation.version,
            updates=evaluation.updates,
            success=evaluation.success_rate,
            mean_return=evaluation.mean_return,
            best=best,
        )
        return parameters_pb2.ReportEvaluationResponse(best=best)

    @property
    def best(self) -> Optional[Evaluation]:
        """What was seen of the best version; None before the first evaluation."""
        return self._best

    @property
    def best_updates(self) -> Optional[int]:
        """Updates behind the best version; None before the first evaluation."""
        best = self._best
        return best.updates if best is not None else None

    def _keep(self, evaluation: Evaluation, published: PublishedSet, report: bytes) -> bool:
        """Add to the learning curve, and keep the parameters if they are the best so far; a resend changes nothing."""
        with self._lock:
            if report == self._last_report:  # whose answer came too late, or not at all
                return self._last_was_best
            best = evaluation.better_than(self._best)
            if best:
                # As it acted: rounded to what it travelled in, and float32 again.
                self._folder.save_best(encode_set(decode_set(published.data)), evaluation)
                self._best = evaluation
            self._folder.append_evaluation(evaluation)
            self.latest = evaluation
            self._last_report, self._last_was_best = report, best
        return best

    def GetInfo(  # noqa: N802
        self, request: parameters_pb2.GetLearnerInfoRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.GetLearnerInfoResponse:
        refuse(context, objection(request.peer, self._run_id))
        status, newest, best, latest = self._status, self._store.newest, self._best, self.latest
        response = parameters_pb2.GetLearnerInfoResponse(
            run_id=self._run_id,
            chief_incarnation=self._incarnation,
            run_state=status.run_state,
            version=newest.version if newest else 0,
            updates=status.progress.updates,
            max_updates=self._max_updates,
            waiting_for=self._waiting_for(),
            waiting_seconds=self._waited_s(),
            drain=drain_state(self._drain.state()),
            helpers=helper_infos(self._helpers()),
            lag_parts=lag_parts(status.last_row),
            prefetched_batches=self._queue_depth(),
            lag_p50_updates=status.lag_p50,
            lag_p95_updates=status.lag_p95,
            training_seconds=status.progress.training_seconds,
            env_steps=status.progress.env_steps,
            non_finite_updates=status.non_finite_updates,
            success_rate=-1.0,
            best_success_rate=-1.0,
        )
        if best is not None:
            response.best_version, response.best_success_rate = best.version, best.success_rate
            response.best_mean_return = best.mean_return
        if latest is not None:
            response.evaluated_version, response.success_rate = latest.version, latest.success_rate
            response.mean_return = latest.mean_return
        for reader in self._listed():
            response.readers.add(
                name=reader.peer.name,
                role=reader.peer.role,
                incarnation=reader.peer.incarnation,
                version=reader.version,
                digest=reader.digest,
                seconds_since_call=self._readers.silence_s(reader),
                lag_updates=self._store.lag_of_reader(reader.role, reader.version, status.progress.updates),
                parameters=reader.role,
                digest_differs=reader.digest_differs,
                waiting_for=reader.waiting_for,
                waiting_seconds=self._readers.waited_s(reader),
                drained=reader.drained,
            )
        return response

    def _listed(self) -> List[Reader]:
        """Readers that are told of; an evaluator asks for nothing while it judges, which may take long."""
        listed = self._readers.living(within_s=LISTED_S)
        judging = [
            reader
            for reader in self._readers.living(within_s=FORGET_S)
            if reader.peer.role == experience_pb2.ROLE_EVALUATOR and reader not in listed
        ]
        return [*listed, *judging]

    def Drain(  # noqa: N802
        self, request: parameters_pb2.DrainRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.DrainResponse:
        refuse(context, objection(request.peer, self._run_id))
        if request.peer.role != experience_pb2.ROLE_OPERATOR:
            refuse(context, f"{request.peer.name} is no operator; only `shoal drain` brings a run to rest")
        if request.undo:
            self._drain.undo()
        elif self._status.run_state == parameters_pb2.RUN_STATE_FINISHED:
            refuse(context, "training is finished: the services end by themselves, and nothing is left to drain")
        elif not 0 < request.actors_within_seconds < math.inf:
            refuse(context, "actors were given no time to come to rest; it must be above 0 seconds")
        else:
            self._drain.begin(request.actors_within_seconds)
        return parameters_pb2.DrainResponse(drain=drain_state(self._drain.state()))
