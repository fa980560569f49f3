"""Environments with one planted fault each, for the doctor: `tests.bad_envs:make` with env.kwargs.fault."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any, Dict, Optional

import numpy as np

from services.actor.envs.contract import AutoReset, EnvStep
from services.common.schema import ActionSpec, TensorSpec
from tests.simulator_fakes import FakeTensor

HORIZON = 12


def scaled(factor: float) -> Any:
    def fault(_env: Walk, step: EnvStep) -> None:
        step.reward = (step.reward * factor).astype(np.float32)

    return fault


def as_flags(dtype: Any) -> Any:
    def fault(_env: Walk, step: EnvStep) -> None:
        step.terminated, step.truncated = step.terminated.astype(dtype), step.truncated.astype(dtype)

    return fault


def policy(change: Any) -> Any:
    def fault(env: Walk, step: EnvStep) -> None:
        step.observation = {"policy": change(env, step.observation["policy"])}

    return fault


def exchange(_env: Walk, step: EnvStep) -> None:
    step.observation, step.true_next_observation = step.true_next_observation, step.observation


def final_of_the_next(_env: Walk, step: EnvStep) -> None:
    step.true_next_observation = step.observation


def no_final(_env: Walk, step: EnvStep) -> None:
    step.true_next_observation = None


def final_of_another(_env: Walk, step: EnvStep) -> None:
    step.true_next_observation = {"policy": np.roll(step.true_next_observation["policy"], 1, axis=0)}


def nan(env: Walk, step: EnvStep) -> None:
    if env.calls == env.options.get("call", 5):
        step.observation["policy"][1, 0] = np.nan


def infinite(env: Walk, step: EnvStep) -> None:
    if env.calls == 5:
        step.reward[2] = np.inf


def unscaled(_env: Walk, step: EnvStep) -> None:
    step.observation = {"policy": step.observation["policy"] * np.float32(1e4)}
    step.true_next_observation = {"policy": step.true_next_observation["policy"] * np.float32(1e4)}


def unmarked(_env: Walk, step: EnvStep) -> None:
    step.valid = np.ones_like(step.valid)


def marked(env: Walk, step: EnvStep) -> None:
    step.valid = step.valid & (env.calls % 7 != 0)


def no_metrics(_env: Walk, step: EnvStep) -> None:
    step.metrics = {}


def sick_metrics(env: Walk, step: EnvStep) -> None:
    step.metrics = {**step.metrics, "distance": np.full(env.num_lanes, np.nan)}


def reused(env: Walk, observation: Any) -> Any:
    env.buffer[:] = observation
    return env.buffer


def tensors(_env: Walk, step: EnvStep) -> None:
    for flag in ("reward", "terminated", "truncated", "valid"):
        setattr(step, flag, FakeTensor(getattr(step, flag)))
    for member in ("observation", "true_next_observation"):
        observation = getattr(step, member)
        setattr(step, member, {name: FakeTensor(tensor) for name, tensor in observation.items()})


ANSWERS: Dict[str, Any] = {
    "tensors": tensors,
    "large rewards": scaled(1e4),
    "small rewards": scaled(1e-4),
    "no reward": scaled(0.0),
    "long flags": as_flags(np.int64),
    "uint8 flags": as_flags(np.uint8),
    "double observations": policy(lambda _env, observation: observation.astype(np.float64)),
    "wrong shape": policy(lambda _env, observation: observation[:, :2]),
    "reused": policy(reused),
    "exchanged": exchange,
    "final is the next episode's": final_of_the_next,
    "no final": no_final,
    "final of another lane": final_of_another,
    "NaN": nan,
    "infinite reward": infinite,
    "unscaled": unscaled,
    "junk unmarked": unmarked,
    "marked at random": marked,
    "no metrics": no_metrics,
    "sick metrics": sick_metrics,
}


class Walk:
    """B points on a line walk to B goals; a fall at the edge terminates, the horizon truncates."""

    observation_spec = (TensorSpec("policy", "float32", (3,)),)
    action_spec = ActionSpec(low=(-1.0,), high=(1.0,))

    def __init__(self, num_lanes: int, seed: int, fault: str, **options: Any) -> None:
        self.num_lanes, self.fault, self.options = num_lanes, fault, options
        self.autoreset = AutoReset(options.get("declared", options.get("autoreset", "same_step")))
        self.real_mode = AutoReset(options.get("autoreset", "same_step"))
        self.calls = 0
        self.resets_next = np.zeros(num_lanes, np.bool_)
        self.position, self.velocity, self.goal = (np.zeros(num_lanes) for _ in range(3))
        self.age = np.zeros(num_lanes, np.int64)
        self.buffer = np.zeros((num_lanes, 3), np.float32)
        self.reset(seed)

    def reset(self, seed: Optional[int] = None) -> Dict[str, Any]:
        if self.fault == "seed ignored":
            seed = None if hasattr(self, "random") else 0
        if self.fault == "unseeded":
            seed = int.from_bytes(os.urandom(4), "little")
        if seed is not None or not hasattr(self, "random"):
            self.random = np.random.default_rng(1 if self.fault == "one beginning" else seed)
        self.resets_next[:] = False
        self._begin(np.ones(self.num_lanes, np.bool_))
        return self._observe()

    def step(self, action: Any) -> EnvStep:
        self.calls += 1
        self._misbehave()
        move = np.zeros(self.num_lanes) if self.fault == "deaf" else action[:, 0].astype(np.float64)
        if self.fault == "writes to actions":
            np.multiply(action, 0.5, out=action)
        if self.fault == "refuses" and (np.abs(action) > 1).any():
            raise ValueError("the action is beyond its bounds")
        valid = ~self.resets_next
        if self.fault != "never resets":
            self._begin(self.resets_next)
        self.velocity = np.where(valid, 0.5 * self.velocity + 0.1 * move, self.velocity)
        self.position = np.where(valid, self.position + self.velocity, self.position)
        self.age += valid
        fell, late = np.abs(self.position) > 1.0, self.age >= HORIZON
        terminated, truncated = fell & valid, late & valid
        if self.fault == "endless":
            terminated, truncated = terminated & False, truncated & False
        if self.fault == "time-outs as terminations":
            terminated, truncated = terminated | truncated, truncated & False
        if self.fault == "failures as time-outs":
            terminated, truncated = terminated & False, terminated | truncated
        if self.fault == "time-outs on failures":
            truncated = terminated | truncated
        reward = -np.abs(self.goal - self.position)
        true_next = self._observe()
        ended = terminated | truncated
        observation = true_next
        if self.real_mode is AutoReset.NEXT_STEP:
            self.resets_next = ended
            reward = np.where(valid, reward, 50.0)
        elif self.fault != "never resets":
            self._begin(ended)
            observation = self._observe()
        metrics = {"success": np.abs(self.goal - self.position) < 0.1}
        step = EnvStep(observation, true_next, reward.astype(np.float32), terminated, truncated, valid, metrics)
        ANSWERS.get(self.fault, lambda _env, _step: None)(self, step)
        return step

    def close(self) -> None:
        pass

    def _begin(self, lanes: Any) -> None:
        count = int(lanes.sum())
        draw = self.random.uniform(-0.8, 0.8, 1 if self.fault == "lanes alike" else 2 * count)
        self.position[lanes] = draw[0] if self.fault == "lanes alike" else draw[:count]
        self.goal[lanes] = draw[0] if self.fault == "lanes alike" else draw[count:]
        self.velocity[lanes], self.age[lanes] = 0.0, 0

    def _observe(self) -> Dict[str, Any]:
        return {"policy": np.stack((self.position, 5 * self.velocity, self.goal), axis=1).astype(np.float32)}

    def _misbehave(self) -> None:
        if self.calls != 4:
            return
        if self.fault == "raises":
            raise RuntimeError("the gripper is lost")
        if self.fault == "exits":
            sys.exit(0)
        if self.fault == "os exit":
            os._exit(0)
        if self.fault == "segfault":
            ctypes.string_at(0)
        if self.fault == "hangs":
            time.sleep(3600)


class Untold(Walk):
    """Declares that nobody resets lanes, and cannot be told to."""

    def __init__(self, num_lanes: int, seed: int) -> None:
        super().__init__(num_lanes, seed, "never resets", declared="disabled")


def make(num_lanes: int, seed: int, fault: str = "", **options: Any) -> Walk:
    if fault == "cannot be built":
        raise RuntimeError("no device")
    return Untold(num_lanes, seed) if fault == "untold" else Walk(num_lanes, seed, fault, **options)
