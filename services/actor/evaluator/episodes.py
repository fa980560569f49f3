"""Whole episodes of the deterministic policy, and what came of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Callable, List, Mapping

import numpy as np
import numpy.typing as npt

from services.actor.envs.contract import VectorEnv
from services.common.errors import UserError
from services.common.rpc import Stopped

MAX_EPISODE_STEPS = 100_000  # an environment whose episodes never end is a mistake to say, not to wait for

ActGreedily = Callable[[Mapping[str, npt.NDArray[Any]]], npt.NDArray[Any]]


@dataclass(frozen=True)
class EpisodeStatistics:
    """E whole episodes."""

    returns: npt.NDArray[np.float64]  # [E], undiscounted
    lengths: npt.NDArray[np.int64]  # [E], steps
    success: npt.NDArray[np.float64]  # [E], 1 where the last step was a success; -1 where the environment reports none

    @property
    def success_rate(self) -> float:
        return float(self.success.mean())


def run_episodes(
    env: VectorEnv, act: ActGreedily, *, episodes: int, seed_of_round: Callable[[int], int], stopping: threading.Event
) -> EpisodeStatistics:
    """Run the first episode of each lane after a reset, round by round, until there are `episodes`.

    Only first episodes count: taking whatever ends first would favour short episodes.

    Args:
        env: all of its lanes are used.
        act: the deterministic policy, observation -> action.
        episodes: E.
        seed_of_round: seed of each round's reset: the same seeds are the same tasks.
        stopping: ends the wait.

    Raises:
        Stopped: the process is to end.
        UserError: an episode did not end.
    """
    rounds: List[EpisodeStatistics] = []
    done = 0
    while done < episodes:
        rounds.append(_first_episodes(env, act, seed_of_round(len(rounds)), stopping))
        done += env.num_lanes
    return EpisodeStatistics(
        returns=np.concatenate([r.returns for r in rounds])[:episodes],
        lengths=np.concatenate([r.lengths for r in rounds])[:episodes],
        success=np.concatenate([r.success for r in rounds])[:episodes],
    )


def _first_episodes(env: VectorEnv, act: ActGreedily, seed: int, stopping: threading.Event) -> EpisodeStatistics:
    lanes = env.num_lanes
    returns, lengths, success = np.zeros(lanes), np.zeros(lanes, np.int64), np.full(lanes, -1.0)
    running = np.ones(lanes, np.bool_)
    observation = env.reset(seed)
    for _ in range(MAX_EPISODE_STEPS):
        if stopping.is_set():
            raise Stopped
        step = env.step(act(observation))
        returns += np.where(running, step.reward, 0.0)
        lengths += running
        ended = running & (step.terminated | step.truncated)
        if "success" in step.metrics:
            success = np.where(ended, np.asarray(step.metrics["success"], np.float64), success)
        running &= ~ended
        if not running.any():
            return EpisodeStatistics(returns, lengths, success)
        observation = step.observation
    raise UserError(
        f"{int(running.sum())} of {lanes} episodes of env.factory did not end within {MAX_EPISODE_STEPS} steps"
        " (MAX_EPISODE_STEPS): let the environment set truncated when an episode has lasted long enough"
    )
