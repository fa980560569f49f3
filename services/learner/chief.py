"""The chief: owns the parameters, serves them, and trains on what the replay draws."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Optional

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
from services.common.security.transport import client_security, server_security
from services.learner.averaged_parameters import AveragedParameters
from services.learner.batch_dump import BatchDump
from services.learner.checkpoint import Checkpoint, CheckpointFolder, generator_state
from services.learner.collaboration import Collaboration
from services.learner.env_steps import AcknowledgedSteps
from services.learner.farewell import wait_for_readers
from services.learner.observation_statistics import ObservationStatistics
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
    from services.learner.checkpointer import State
    from services.learner.joint_update import Updater
    from services.learner.monitor import Monitor
    from services.learner.nan_guard import NanGuard

STAND_INS = "stand_ins"  # the generator that chooses the items which stand in for overwritten ones

READER_THREADS = 16  # for calls that fetch parameters; each call under way holds one
MAX_CALLS = 256  # readers that hear of a version at once are queued, each with a part of a set at most


def check_device(device: str) -> None:
    """Refuse a device that this machine, or its build of torch, does not have.

    Raises:
        UserError: says which build to install.
    """
    if device == "cpu":
        return  # without torch, whose import takes seconds
    import torch

    there = torch.cuda.device_count()
    if there == 0:
        raise UserError(
            f"learner.device = {device!r}, but torch {torch.__version__} sees no GPU here: install a build with CUDA "
            "(`make run TORCH_SPEC=torch TORCH_INDEX=` in a fresh .venv) and the GPU's driver, or set learner.device "
            "to cpu"
        )
    index = int(device.partition(":")[2] or 0)
    if index >= there:
        raise UserError(f"learner.device = {device!r}, but the GPUs here are cuda:0 to cuda:{there - 1}")


def build_learner(config: RunConfig, schema: Schema, seed: int) -> Learner:
    """The learner that a run file asks for; a helper's is the chief's with another seed."""
    from services.agent.registry import learner_class  # torch takes seconds to import: not before it is needed

    learner: Learner = learner_class(config.algorithm.name)(
        schema,
        config.algorithm_settings,
        seed=seed,
        device=config.learner.device,
        num_threads=config.learner.torch_threads,
        normalize_observations=config.normalization.observations,
        reward_scale=config.normalization.reward_scale,
    )
    return learner


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
        self._folder = RunFolder(Path(config.run.folder) / run_id)
        self._checkpoints = CheckpointFolder(
            self._folder.checkpoints,
            log,
            keep=settings.checkpoints_kept,
            best_updates=lambda: self._servicer.best_updates,
        )
        self._resumed = self._checkpoints.load_newest()
        if self._resumed is not None and self._resumed.algorithm != config.algorithm.name:
            raise UserError(
                f"the checkpoint in {str(self._folder.path)!r} was trained by {self._resumed.algorithm}, the run file "
                f"asks for {config.algorithm.name}: choose another run.name, or set algorithm.name back"
            )
        self._stand_ins = np.random.default_rng(config.run.seed)
        if self._resumed is not None and STAND_INS in self._resumed.generators:
            self._stand_ins.bit_generator.state = self._resumed.generators[STAND_INS]
        self._steps = AcknowledgedSteps(self._resumed.acknowledged if self._resumed else {})
        self._status = Status()
        self._learner: Optional[Learner] = None
        self._peer = Peer(run_id, experience_pb2.ROLE_LEARNER, "learner", lifecycle.incarnation)
        self._readers = Readers(time.monotonic, config.actor.count)
        history = self._resumed.history if self._resumed else []
        last_version = history[-1].version if history else 0
        self._store = ParameterStore(
            VersionReservation(self._folder.versions, last_version), history, wire_dtype=settings.wire_dtype
        )
        self._replay = ReplayClient(
            config.replay.addresses[0],
            peer=self._peer,
            batch_size=settings.batch_size,
            batches_per_sample=settings.batches_per_sample,
            samples_in_flight=settings.samples_in_flight,
            transport=settings.transport,
            rng=self._stand_ins,
            # Not those of `_status`, which are half a second old: the replay would hold the bound on lag so much later.
            newest=lambda: (self._newest_version, self._learner.updates if self._learner else 0),
            lifecycle=lifecycle,
            log=log,
            security=client_security(config.security, *config.replay.addresses),
        )
        self._metrics = Metrics("learner", run_id)
        self._collaboration = Collaboration(
            config.gradients,
            num_planned=config.helper.count,
            run_id=run_id,
            incarnation=self._peer.incarnation,
            metrics=self._metrics,
            log=log,
        )
        self._servicer = ParameterServicer(
            run_id=run_id,
            incarnation=self._peer.incarnation,
            store=self._store,
            readers=self._readers,
            folder=self._folder,
            status=self._status,
            num_actors=config.actor.count,
            max_updates=settings.max_updates,
            waiting_for=lambda: self._replay.waiting_for or self._collaboration.waiting_for,
            fail=lifecycle.fail,
            log=log,
        )
        # Waiting pushes must not keep readers of parameters out.
        max_workers = READER_THREADS + self._collaboration.num_threads
        max_calls = MAX_CALLS + self._collaboration.num_threads
        metrics_address = f"{config.metrics.host}:{settings.metrics_port}"
        security = server_security(config.security, settings.listens_at, metrics_address)
        self._server = Server(
            settings.listens_at,
            max_workers=max_workers,
            max_calls=max_calls,
            option_name="learner.listen" if settings.listen else "learner.address",
            security=security,
            on_rejected=self._metrics.rejected_calls(),
            observe=self._metrics.calls(),
        )
        self._server.add(add_to_server, self._servicer)
        self._server.add(gradients_pb2_grpc.add_GradientServiceServicer_to_server, self._collaboration.servicer)
        self._metrics.registry.register(ReaderMetrics(run_id, self._readers, self._store, self._status))
        self._metrics.certificate(security.certificate)
        self._metrics_port = self._metrics.serve(
            settings.metrics_port, "learner.metrics_port", host=config.metrics.host, security=security
        )

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
        waiting = self._replay.waiting_for or self._collaboration.waiting_for
        if self._status.run_state == parameters_pb2.RUN_STATE_FINISHED:
            waiting = "waiting for readers to hear that training is finished"
        return Pulse(updates, waiting, f"{updates} of {self._config.learner.max_updates} updates")

    def train(self) -> None:
        """Wait for a first actor, then train until the last update or the stop; ends with a checkpoint."""
        schema = self._replay.wait_for_schema()
        learner = self._learner = self._make_learner(schema)

        from services.learner.monitor import Monitor

        monitor = Monitor(
            status=self._status,
            store=self._store,
            metrics=self._metrics,
            tensorboard=self._folder.tensorboard,
            earlier=self._resumed.progress if self._resumed else Progress(),
            clock=time.monotonic,
            env_steps=lambda: self._steps.total,
            latest_evaluation=lambda: self._servicer.latest,
            queue_depth=lambda: self._replay.depth,
            max_updates=self._config.learner.max_updates,
        )
        with contextlib.closing(monitor):
            self._train(learner, schema, monitor)

    def _train(self, learner: Learner, schema: Schema, monitor: Monitor) -> None:
        from services.learner.checkpointer import Checkpointer
        from services.learner.data_staleness import DataStaleness
        from services.learner.loop import train
        from services.learner.staleness import StalenessRules

        normalization, settings = self._config.normalization, self._config.learner
        statistics = ObservationStatistics(
            learner.normalizer,
            enabled=normalization.observations,
            warmup_steps=normalization.warmup_steps,
            log=self._log,
        )

        average = AveragedParameters(
            settings.average_rate, self._resumed.average if self._resumed else {}, learner.updates
        )
        publisher = Publisher(
            self._store,
            learner,
            period=settings.publish_schedule,
            average=average,
            statistics=statistics,
            clock=time.monotonic,
        )

        def publish_learn() -> int:
            statistics.take()  # helpers and chief must not compute on different ones
            return self._store.publish_learn(learner.learning_parameters(), learner.updates).version

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

        checkpointer = Checkpointer(
            self._checkpoints,
            take_checkpoint,
            period_s=settings.checkpoint_period_s,
            clock=time.monotonic,
            lifecycle=self._lifecycle,
        )
        staleness = DataStaleness(
            StalenessRules(self._config.staleness.max_lag_updates, self._config.staleness.loss_half_life_updates),
            self._store,
            self._folder.staleness,
            self._metrics,
            run=self._config.run.name,
        )
        publisher.publish()
        self._folder.save_progress(monitor.progress(learner.updates))
        self._lifecycle.spawn("env-steps", lambda: self._steps.watch(self._replay, self._lifecycle, statistics))
        self._replay.start(schema)
        updater = self._collaboration.begin(
            learner,
            schema.digest,
            publish=publish_learn,
            stopping=self._lifecycle.stopping,
        )
        self._status.run_state = parameters_pb2.RUN_STATE_TRAINING
        try:
            if statistics.wait_for_first(
                self._replay, self._lifecycle, min_steps=self._config.replay.min_size_to_sample
            ):
                publisher.publish()
            train(
                updater,
                self._replay,
                self._guard(updater),
                monitor,
                staleness,
                publish_if_due=publisher.publish_if_due,
                checkpoint_if_due=checkpointer.save_if_due,
                max_updates=settings.max_updates,
                importance_exponent=settings.importance_exponent,
            )
        except Stopped:
            self._log.info("training stops early", updates=learner.updates, reason=self._lifecycle.reason)
        self._collaboration.end("the chief stops training")
        self._replay.finish()
        self._steps.poll_once(self._replay)
        staleness.close(learner.updates)
        publisher.publish()
        checkpointer.finish()
        monitor.show(learner.updates)
        self._folder.save_progress(self._status.progress)

    def _guard(self, updater: Updater) -> NanGuard:
        from services.learner.nan_guard import NanGuard

        settings = self._config.learner
        # Until the replay hears of a sick item, all that is drawn ahead may be of it.
        drawn_ahead = settings.batches_per_sample * (1 + settings.samples_in_flight)

        def count(stopped: int) -> None:
            self._status.non_finite_updates = stopped

        return NanGuard(
            updater,
            BatchDump(self._folder.non_finite, self._log),
            self._metrics,
            self._log,
            max_in_row=settings.max_non_finite_updates + drawn_ahead,
            report=self._replay.report,
            on_stopped=count,
        )

    def say_farewell(self) -> None:
        """Tell actors and evaluator that training is finished, and wait until they know."""
        progress = self._status.progress
        if not progress.is_finished:
            return
        self._status.run_state = parameters_pb2.RUN_STATE_FINISHED
        self._log.info("training is finished", updates=progress.updates, env_steps=progress.env_steps)
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
            learner.load_state(resumed.state)
            self._log.info("resumed", updates=learner.updates, env_steps=self._steps.total)
        return learner
