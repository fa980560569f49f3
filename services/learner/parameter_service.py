"""`ParameterService`: hands out the newest set, keeps the best, and knows who runs what."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional

import google_crc32c
import grpc
import numpy as np

from services.common.errors import UserError
from services.common.log import Log
from services.common.peer import objection
from services.common.rpc import refuse
from services.common.run_folder import Evaluation, Progress, RunFolder
from services.learner.parameter_store import ParameterStore
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc

MAX_PART_BYTES = 4 * 1024 * 1024
MAX_SENTENCE = 300  # characters that are kept of what a reader says about itself


@dataclass
class Reader:
    """A process that fetches parameters."""

    peer: experience_pb2.Peer
    version: int
    digest: str
    seen_at: float
    told_finished: bool
    waiting_for: str  # in its own words; empty: nothing


@dataclass
class Status:
    """What the training loop tells the world; it replaces fields, calls read them."""

    run_state: parameters_pb2.RunState.ValueType = parameters_pb2.RUN_STATE_WAITING
    progress: Progress = field(default_factory=Progress)
    lag_p50: float = 0.0
    lag_p95: float = 0.0


class Readers:
    """Who runs which version, and the rungs of the exploration ladder that actors lease."""

    def __init__(self, clock: Callable[[], float], num_actors: int) -> None:
        self._clock = clock
        self._num_actors = num_actors
        self._lock = threading.Lock()
        self._readers: Dict[str, Reader] = {}
        self._rungs: Dict[str, int] = {}

    def saw(self, request: parameters_pb2.GetManifestRequest, *, finished: bool) -> None:
        """Note a reader's call."""
        reader = Reader(
            request.peer,
            request.running_version,
            request.running_digest,
            self._clock(),
            finished,
            request.waiting_for[:MAX_SENTENCE],
        )
        with self._lock:
            self._readers[request.peer.name] = reader

    def lease_rung(self, name: str) -> int:
        """The ladder's rung of actor `name`: the same in each of its lives, shared once all are taken."""
        with self._lock:
            return self._rungs.setdefault(name, len(self._rungs) % self._num_actors)

    def living(self, within_s: float) -> List[Reader]:
        """Readers that called within the last `within_s` seconds."""
        now = self._clock()
        with self._lock:
            return [reader for reader in self._readers.values() if now - reader.seen_at <= within_s]


def _load_best(folder: RunFolder, log: Log) -> Optional[Evaluation]:
    """What was seen of the best parameters; a damaged file counts as none, so that the next evaluation replaces it."""
    try:
        best = folder.load_best()
    except UserError as error:
        log.warning("damaged best parameters are passed over", reason=str(error))
        return None
    return best[1] if best else None


class ParameterServicer(parameters_pb2_grpc.ParameterServiceServicer):
    """Translates calls into the store, the readers and the run folder."""

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
        self._lock = threading.Lock()
        self._best = _load_best(folder, log)
        evaluations = folder.evaluations()
        self.latest: Optional[Evaluation] = evaluations[-1] if evaluations else None

    def GetManifest(  # noqa: N802 (gRPC's name)
        self, request: parameters_pb2.GetManifestRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.GetManifestResponse:
        refuse(context, objection(request.peer, self._run_id))
        finished = self._status.run_state == parameters_pb2.RUN_STATE_FINISHED
        self._readers.saw(request, finished=finished)
        if request.peer.role == experience_pb2.ROLE_EVALUATOR:
            self._store.hold_newest(request.peer.name)
        response = parameters_pb2.GetManifestResponse(
            run_state=self._status.run_state, chief_incarnation=self._incarnation, num_actors=self._num_actors
        )
        if request.peer.role == experience_pb2.ROLE_ACTOR:
            response.actor_index = self._readers.lease_rung(request.peer.name)
        newest = self._store.newest
        if newest is not None and newest.version > request.newer_than:
            response.available = True
            response.version = newest.version
            response.updates = newest.updates
            response.size_bytes = len(newest.data)
            response.digest = newest.digest
        return response

    def Get(  # noqa: N802
        self, request: parameters_pb2.GetParametersRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.GetParametersResponse:
        refuse(context, objection(request.peer, self._run_id))
        published = self._store.find(request.version)
        if published is None:
            return parameters_pb2.GetParametersResponse(superseded=True)
        size = min(request.max_bytes or MAX_PART_BYTES, MAX_PART_BYTES)
        part = published.data[request.offset_bytes : request.offset_bytes + size]
        return parameters_pb2.GetParametersResponse(data=part, crc32c=google_crc32c.value(part))

    def ReportEvaluation(  # noqa: N802
        self, request: parameters_pb2.ReportEvaluationRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.ReportEvaluationResponse:
        refuse(context, objection(request.peer, self._run_id))
        published = self._store.find(request.version)
        if published is None or published.digest != request.digest:
            return parameters_pb2.ReportEvaluationResponse(
                reason=f"version {request.version} is not held any more: evaluate the newest"
            )
        if not np.isfinite([request.success_rate, request.mean_return]).all():
            return parameters_pb2.ReportEvaluationResponse(reason="success rate and mean return must be finite")
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
            best = self._keep(evaluation, published.data)
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

    def _keep(self, evaluation: Evaluation, data: bytes) -> bool:
        """Add to the learning curve, and keep the parameters if they are the best so far."""
        with self._lock:
            best = evaluation.better_than(self._best)
            if best:
                self._folder.save_best(data, evaluation)
                self._best = evaluation
            self._folder.append_evaluation(evaluation)
            self.latest = evaluation
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
            lag_p50_updates=status.lag_p50,
            lag_p95_updates=status.lag_p95,
            training_seconds=status.progress.training_seconds,
            env_steps=status.progress.env_steps,
            success_rate=-1.0,
            best_success_rate=-1.0,
        )
        if best is not None:
            response.best_version, response.best_success_rate = best.version, best.success_rate
            response.best_mean_return = best.mean_return
        if latest is not None:
            response.evaluated_version, response.success_rate = latest.version, latest.success_rate
            response.mean_return = latest.mean_return
        now = time.monotonic()
        for reader in self._readers.living(within_s=60.0):
            lag = self._store.lag(np.array([reader.version], np.int64), status.progress.updates)
            response.readers.add(
                name=reader.peer.name,
                role=reader.peer.role,
                incarnation=reader.peer.incarnation,
                version=reader.version,
                digest=reader.digest,
                seconds_since_call=now - reader.seen_at,
                lag_updates=int(lag[0]),
                waiting_for=reader.waiting_for,
            )
        return response
