"""`shoal evaluator`: judges published versions on goal set A while training goes on."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy.typing as npt

from services.actor.envs.factory import build_env
from services.actor.evaluator.episodes import EpisodeStatistics, run_episodes
from services.actor.parameter_client import ParameterClient
from services.actor.seeds import SELECTION, env_seed
from services.actor.watchdog import WatchedEnv
from services.agent.algorithm import Observation, Policy
from services.agent.registry import acting_shapes, check_action, policy_class
from services.common.config.run import RunConfig
from services.common.heartbeat import Heartbeat, Pulse
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.metrics import Metrics
from services.common.parameter_set import ParameterSet
from services.common.peer import Peer
from services.common.rpc import Caller
from services.common.schema import Schema
from services.common.security.transport import ClientSecurity, client_security, server_security
from services.common.service import end_process, main
from services.common.waits import Waited
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc

MAX_LANES = 100
WAIT_REASONS = ("parameters", "env")
REPORT_TIMEOUT_S = 5.0
ROLES = {"act": parameters_pb2.PARAMETER_ROLE_ACT, "average": parameters_pb2.PARAMETER_ROLE_AVERAGE}


def run(config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
    """The evaluator's life: the newest version, judged whole, again and again."""
    os.nice(config.evaluator.nice)
    metrics = Metrics("evaluator", config.run.name)
    waits = metrics.waits(WAIT_REASONS)
    judge = Judge(config, lifecycle, log)
    waits.watch("env", judge.waited)
    peer = Peer(config.run.name, experience_pb2.ROLE_EVALUATOR, "evaluator", lifecycle.incarnation)
    security = client_security(config.security, config.learner.address, log=log)
    parameters = ParameterClient(
        config.learner.address,
        peer=peer,
        poll_period_s=config.evaluator.period_s,
        lifecycle=lifecycle,
        log=log,
        role=ROLES[config.evaluator.parameters],
        waiting_for=judge.waiting_for,
        shapes=judge.shapes,
        security=security,
    )
    reporter = Reporter(config, peer, lifecycle, log, security, metrics)
    rounds = 0

    def pulse() -> Pulse:
        waiting = parameters.waiting_for or reporter.waiting_for
        return Pulse(rounds + judge.steps, waiting, f"{rounds} rounds")

    Heartbeat(pulse, lifecycle, os.environ).start()
    try:
        idle_since_s = time.monotonic()
        while not lifecycle.stopping.is_set():
            rounds += 1
            with waits.on("parameters", idle_since_s):
                manifest = parameters.fetch()
            newest = parameters.newest
            if newest is not None and newest.version != judge.version:
                reporter.report(newest, judge.judge(newest))
                idle_since_s = time.monotonic()
            if manifest.run_state == parameters_pb2.RUN_STATE_FINISHED:
                lifecycle.stop("training is finished")
            with waits.on("parameters", idle_since_s):
                lifecycle.stopping.wait(config.evaluator.period_s if judge.version else 0.1)
    finally:
        parameters.close()
        reporter.close()
        judge.close()


class Judge:
    """Runs whole episodes of goal set A with parameters that it is given."""

    def __init__(self, config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
        self._episodes, self._seed = config.evaluator.episodes, config.run.seed
        self._stopping = lifecycle.stopping
        self.steps = 0  # of the environment, over all judgements
        self.version = 0  # that was judged last
        lanes = min(self._episodes, MAX_LANES)
        self._env = WatchedEnv(build_env(config.env.factory, config.env.kwargs, lanes, self._seed_of_round(0)))
        schema = Schema(tuple(self._env.observation_spec), self._env.action_spec)
        check_action(config.algorithm.name, schema.action)
        self._policy: Policy = policy_class(config.algorithm.name)(
            schema, config.algorithm_settings, num_lanes=lanes, actor_index=0, num_actors=1
        )
        self.shapes = acting_shapes(config.algorithm.name, schema, config.algorithm_settings)  # that it can judge
        log.info("evaluator starts", episodes=self._episodes)

    def judge(self, judged: ParameterSet) -> EpisodeStatistics:
        """What came of the episodes.

        Raises:
            Stopped: the process is to end.
        """

        def act(observation: Observation) -> npt.NDArray[Any]:
            self.steps += 1
            return self._policy.act_greedily(judged.parameters, observation)

        statistics = run_episodes(
            self._env,
            act,
            episodes=self._episodes,
            seed_of_round=self._seed_of_round,
            stopping=self._stopping,
        )
        self.version = judged.version
        return statistics

    def waiting_for(self) -> str:
        """One sentence between two judgements."""
        if not self.version:
            return "waiting for the chief's first parameters"
        return f"waiting for a version newer than {self.version}, which is judged"

    def waited(self) -> Waited:
        """How long judgements have waited for the environment."""
        return self._env.waited()

    def close(self) -> None:
        self._env.close()

    def _seed_of_round(self, number: int) -> int:
        return env_seed(self._seed, SELECTION, f"round-{number}")


class Reporter:
    """Tells the chief, and Prometheus, how good a version is."""

    def __init__(
        self,
        config: RunConfig,
        peer: Peer,
        lifecycle: Lifecycle,
        log: Log,
        security: ClientSecurity,
        metrics: Metrics,
    ) -> None:
        self._peer, self._log = peer, log
        self._caller = Caller("chief", config.learner.address, lifecycle.stopping, log, security=security)
        self._stub = parameters_pb2_grpc.ParameterServiceStub(self._caller.channel)
        self._metrics = metrics
        self._success = self._metrics.gauge(
            "success_ratio", "Share of episodes with success at the last step; -1: not reported."
        )
        self._version = self._metrics.gauge("evaluated_version", "Version that was judged last.")
        host, wanted = config.metrics.host, config.evaluator.metrics_port
        listening = server_security(config.security, f"{host}:{wanted}", log=log)
        self._metrics.certificate(listening.certificate)
        port = self._metrics.serve(wanted, "evaluator.metrics_port", host=host, security=listening)
        log.info("evaluator is ready", metrics_port=port)

    @property
    def waiting_for(self) -> str:
        """One sentence while the chief does not answer; empty otherwise."""
        return self._caller.waiting_for

    def report(self, judged: ParameterSet, statistics: EpisodeStatistics) -> None:
        """Send one judgement.

        Raises:
            Stopped: the process is to end.
        """
        report = parameters_pb2.ReportEvaluationRequest(
            peer=self._peer.to_proto(),
            version=judged.version,
            digest=judged.digest,
            episodes=len(statistics.returns),
            success_rate=statistics.success_rate,
            mean_return=float(statistics.returns.mean()),
            mean_episode_steps=float(statistics.lengths.mean()),
            goal_set="selection",
        )
        answer = self._caller.call(self._stub.ReportEvaluation, report, timeout_s=REPORT_TIMEOUT_S)
        self._success.set(statistics.success_rate)
        self._version.set(judged.version)
        if answer.reason:
            self._log.warning("the report was not taken", reason=answer.reason)

    def close(self) -> None:
        self._caller.close()
        self._metrics.stop()


if __name__ == "__main__":
    end_process(main("evaluator", run, sys.argv[1:]))
