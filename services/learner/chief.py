"""The chief: owns the parameters, serves them, and trains on what the replay draws."""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Tuple

import numpy as np
from typing_extensions import Self

from services.common.config.load import to_toml
from services.common.config.run import RunConfig
from services.common.errors import UserError
from services.common.files import write_atomically
from services.common.heartbeat import Heartbeat, Pulse
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.metrics import Metrics
from services.common.peer import Peer
from services.common.rpc import Server, Stopped
from services.common.run_folder import Progress, RunFolder
from services.common.schema import Schema
from services.common.security.transport import server_security
from services.learner.averaged_parameters import AveragedParameters
from services.learner.building import (
    build_claim_check,
    build_guard,
    build_learner,
    build_replay_client,
    build_staleness,
    build_statistics,
    check_device,
)
from services.learner.checkpoint import Checkpoint, CheckpointFolder, generator_state
from services.learner.checkpoint_metrics import CheckpointMetrics
from services.learner.chief_metrics import WAIT_REASONS, ChiefMetrics
from services.learner.collaboration import Collaboration
from services.learner.done_updates import DoneUpdates
from services.learner.drain import UNDO, Drain
from services.learner.env_steps import AcknowledgedSteps
from services.learner.farewell import wait_for_readers
from services.learner.parameter_service import ParameterServicer, Status, add_to_server
from services.learner.parameter_store import ParameterStore
from services.learner.publisher import Publisher
from services.learner.reader_metrics import ReaderMetrics
from services.learner.readers import Readers
from services.learner.replay_client import ReplayClient
from services.learner.version_reservation import VersionReservation
from shoal.v1 import experience_pb2, gradients_pb2_grpc, parameters_pb2

if TYPE_CHECKING:
    from services.agent.algorithm import Learner
    from services.learner.checkpointer import Checkpointer, State
    from services.learner.data_staleness import DataStaleness
    from services.learner.joint_update import Updater
    from services.learner.monitor import Monitor
    from services.learner.nan_guard import NanGuard
    from services.learner.rest import Rest

STAND_INS = "stand_ins"  # the generator that chooses the items which stand in for overwritten ones

READER_THREADS = 16  # for calls that fetch parameters; each call under way holds one
MAX_CALLS = 256  # readers that hear of a version at once are queued, each with a part of a set at most


class Chief:
    """The parts of the learner process; `with` starts them and stops them in reverse."""

    def __init__(self, config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
        """Build the parts and bind the ports.

        Raises:
            UserError: the device is not there, a port is taken, or the run folder holds another algorithm's run or no
                intact checkpoint.
        """
        settings, run_id = config.learner, config.run.name
        check_device(settings.device)
        self._config = config
        self._lifecycle = lifecycle
        self._log = log
        self._folder = RunFolder(Path(config.run.folder) / run_id, max_evaluations=settings.max_evaluations)
        self._checkpoints = CheckpointFolder(
            self._folder.checkpoints,
            log,
            keep=settings.checkpoints_kept,
            best_updates=lambda: self._servicer.best_updates,
        )
        self._resumed = self._load_checkpoint()
        self._done = DoneUpdates(self._folder.updates_done)
        self._stand_ins = np.random.default_rng(config.run.seed)
        if self._resumed is not None and STAND_INS in self._resumed.generators:
            self._stand_ins.bit_generator.state = self._resumed.generators[STAND_INS]
        self._steps = AcknowledgedSteps(self._resumed.acknowledged if self._resumed else {})
        self._status = Status()
        self._learner: Optional[Learner] = None
        self._metrics = Metrics("learner", run_id)
        self._waits = self._metrics.waits(WAIT_REASONS)
        self._peer = Peer(run_id, experience_pb2.ROLE_LEARNER, "learner", lifecycle.incarnation)
        self._readers = Readers(time.monotonic, config.actor.count, settings.max_peers)
        self._drain = Drain(self._readers, time.monotonic, log)
        history = self._resumed.history if self._resumed else []
        last_version = history[-1].version if history else 0
        self._store = ParameterStore(
            VersionReservation(self._folder.versions, last_version), history, wire_dtype=settings.wire_dtype
        )
        self._replay = self._make_replay_client()
        self._collaboration = Collaboration(
            config.gradients,
            num_planned=config.helper.count,
            run_id=run_id,
            incarnation=self._peer.incarnation,
            metrics=self._metrics,
            log=log,
            held=partial(self._waits.on, "gradients"),
        )
        self._servicer = self._make_servicer()
        self._show()
        self._server, self._metrics_port = self._bind()

    def _make_replay_client(self) -> ReplayClient:
        return build_replay_client(
            self._config,
            peer=self._peer,
            rng=self._stand_ins,
            # Not those of `_status`, which are half a second old: the replay would hold the bound on lag so much later.
            newest=lambda: (self._newest_version, self._learner.updates if self._learner else 0),
            lifecycle=self._lifecycle,
            log=self._log,
            waits=self._waits,
            is_draining=lambda: self._drain.is_on,
            is_paused=self._drain.is_learners_turn,
        )

    def _make_servicer(self) -> ParameterServicer:
        return ParameterServicer(
            run_id=self._config.run.name,
            incarnation=self._peer.incarnation,
            store=self._store,
            readers=self._readers,
            folder=self._folder,
            status=self._status,
            num_actors=self._config.actor.count,
            max_updates=self._config.learner.max_updates,
            waiting_for=lambda: self._waiting_for,
            waited_s=lambda: self._waited_s,
            queue_depth=lambda: self._replay.depth,
            helpers=self._collaboration.helpers,
            drain=self._drain,
            fail=self._lifecycle.fail,
            log=self._log,
        )

    def _show(self) -> None:
        """Let Prometheus see readers, disk, and the chief itself."""
        self._metrics.registry.register(ReaderMetrics(self._config.run.name, self._readers, self._store, self._status))
        self._metrics.disk(self._folder.path, "the run's folder")
        ChiefMetrics(
            self._metrics,
            status=self._status,
            store=self._store,
            servicer=self._servicer,
            replay=self._replay,
            updates=lambda: self._learner.updates if self._learner else self._status.progress.updates,
            max_lag_updates=self._config.staleness.max_lag_updates,
        )

    def _load_checkpoint(self) -> Optional[Checkpoint]:
        found = self._checkpoints.load_newest()
        if found is not None and found.algorithm != self._config.algorithm.name:
            raise UserError(
                f"the checkpoint in {str(self._folder.path)!r} was trained by {found.algorithm}, the run file asks for "
                f"{self._config.algorithm.name}: choose another run.name, or set algorithm.name back"
            )
        return found

    def _bind(self) -> Tuple[Server, int]:
        """The server with both services, which does not answer yet, and the port of the metrics."""
        config, settings = self._config, self._config.learner
        metrics_address = f"{config.metrics.host}:{settings.metrics_port}"
        security = server_security(config.security, settings.listens_at, metrics_address, log=self._log)
        server = Server(
            settings.listens_at,
            # Waiting pushes must not keep readers of parameters out.
            max_workers=READER_THREADS + self._collaboration.num_threads,
            max_calls=MAX_CALLS + self._collaboration.num_threads,
            option_name="learner.listen" if settings.listen else "learner.address",
            security=security,
            on_rejected=self._metrics.rejected_calls(),
            observe=self._metrics.calls(),
        )
        server.add(add_to_server, self._servicer)
        server.add(gradients_pb2_grpc.add_GradientServiceServicer_to_server, self._collaboration.servicer)
        self._metrics.certificate(security.certificate)
        port = self._metrics.serve(
            settings.metrics_port, "learner.metrics_port", host=config.metrics.host, security=security
        )
        return server, port

    @property
    def address(self) -> str:
        """Where the chief listens."""
        return self._server.address

    def __enter__(self) -> Self:
        if not self._folder.config.exists():  # started by hand: whoever reads the folder needs the settings
            write_atomically(self._folder.config, to_toml(self._config).encode())
        self._server.start()
        Heartbeat(self._pulse, self._lifecycle, os.environ).start()
        self._log.info(
            "learner listens", address=self.address, metrics_port=self._metrics_port, run=self._config.run.name
        )
        return self

    def __exit__(self, *_exc: object) -> None:
        self._lifecycle.stop("training has ended")
        try:
            self._lifecycle.join()
        finally:
            self._replay.close()
            self._server.stop()
            self._metrics.stop()

    def _pulse(self) -> Pulse:
        updates = self._status.progress.updates
        waiting = self._waiting_for
        if self._status.run_state == parameters_pb2.RUN_STATE_FINISHED:
            waiting = "waiting for readers to hear that training is finished"
        return Pulse(updates, waiting, f"{updates} of {self._config.learner.max_updates} updates")

    @property
    def _waiting_for(self) -> str:
        """One sentence while training does not go on; empty otherwise."""
        if self._drain.is_at_rest:
            return f"the run is drained; {UNDO}"
        return self._replay.waiting_for or self._collaboration.waiting_for

    @property
    def _waited_s(self) -> float:
        if self._drain.is_at_rest:
            return self._drain.state().seconds
        return self._replay.waited_s or self._collaboration.waited_s

    def train(self) -> None:
        """Wait for a first actor, then train until the last update or the stop; ends with a checkpoint."""
        schema = self._replay.wait_for_schema()
        learner = self._learner = self._make_learner(schema)

        from services.learner.events import EventLog
        from services.learner.monitor import Monitor

        monitor = Monitor(
            status=self._status,
            store=self._store,
            metrics=self._metrics,
            events=EventLog(self._folder.tensorboard, max_bytes=self._config.learner.max_event_bytes),
            earlier=self._resumed.progress if self._resumed else Progress(),
            clock=time.monotonic,
            env_steps=lambda: self._steps.total,
            latest_evaluation=lambda: self._servicer.latest,
            max_updates=self._config.learner.max_updates,
            claims=build_claim_check(self._config, self._store, self._metrics, self._log),
        )
        with contextlib.closing(monitor):
            self._train(learner, schema, monitor)

    def _train(self, learner: Learner, schema: Schema, monitor: Monitor) -> None:
        from services.learner.loop import train

        settings = self._config.learner
        statistics = build_statistics(self._config, learner, self._log)
        earlier = self._resumed.average if self._resumed else {}
        average = AveragedParameters(settings.average_rate, earlier, learner.updates)
        publisher = Publisher(
            self._store, learner, period=settings.publish_schedule, average=average, statistics=statistics
        )
        checkpointer = self._make_checkpointer(learner, schema, monitor, average)
        staleness = build_staleness(
            self._config, self._store, self._folder.staleness, self._metrics, on_row=self._status.note_row
        )
        publisher.publish()
        self._folder.save_progress(monitor.progress(learner.updates))

        def after_update() -> None:
            self._done.note(learner.updates)
            publisher.publish_if_due()

        self._lifecycle.spawn("env-steps", lambda: self._steps.watch(self._replay, self._lifecycle, statistics))
        self._replay.start(schema)
        updater = self._collaboration.begin(
            learner, schema.digest, publish=publisher.publish_learn, stopping=self._lifecycle.stopping
        )
        self._status.run_state = parameters_pb2.RUN_STATE_TRAINING
        rest = self._make_rest(learner, monitor, staleness, publisher, checkpointer)
        try:
            least = self._config.replay.min_size_to_sample
            with self._waits.on("batches"):
                has_first = statistics.wait_for_first(self._replay, self._lifecycle, min_steps=least)
            if has_first:
                publisher.publish()
            self._drain.loop_begins()
            train(
                updater,
                self._replay,
                self._make_guard(updater),
                monitor,
                staleness,
                publish_if_due=after_update,
                checkpoint_if_due=checkpointer.save_if_due,
                rest=rest,
                max_updates=settings.max_updates,
                importance_exponent=settings.importance_exponent,
            )
        except Stopped:
            self._log.info("training stops early", updates=learner.updates, reason=self._lifecycle.reason)
        rest.end()

    def _make_rest(
        self,
        learner: Learner,
        monitor: Monitor,
        staleness: DataStaleness,
        publisher: Publisher,
        checkpointer: Checkpointer,
    ) -> Rest:
        from services.learner.rest import Rest

        return Rest(
            self._drain,
            self._lifecycle,
            collaboration=self._collaboration,
            replay=self._replay,
            steps=self._steps,
            staleness=staleness,
            publisher=publisher,
            monitor=monitor,
            checkpointer=checkpointer,
            folder=self._folder,
            updates=lambda: learner.updates,
        )

    def _make_checkpointer(
        self, learner: Learner, schema: Schema, monitor: Monitor, average: AveragedParameters
    ) -> Checkpointer:
        from services.learner.checkpointer import Checkpointer

        def take_checkpoint(spare: Optional[State]) -> Checkpoint:
            return Checkpoint(
                algorithm=self._config.algorithm.name,
                schema=schema,
                progress=monitor.progress(learner.updates),
                history=self._store.history(),
                acknowledged=self._steps.by_ring(),
                state=learner.state(into=spare),
                generators={STAND_INS: generator_state(self._stand_ins)},
                average=average.state(),
            )

        period_s = self._config.learner.checkpoint_period_s
        return Checkpointer(
            self._checkpoints,
            take_checkpoint,
            period_s=period_s,
            clock=time.monotonic,
            lifecycle=self._lifecycle,
            metrics=CheckpointMetrics(self._metrics, period_s=period_s, clock=time.monotonic),
            held=partial(self._waits.on, "checkpoint"),
        )

    def _make_guard(self, updater: Updater) -> NanGuard:
        def count(stopped: int) -> None:
            self._status.non_finite_updates = stopped

        return build_guard(
            self._config,
            updater,
            self._replay,
            dumps=self._folder.non_finite,
            metrics=self._metrics,
            log=self._log,
            on_stopped=count,
        )

    def say_farewell(self) -> None:
        """Tell actors and evaluator that training is finished, and wait until they know."""
        progress = self._status.progress
        if not progress.is_finished:
            return
        self._status.run_state = parameters_pb2.RUN_STATE_FINISHED
        self._log.info("training is finished", updates=progress.updates, env_steps=progress.env_steps)
        with self._waits.on("readers"):
            wait_for_readers(
                self._readers,
                last_version=self._newest_version,
                latest_evaluation=lambda: self._servicer.latest,
                clock=time.monotonic,
                lifecycle=self._lifecycle,
                log=self._log,
            )

    @property
    def _newest_version(self) -> int:
        newest = self._store.newest
        return newest.version if newest else 0

    def _make_learner(self, schema: Schema) -> Learner:
        config, resumed = self._config, self._resumed
        if resumed is not None and resumed.schema != schema:
            raise UserError(
                f"the checkpoint in {str(self._folder.path)!r} does not fit the actors' environment: "
                f"{resumed.schema.difference(schema)}; choose another run.name, or the environment of that run"
            )
        learner = build_learner(config, schema, config.run.seed)
        if resumed is not None:
            try:
                learner.load_state(resumed.state)
            except ValueError as error:
                raise UserError(
                    f"the checkpoint in {str(self._folder.path)!r} does not fit the run file: {error}; choose another "
                    "run.name, or set the run file back"
                ) from None
        lost = self._done.updates - learner.updates  # since the checkpoint, by a life that was killed
        if resumed is not None:
            self._log.info("resumed", updates=learner.updates, lost_updates=max(0, lost), env_steps=self._steps.total)
        elif lost > 0:
            self._log.warning("training begins anew: it ended before its first checkpoint", lost_updates=lost)
        self._done.note(learner.updates)
        return learner
