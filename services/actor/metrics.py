"""What an actor counts."""

from __future__ import annotations

from typing import Callable

import numpy as np

from services.actor.envs.contract import EnvStep
from services.common.metrics import Metrics


class ActorMetrics:
    """Steps and episodes; depth and age are read when Prometheus asks."""

    def __init__(
        self, metrics: Metrics, *, depth: Callable[[], int], age_s: Callable[[], float], version: Callable[[], int]
    ) -> None:
        self._steps = metrics.counter("produced_steps", "Environment steps made in this life.")
        self._episodes = metrics.counter("episodes", "Episodes that ended.")
        metrics.gauge("buffer_depth_chunks", "Chunks that wait for the replay.").set_function(depth)
        metrics.gauge("policy_age_seconds", "Since the chief last confirmed the parameters.").set_function(age_s)
        metrics.gauge("policy_version", "Version that acts.").set_function(version)

    def on_step(self, step: EnvStep) -> None:
        """Count one step of all lanes."""
        self._steps.inc(int(np.count_nonzero(step.valid)))
        ended = int(np.count_nonzero(step.valid & (step.terminated | step.truncated)))
        if ended:
            self._episodes.inc(ended)
