"""`shoal evaluator`: judges published versions on goal set A while training goes on."""

from __future__ import annotations

import os
import sys

from services.actor.envs.factory import build_env
from services.actor.evaluator.episodes import run_episodes
from services.actor.parameter_client import ParameterClient
from services.actor.seeds import SELECTION, env_seed
from services.agent.registry import check_action, policy_class
from services.common.config.run import RunConfig
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.metrics import Metrics
from services.common.parameter_set import ParameterSet
from services.common.peer import Peer
from services.common.rpc import Caller
from services.common.schema import Schema
from services.common.service import main
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc

MAX_LANES = 100
REPORT_TIMEOUT_S = 5.0
ROLES = {"act": parameters_pb2.PARAMETER_ROLE_ACT, "average": parameters_pb2.PARAMETER_ROLE_AVERAGE}


def run(config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
    """The evaluator's life: the newest version, judged whole, again and again."""
    settings, seed = config.evaluator, config.run.seed
    os.nice(settings.nice)
    env = build_env(
        config.env.factory,
        config.env.kwargs,
        min(settings.episodes, MAX_LANES),
        env_seed(seed, SELECTION, "round-0"),
    )
    schema = Schema(tuple(env.observation_spec), env.action_spec)
    check_action(config.algorithm.name, schema.action)
    policy = policy_class(config.algorithm.name)(
        schema, config.algorithm_settings, num_lanes=env.num_lanes, actor_index=0, num_actors=1
    )
    peer = Peer(config.run.name, experience_pb2.ROLE_EVALUATOR, "evaluator")
    parameters = ParameterClient(
        config.learner.address,
        peer=peer,
        poll_period_s=settings.period_s,
        lifecycle=lifecycle,
        log=log,
        role=ROLES[settings.parameters],
    )
    reports = Caller("chief", config.learner.address, lifecycle.stopping, log)
    stub = parameters_pb2_grpc.ParameterServiceStub(reports.channel)
    metrics = Metrics("evaluator", config.run.name)
    success = metrics.gauge("success_ratio", "Share of episodes with success at the last step; -1: not reported.")
    version = metrics.gauge("evaluated_version", "Version that was judged last.")
    metrics_port = metrics.serve(settings.metrics_port, "evaluator.metrics_port")
    log.info("evaluator starts", episodes=settings.episodes, metrics_port=metrics_port)

    def judge(judged: ParameterSet) -> None:
        statistics = run_episodes(
            env,
            lambda observation: policy.act_greedily(judged.parameters, observation),
            episodes=settings.episodes,
            seed_of_round=lambda number: env_seed(seed, SELECTION, f"round-{number}"),
            stopping=lifecycle.stopping,
        )
        report = parameters_pb2.ReportEvaluationRequest(
            peer=peer.to_proto(),
            version=judged.version,
            digest=judged.digest,
            episodes=settings.episodes,
            success_rate=statistics.success_rate,
            mean_return=float(statistics.returns.mean()),
            mean_episode_steps=float(statistics.lengths.mean()),
            goal_set="selection",
        )
        answer = reports.call(stub.ReportEvaluation, report, timeout_s=REPORT_TIMEOUT_S)
        success.set(statistics.success_rate)
        version.set(judged.version)
        if answer.reason:
            log.warning("the report was not taken", reason=answer.reason)

    try:
        judged_version = 0
        while not lifecycle.stopping.is_set():
            manifest = parameters.fetch()
            newest = parameters.newest
            if newest is not None and newest.version != judged_version:
                judge(newest)
                judged_version = newest.version
            if manifest.run_state == parameters_pb2.RUN_STATE_FINISHED:
                lifecycle.stop("training is finished")
            lifecycle.stopping.wait(settings.period_s if judged_version else 0.1)
    finally:
        parameters.close()
        reports.close()
        metrics.stop()
        env.close()


if __name__ == "__main__":
    sys.exit(main("evaluator", run, sys.argv[1:]))
