"""A helper: samples from the replay, computes gradients on the chief's parameters, and pushes them to it."""

from __future__ import annotations

import os
import socket
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import numpy as np
from typing_extensions import Self

from services.common.config.run import RunConfig
from services.common.heartbeat import Heartbeat, Pulse
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.metrics import Metrics
from services.common.parameter_set import ParameterShapes
from services.common.peer import Peer
from services.common.rpc import Stopped
from services.common.run_folder import RunFolder
from services.common.security.transport import client_security, server_security
from services.learner.building import build_guard, build_learner, build_replay_client, check_device
from services.learner.chief_client import ChiefClient
from services.learner.gradients import GradientEncoder
from services.learner.helper_checkpoint import GENERATOR, HelperCheckpoint, HelperState, load_helper_state
from services.learner.helper_metrics import WAIT_REASONS, HelperMetrics
from shoal.v1 import experience_pb2

if TYPE_CHECKING:
    from services.agent.algorithm import Learner
    from services.common.schema import Schema


class Helper:
    """The parts of a helper process; `with` starts them and stops them in reverse."""

    def __init__(self, config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
        """Build the parts and bind the port of the metrics.

        Raises:
            UserError: the device is not there, or the port is taken.
        """
        settings, run_id = config.learner, config.run.name
        check_device(settings.device)
        self._config = config
        self._lifecycle = lifecycle
        self._log = log
        self._peer = Peer(run_id, experience_pb2.ROLE_HELPER, config.helper.name or _own_name(), lifecycle.incarnation)
        # A name that is made of the process is never met again: nothing is kept under it.
        folders = RunFolder(Path(config.run.folder) / run_id)
        folder = folders.helpers
        self._dumps = folders.non_finite / self._peer.name
        self._file: Optional[Path] = folder / f"{config.helper.name}.safetensors" if config.helper.name else None
        self._security = client_security(
            config.security, config.helper.chief, log=log
        )  # a mistake in it is told at once
        self._metrics = Metrics("helper", run_id)
        self._waits = self._metrics.waits(WAIT_REASONS)
        self._replay = build_replay_client(
            config,
            peer=self._peer,
            rng=np.random.default_rng(self._seed),
            newest=lambda: (0, 0),  # the chief tells the replay itself
            lifecycle=lifecycle,
            log=log,
            waits=self._waits,
        )
        self._chief: Optional[ChiefClient] = None
        listening = server_security(config.security, f"{config.metrics.host}:{config.helper.metrics_port}", log=log)
        self._metrics.certificate(listening.certificate)
        self._metrics_port = self._metrics.serve(
            config.helper.metrics_port, "helper.metrics_port", host=config.metrics.host, security=listening
        )

    def __enter__(self) -> Self:
        Heartbeat(self._pulse, self._lifecycle, os.environ).start()
        self._log.info(
            "helper starts", name=self._peer.name, chief=self._config.helper.chief, metrics_port=self._metrics_port
        )
        return self

    def __exit__(self, *_exc: object) -> None:
        self._lifecycle.stop("training is finished")
        try:
            self._lifecycle.join()
        finally:
            if self._chief is not None:
                self._chief.close()
            self._replay.close()
            self._metrics.stop()

    def _pulse(self) -> Pulse:
        chief = self._chief
        waiting = self._replay.waiting_for or (chief.waiting_for if chief is not None else "")
        pushes = chief.sequence if chief is not None else 0
        return Pulse(pushes, waiting, f"{pushes} gradients pushed")

    def contribute(self) -> None:
        """Wait for a first actor and for the chief, then compute gradients until training is finished, or the stop."""
        schema = self._replay.wait_for_schema()
        state = load_helper_state(self._file, self._log) if self._file else HelperState()
        learner = self._make_learner(schema, state)
        gradients = self._config.gradients
        encoder = GradientEncoder(gradients.codec, gradients.block_size, gradients.error_feedback, gradients.packing)
        self._load_residual(encoder, state)
        self._chief = ChiefClient(
            self._config.helper.chief,
            peer=self._peer,
            schema_digest=schema.digest,
            first_sequence=state.sequence + 1,
            lifecycle=self._lifecycle,
            log=self._log,
            security=self._security,
            waits=self._waits,
            data_waiting_for=lambda: self._replay.waiting_for,
            shapes=ParameterShapes({name: array.shape for name, array in learner.learning_parameters().items()}),
        )
        self._replay.start(schema)
        self._contribute(learner, self._chief, encoder)

    def _contribute(self, learner: Learner, chief: ChiefClient, encoder: GradientEncoder) -> None:
        from services.learner.helper_loop import contribute

        def take_state() -> HelperState:
            generator = {name: array for name, array in learner.state().items() if name == GENERATOR}
            return HelperState(chief.sequence, encoder.state(), generator)

        guard = build_guard(
            self._config, learner, self._replay, dumps=self._dumps, metrics=self._metrics, log=self._log
        )
        checkpoint = None
        if self._file is not None:
            period_s = self._config.learner.checkpoint_period_s
            checkpoint = HelperCheckpoint(self._file, take_state, period_s=period_s, clock=time.monotonic)
        try:
            contribute(
                learner,
                self._replay,
                chief,
                encoder,
                HelperMetrics(self._metrics, queue_depth=lambda: self._replay.depth),
                on_finite=guard.note_sound,
                on_non_finite=guard.note_stopped,
                checkpoint_if_due=checkpoint.save_if_due if checkpoint else lambda: None,
                importance_exponent=self._config.learner.importance_exponent,
            )
            self._log.info("training is finished: no more help is needed")
        except Stopped:
            self._log.info("helping stops early", reason=self._lifecycle.reason)
        chief.leave()
        self._replay.finish()
        if checkpoint is not None:
            checkpoint.save()

    @property
    def _seed(self) -> int:
        """Of this helper alone: two that drew the same noise would be one."""
        name = zlib.crc32(self._peer.name.encode())
        return int(np.random.SeedSequence([self._config.run.seed, name]).generate_state(1)[0] >> 1)

    def _make_learner(self, schema: Schema, state: HelperState) -> Learner:
        learner = build_learner(self._config, schema, self._seed)
        if state.generator:
            learner.load_state({**learner.state(), **state.generator})
        return learner

    def _load_residual(self, encoder: GradientEncoder, state: HelperState) -> None:
        if state.residual:
            encoder.load_state(state.residual)
            self._log.info("resumed", sequence=state.sequence, residual_norm=encoder.residual_norm)


def _own_name() -> str:
    return f"helper-{socket.gethostname()}-{os.getpid()}"
