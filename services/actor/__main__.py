"""`shoal actor`: parse the config, build the parts, start, run, stop in reverse."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Tuple

import numpy as np

from services.actor.chunk_sender import ChunkSender
from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.contract import AutoReset
from services.actor.envs.factory import build_env
from services.actor.loop import act
from services.actor.metrics import ActorMetrics
from services.actor.parameter_client import ParameterClient
from services.actor.seeds import TRAINING, env_seed
from services.agent.registry import check_action, policy_class
from services.common.config.run import ActorSection, RunConfig
from services.common.errors import UserError
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.metrics import Metrics
from services.common.peer import Peer
from services.common.schema import Schema
from services.common.service import main
from shoal.v1 import experience_pb2


def run(config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
    """An actor's life."""
    settings, num_lanes = config.actor, config.env.lanes
    name = _name(settings)
    seed = env_seed(config.run.seed, TRAINING, name)
    env = build_env(config.env.factory, config.env.kwargs, num_lanes, seed)
    schema = Schema(tuple(env.observation_spec), env.action_spec)
    check_action(config.algorithm.name, schema.action)
    if env.autoreset is AutoReset.DISABLED:
        raise UserError("the environment does not reset its lanes; let it do so in same_step or next_step mode")

    peer = Peer(config.run.name, experience_pb2.ROLE_ACTOR, name)
    parameters = ParameterClient(
        config.learner.address, peer=peer, poll_period_s=settings.poll_period_s, lifecycle=lifecycle, log=log
    )
    sender = ChunkSender(
        config.replay.addresses[0],
        peer=peer,
        schema=schema,
        buffer_chunks=settings.buffer_chunks,
        drop_oldest=settings.on_full == "drop_oldest",
        on_version=parameters.hint,
        stopping=lifecycle.stopping,
        log=log,
    )
    writer = ChunkWriter(
        schema,
        num_lanes=num_lanes,
        chunk_steps=settings.chunk_steps,
        autoreset=env.autoreset,
        clock=time.monotonic,
    )
    metrics = Metrics("actor", config.run.name)
    counts = ActorMetrics(
        metrics,
        depth=lambda: sender.depth,
        age_s=lambda: parameters.age_s,
        version=lambda: parameters.newest.version if parameters.newest else 0,
    )
    metrics_port = metrics.serve(settings.metrics_port, "actor.metrics_port")
    log.info("actor starts", name=name, env=config.env.factory, lanes=num_lanes, metrics_port=metrics_port)
    lifecycle.spawn("sender", sender.run)
    sender.put(writer.introduce())
    try:
        index, num_actors = _rung(settings, parameters)
        policy = policy_class(config.algorithm.name)(
            schema, config.algorithm_settings, num_lanes=num_lanes, actor_index=index, num_actors=num_actors
        )
        lifecycle.spawn("parameters", parameters.run)
        act(
            env,
            policy,
            parameters,
            writer,
            send=sender.put,
            rng=np.random.default_rng(seed),
            seed=seed,
            max_policy_age_s=settings.max_policy_age_s,
            on_step=counts.on_step,
            lifecycle=lifecycle,
        )
    finally:
        lifecycle.stop("the acting loop ended")
        sender.close()
        lifecycle.join()
        parameters.close()
        metrics.stop()
        env.close()
        dropped = sender.dropped_steps
        if dropped.get("stopped"):
            log.info("steps are dropped at the stop", steps=dropped["stopped"])
        log.info("steps", acknowledged=sender.acknowledged_steps, dropped=sum(dropped.values()))


def _name(settings: ActorSection) -> str:
    if settings.index is not None and settings.index >= settings.count:
        raise UserError(
            f"actor.index = {settings.index}, but actor.count = {settings.count}: the index runs from 0 to count - 1"
        )
    if settings.name:
        return settings.name
    return f"actor-{settings.index}" if settings.index is not None else f"actor-{socket.gethostname()}-{os.getpid()}"


def _rung(settings: ActorSection, parameters: ParameterClient) -> Tuple[int, int]:
    """This actor's rung of the exploration ladder, and how many share it."""
    if settings.index is not None:
        return settings.index, settings.count
    manifest = parameters.fetch()
    return manifest.actor_index, manifest.num_actors


if __name__ == "__main__":
    sys.exit(main("actor", run, sys.argv[1:]))
