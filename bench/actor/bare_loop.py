"""The acting loop with services beside the same loop without: one process, one environment, rounds that alternate."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import Any, Dict, List

import numpy as np

from bench.actor.run import Run
from services.actor.actor import Actor
from services.actor.envs.contract import EnvStep, VectorEnv
from services.agent.algorithm import Policy
from services.common.config.load import load
from services.common.lifecycle import Lifecycle
from services.common.log import Log, make_log


class Stopping:
    """Passes a number of steps on to an environment, and then stops the round."""

    def __init__(self, env: VectorEnv, life: Lifecycle, steps: int) -> None:
        self._env, self._life, self._left = env, life, steps

    def step(self, action: Any) -> EnvStep:
        self._left -= 1
        if self._left <= 0:
            self._life.stop("the round is over")
        return self._env.step(action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def bare(env: VectorEnv, policy: Policy, parameters: Any, steps: int, seed: int) -> None:
    """Act and step; nothing is kept."""
    rng = np.random.default_rng(seed)
    observation = env.reset(seed)
    for _ in range(steps):
        observation = env.step(policy.act(parameters, observation, rng).action).observation


def measure(factory: str, lanes: int, rounds: int, round_s: float, **flags: Any) -> Dict[str, Any]:
    """Steps a second, of all lanes, by round: with services, and bare.

    Args:
        factory: of the environment.
        lanes: of it.
        rounds: measured, each of them both ways.
        round_s: aimed at.
        flags: further keys of the run file, as in `actor__chunk_steps`.
    """
    log: Log = make_log(io.StringIO())
    with Run(observation_size=23, action_size=3) as run:
        values = run.flags(env__factory=factory, env__lanes=lanes, actor__index=0, actor__count=1, **flags)
        config = load(None, ["--run.name=bench", *values]).config
        life = Lifecycle()
        actor = Actor(config, life, log)
        try:
            return _alternate(actor, rounds, round_s)
        finally:
            life.stop("measured")
            actor.stop()


def _alternate(actor: Actor, rounds: int, round_s: float) -> Dict[str, Any]:
    (group,) = actor.start()
    newest = actor.parameters.wait_for_newest(60.0)

    def with_services(steps: int) -> None:
        life = Lifecycle()
        env: Any = Stopping(group.env, life, steps)
        replace(group, env=env).act(
            actor.parameters, send=actor.send, rest=lambda: None, max_policy_age_s=60.0, lifecycle=life
        )

    def without(steps: int) -> None:
        bare(group.env, group.policy, newest.parameters, steps, group.seed)

    without(20)
    began = time.perf_counter()
    without(100)
    steps = max(50, int(round_s * 100 / (time.perf_counter() - began)))
    rates: Dict[str, List[float]] = {"services": [], "bare": []}
    cpu_us: Dict[str, List[float]] = {"services": [], "bare": []}  # of this process, all its threads, a step of a lane
    with_services(steps // 4)
    for number in range(rounds):
        order = (("bare", without), ("services", with_services))
        for name, way in order if number % 2 else reversed(order):  # neither is always the first
            began, cpu_s = time.perf_counter(), time.process_time()
            way(steps)
            lane_steps = steps * group.env.num_lanes
            rates[name].append(lane_steps / (time.perf_counter() - began))
            cpu_us[name].append(1e6 * (time.process_time() - cpu_s) / lane_steps)
    return {"rates": rates, "cpu_us": cpu_us, "steps": steps}
