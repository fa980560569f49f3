"""Environments that cost what a kind of simulator costs the actor's process, and no more."""

from __future__ import annotations

import time
from typing import Any, Dict, Optional, Tuple

import numpy as np

from services.actor.envs.contract import AutoReset, EnvStep
from services.common.schema import ActionSpec, TensorSpec

OBSERVATION_SIZE, ACTION_SIZE, HORIZON = 23, 9, 500  # FrankaCabinet of IsaacGymEnvs


class VectorSimulator:
    """B lanes of a linear system whose episodes end by a time limit; lanes begin at ages of their own.

    Args:
        num_lanes: B.
        seed: of the observations.
        wait_s: slept in each step, as a process waits for a GPU: without Python's lock.
        images: instead of a vector: "rendered" or "noisy" pictures of [64, 64, 3], uint8; empty: a vector.
    """

    autoreset = AutoReset.SAME_STEP

    def __init__(self, num_lanes: int, seed: int, wait_s: float = 0.0, *, images: str = "") -> None:
        self.num_lanes = num_lanes
        shape: Tuple[int, ...] = (64, 64, 3) if images else (OBSERVATION_SIZE,)
        self.observation_spec = (TensorSpec("policy", "uint8" if images else "float32", shape),)
        self.action_spec = ActionSpec((-1.0,) * ACTION_SIZE, (1.0,) * ACTION_SIZE)
        self._wait_s = wait_s
        self._rng = rng = np.random.default_rng(seed)
        self._images = _pictures(rng, num_lanes, images == "noisy") if images else None
        self._mixing = (rng.standard_normal((ACTION_SIZE, OBSERVATION_SIZE)) / 10).astype(np.float32)
        self._state = rng.standard_normal((num_lanes, OBSERVATION_SIZE)).astype(np.float32)
        self._age = rng.integers(0, HORIZON, num_lanes)

    def reset(self, seed: Optional[int] = None) -> Dict[str, Any]:
        """Begin in the midst of episodes, so that their ends are spread."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._state[:] = self._rng.standard_normal(self._state.shape)
        self._age[:] = self._rng.integers(0, HORIZON, self.num_lanes)
        return self._observe()

    def step(self, action: Any) -> EnvStep:
        """Move on by one step."""
        if self._wait_s:
            time.sleep(self._wait_s)
        self._state *= 0.9
        self._state += action @ self._mixing
        reward = self._state[:, 0].copy()
        self._age += 1
        truncated = self._age >= HORIZON
        self._age[truncated] = 0
        observation = self._observe()
        return EnvStep(
            observation=observation,
            true_next_observation=observation,
            reward=reward,
            terminated=np.zeros(self.num_lanes, np.bool_),
            truncated=truncated,
            valid=np.ones(self.num_lanes, np.bool_),
        )

    def close(self) -> None:
        """Nothing to free."""

    def _observe(self) -> Dict[str, Any]:
        return {"policy": self._state if self._images is None else self._images}


def make(num_lanes: int, seed: int, wait_s: float = 0.0) -> VectorSimulator:
    """As a run file names it: `bench.actor.simulators:make`."""
    return VectorSimulator(num_lanes, seed, wait_s)


def _pictures(rng: np.random.Generator, count: int, is_noisy: bool) -> Any:
    """A shaded table and a round thing on it, as a renderer draws them, or with a camera's noise.

    Returns:
        <uint8>[count, 64, 64, 3].
    """
    y, x = np.mgrid[0:64, 0:64] / 64.0
    pictures = np.empty((count, 64, 64, 3), np.uint8)
    for number in range(count):
        a, b, c = rng.uniform(0, 1, 3)
        shade = 80 + 60 * a * x + 60 * b * y
        shade[np.hypot(x - a, y - b) < 0.1 + 0.1 * c] = 30 + 200 * c
        noise = rng.integers(-1, 2, (64, 64, 3)) if is_noisy else 0
        pictures[number] = np.clip(shade[..., None] * np.array([1.0, 0.9, 0.8]) + noise, 0, 255)
    return pictures
