"""An actor: its lane groups, and the threads that send, fetch and watch beside them."""

from __future__ import annotations

import os
import socket
import threading
import time
from functools import partial
from typing import List, Tuple

from services.actor.chunk_memory import memory_on
from services.actor.chunk_sender import ChunkSender
from services.actor.chunk_writer import ChunkWriter
from services.actor.inference import with_inference
from services.actor.lane_group import LaneGroup, build_envs, check_chunk_bytes, device_of, group_rung, group_seed
from services.actor.metrics import WAIT_REASONS, ActorBounds, ActorMetrics
from services.actor.parameter_client import ParameterClient
from services.actor.watchdog import Watchdog
from services.agent.registry import acting_shapes, check_action, policy_class
from services.common.chunk import Chunk
from services.common.config.run import ActorSection, RunConfig
from services.common.heartbeat import Heartbeat, Pulse
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.metrics import Metrics
from services.common.peer import Peer
from services.common.schema import Schema
from services.common.security.transport import client_security, server_security
from shoal.v1 import experience_pb2


class Actor:
    """`run` it once, then `stop` it, whatever came of it.

    Args:
        config: the run file.
        lifecycle: of the process.
        log: where it tells what it does.

    Raises:
        UserError: the environment or a value of the run file is at fault.
    """

    def __init__(self, config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
        self._config, self._lifecycle, self._log = config, lifecycle, log
        settings = config.actor
        self._name = _name(settings)
        self._num_groups = settings.lane_groups
        self._seeds = [group_seed(config.run.seed, self._name, group) for group in range(self._num_groups)]
        self._envs = build_envs(config.env, self._num_groups, self._seeds)
        self._schema = Schema(tuple(self._envs[0].observation_spec), self._envs[0].action_spec)
        check_action(config.algorithm.name, self._schema.action)
        check_chunk_bytes(self._schema, self._envs[0].num_lanes, settings.chunk_steps)

        self._metrics = Metrics("actor", config.run.name)
        # Joins what a process says of itself with what replay and learner say of an actor by its name.
        self._metrics.gauges_of("info", "Which actor this process is; always 1.", "actor", lambda: {self._name: 1.0})
        waits = self._metrics.waits(WAIT_REASONS)
        peer = Peer(config.run.name, experience_pb2.ROLE_ACTOR, self._name, lifecycle.incarnation)
        security = client_security(config.security, config.learner.address, *config.replay.addresses, log=log)
        self.parameters = ParameterClient(
            config.learner.address,
            peer=peer,
            poll_period_s=settings.poll_period_s,
            lifecycle=lifecycle,
            log=log,
            waiting_for=lambda: self._watchdog.waiting_for or self._sender.unanswered or self._idle_for(),
            is_drained=self._is_drained,
            shapes=acting_shapes(config.algorithm.name, self._schema, config.algorithm_settings),
            security=security,
            parked=partial(waits.on, "parked"),
            away=partial(waits.on, "chief_away"),
        )
        self._counts = ActorMetrics(
            self._metrics,
            waits,
            depth=lambda: self._sender.depth,
            sent_steps=lambda: self._sender.acknowledged_steps,
            sent_bytes=lambda: self._sender.acknowledged_bytes,
            age_s=lambda: self.parameters.age_s,
            version=lambda: self.parameters.newest.version if self.parameters.newest else 0,
            env_call_s=lambda: self._watchdog.longest_s,
            bounds=ActorBounds(settings.buffer_chunks, config.env.lanes, settings.max_policy_age_s),
        )
        self._watchdog = Watchdog(
            self._envs,
            max_step_s=settings.max_step_s,
            stopping=lifecycle.stopping,
            log=log,
            on_hang=self._counts.on_hang,
        )
        waits.watch("env", self._watchdog.waited)
        self._sender = ChunkSender(
            config.replay.addresses[0],
            peer=peer,
            schema=self._schema,
            buffer_chunks=settings.buffer_chunks,
            drop_oldest=settings.on_full == "drop_oldest",
            on_version=self.parameters.hint,
            on_draining=self.parameters.hint_draining,
            idle_for=lambda: self._watchdog.waiting_for or self._idle_for(),
            stopping=lifecycle.stopping,
            log=log,
            codec=settings.compression,
            on_drop=self._counts.on_drop,
            on_acknowledged=self._on_acknowledged,
            security=security,
            full=partial(waits.on, "replay_full"),
            away=partial(waits.on, "replay_away"),
        )
        self._others: List[threading.Thread] = []  # that act, beside the caller of `run`
        self._num_chunks = 0  # handed to the sender
        self._resting = 0  # lane groups that are, since the run is drained
        self._resting_lock = threading.Lock()
        self._writers = [self._make_writer(group) for group in range(self._num_groups)]

    def run(self) -> None:
        """Act until the process is to end."""
        groups = self.start()
        self._others = [self._lifecycle.spawn(f"lane-group-{g.index}", partial(self._act, g)) for g in groups[1:]]
        self._act(groups[0])

    def _serve_metrics(self) -> int:
        host, port = self._config.metrics.host, self._config.actor.metrics_port
        security = server_security(self._config.security, f"{host}:{port}", log=self._log)
        self._metrics.certificate(security.certificate)
        return self._metrics.serve(port, "actor.metrics_port", host=host, security=security)

    def start(self) -> List[LaneGroup]:
        """Start the threads beside the acting loops, and introduce the actor to the replay.

        Returns:
            The lane groups, ready to act.

        Raises:
            Stopped: the process is to end.
        """
        port = self._serve_metrics()
        env = self._config.env
        self._log.info("actor starts", name=self._name, env=env.factory, lanes=env.lanes, metrics_port=port)
        Heartbeat(self._pulse, self._lifecycle, os.environ).start()
        self._lifecycle.spawn("sender", self._sender.run)
        self._lifecycle.spawn("watchdog", self._watchdog.run)
        self._sender.put(self._writers[0].introduce())
        groups = self._make_groups()
        self._counts.show_exploration([group.policy for group in groups])
        self._lifecycle.spawn("parameters", self.parameters.run)
        return groups

    def send(self, chunk: Chunk) -> None:
        """Count a chunk and hand it to the sender; a full buffer holds the caller, or drops its oldest chunk."""
        self._num_chunks += 1
        self._counts.on_chunk(chunk)
        self._sender.put(chunk)

    def stop(self) -> None:
        """Deliver what is left within the stop's budget, and end the parts in reverse order of their start.

        Raises:
            Exception: what a thread failed with.
        """
        self._lifecycle.stop("the acting loop ended")
        for thread in self._others:  # they hand over the last chunks
            thread.join()
        self._sender.close()
        try:
            self._lifecycle.join()
        finally:
            self.parameters.close()
            self._metrics.stop()
            for env in self._envs:
                env.close()
            dropped = self._sender.dropped_steps
            if dropped.get("stopped"):
                self._log.info("steps are dropped at the stop", steps=dropped["stopped"])
            self._log.info("steps", acknowledged=self._sender.acknowledged_steps, dropped=sum(dropped.values()))

    def _pulse(self) -> Pulse:
        """Chunks are progress; an environment that hangs is no reason to wait."""
        waiting = self._sender.waiting_for or self.parameters.waiting_for
        if self.parameters.newest is None:
            waiting = waiting or "waiting for the chief's first parameters"
        waiting = waiting or self._idle_for()
        return Pulse(self._num_chunks, waiting, f"{self._sender.acknowledged_steps} steps acknowledged")

    def _idle_for(self) -> str:
        """One sentence while nothing is acted that could be; empty otherwise."""
        if self._resting == self._num_groups:
            return "at rest: the run is drained"
        return self.parameters.parked_for

    def _is_drained(self) -> bool:
        """Whether all lane groups are at rest, and all that they made is acknowledged."""
        return self._resting == self._num_groups and self._sender.is_empty

    def _on_acknowledged(self, seconds: float) -> None:
        self._counts.on_acknowledged(seconds)
        if self._is_drained():
            self.parameters.ask_now()  # which tells it

    def _rest(self) -> None:
        """A lane group has handed over all that it made: wait until the run goes on.

        Raises:
            Stopped: the process is to end.
        """
        self._count_resting(1)
        self.parameters.ask_now()  # which tells it, if all is acknowledged
        try:
            self.parameters.wait_while_draining()
        finally:
            self._count_resting(-1)

    def _count_resting(self, change: int) -> None:
        with self._resting_lock:
            self._resting += change

    def _make_writer(self, group: int) -> ChunkWriter:
        env = self._envs[group]
        return ChunkWriter(
            self._schema,
            num_lanes=env.num_lanes,
            chunk_steps=self._config.actor.chunk_steps,
            autoreset=env.autoreset,
            clock=time.monotonic,
            lane_group=group,
            memory=memory_on(device_of(env)),
        )

    def _make_groups(self) -> List[LaneGroup]:
        settings = self._config.actor
        index, num_actors = self._rung()
        groups: List[LaneGroup] = []
        for group, env in enumerate(self._envs):
            policy = policy_class(self._config.algorithm.name)(
                self._schema,
                self._config.algorithm_settings,
                num_lanes=env.num_lanes,
                **group_rung(index, num_actors, group, self._num_groups),
            )
            policy = with_inference(
                policy, settings.inference, device=device_of(env), num_threads=settings.torch_threads
            )
            groups.append(LaneGroup(group, env, self._seeds[group], policy, self._writers[group]))
        return groups

    def _rung(self) -> Tuple[int, int]:
        """This actor's rung of the exploration ladder, and how many share it."""
        settings = self._config.actor
        if settings.index is not None:
            return settings.index, settings.count
        manifest = self.parameters.fetch()
        return manifest.actor_index, manifest.num_actors

    def _act(self, group: LaneGroup) -> None:
        group.act(
            self.parameters,
            send=self.send,
            rest=self._rest,
            max_policy_age_s=self._config.actor.max_policy_age_s,
            lifecycle=self._lifecycle,
        )


def _name(settings: ActorSection) -> str:
    if settings.name:
        return settings.name
    return f"actor-{settings.index}" if settings.index is not None else f"actor-{socket.gethostname()}-{os.getpid()}"
