"""The forward pass of numpy beside torch's: microseconds of one decision for all lanes."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List

import numpy as np

from bench.actor.chief_process import td3_parameters
from bench.actor.simulators import ACTION_SIZE, OBSERVATION_SIZE
from services.actor.inference import with_inference
from services.agent.registry import policy_class
from services.common.config.algorithms import Td3Settings
from services.common.schema import ActionSpec, Schema, TensorSpec

ROUND_S = 0.05  # of one case


def measure(lanes: List[int], widths: List[int], rounds: int) -> List[Dict[str, Any]]:
    """A row for each width and number of lanes, with each round's microseconds by library."""
    return [_measure_one(count, width, rounds) for width in widths for count in lanes]


def _measure_one(lanes: int, width: int, rounds: int) -> Dict[str, Any]:
    schema = Schema(
        (TensorSpec("policy", "float32", (OBSERVATION_SIZE,)),), ActionSpec((-1.0,) * ACTION_SIZE, (1.0,) * ACTION_SIZE)
    )
    policy = policy_class("td3")(
        schema, Td3Settings(hidden_sizes=(width, width)), num_lanes=lanes, actor_index=0, num_actors=1
    )
    parameters = td3_parameters(OBSERVATION_SIZE, ACTION_SIZE, width)
    rng = np.random.default_rng(0)
    observation = {"policy": rng.standard_normal((lanes, OBSERVATION_SIZE)).astype(np.float32)}
    by_library = {name: with_inference(policy, name, device="cpu", num_threads=1) for name in ("numpy", "torch")}
    took_us: Dict[str, List[float]] = {name: [] for name in by_library}
    for _ in range(rounds):
        for name, acting in by_library.items():
            took_us[name].append(_time(lambda acting=acting: acting.act(parameters, observation, rng)))  # type: ignore[misc]
    return {"width": width, "lanes": lanes, "took_us": took_us}


def _time(act: Callable[[], Any]) -> float:
    """Microseconds of one call, over as many as a round takes."""
    act()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < ROUND_S:
        act()
        count += 1
    return 1e6 * (time.perf_counter() - began) / count
