"""What an actor counts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Callable, Dict, Sequence

import numpy as np
import numpy.typing as npt

from services.agent.algorithm import Policy
from services.common.chunk import TERMINATED, TRUNCATED, VALID, Chunk
from services.common.metrics import Metrics
from services.common.waits import Waits

WAIT_REASONS = ("replay_full", "replay_away", "chief_away", "parked", "env")
# Why steps were never delivered, and what the counter of each says.
_DROPS: Dict[str, str] = {
    "buffer_full": "Steps dropped since the buffer was full (actor.on_full).",
    "stopped": "Steps that could not be delivered in a stop's time.",
}
# Upper bounds: from a replay on the same host to one that is away or holds inserts back.
_ACKNOWLEDGEMENT_S = (
    0.0005,
    0.001,
    0.002,
    0.003,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    5.0,
)


@dataclass(frozen=True)
class ActorBounds:
    """What the run file says of an actor."""

    buffer_chunks: int
    lanes: int
    max_policy_age_s: float


class ActorMetrics:
    """Steps and episodes, counted as chunks are handed over; all else is read when Prometheus asks."""

    def __init__(
        self,
        metrics: Metrics,
        waits: Waits,
        *,
        depth: Callable[[], int],
        sent_steps: Callable[[], int],
        sent_bytes: Callable[[], int],
        age_s: Callable[[], float],
        version: Callable[[], int],
        env_call_s: Callable[[], float],
        bounds: ActorBounds,
    ) -> None:
        """Make the metrics.

        Args:
            metrics: where they belong.
            waits: of the actor, by WAIT_REASONS.
            depth: chunks that wait.
            sent_steps: that were acknowledged.
            sent_bytes: of chunks that were acknowledged, as they travelled.
            age_s: since the parameters were confirmed.
            version: that acts.
            env_call_s: how long the environment's call has lasted.
            bounds: what the run file says.
        """
        self._metrics = metrics
        self._steps = metrics.counter("produced_steps", "Environment steps made in this life.")
        self._episodes = metrics.counter("episodes", "Episodes that ended.")
        self._drops = {
            reason: metrics.counter(f"dropped_{reason}_steps", text)  # by reason
            for reason, text in _DROPS.items()
        }
        self.on_acknowledged: Callable[[float], None] = metrics.histogram(
            "acknowledgement_seconds", "From a chunk's first send to its acknowledgement.", _ACKNOWLEDGEMENT_S
        ).observe
        metrics.gauge("buffer_depth_chunks", "Chunks that wait for the replay.").set_function(depth)
        metrics.gauge("buffer_capacity_chunks", "actor.buffer_chunks: more do not wait.").set(bounds.buffer_chunks)
        metrics.counter_of("sent_steps", "Steps that the replay acknowledged in this life.", sent_steps)
        metrics.counter_of("sent_bytes", "Bytes of acknowledged chunks, as they travelled.", sent_bytes)
        metrics.gauge("lanes", "Environments that this actor steps.").set(bounds.lanes)
        metrics.gauge_of(
            "parked",
            "1 while acting stands still for parameters: there are none yet, or they are too old.",
            lambda: float(waits.is_on("parked")),
        )
        metrics.gauge("max_policy_age_seconds", "actor.max_policy_age_s: older parameters are not acted with.").set(
            bounds.max_policy_age_s
        )
        metrics.gauge("policy_age_seconds", "Since the chief last confirmed the parameters.").set_function(age_s)
        metrics.gauge("policy_version", "Version that acts.").set_function(version)
        metrics.gauge("env_call_seconds", "How long the environment's call under way has lasted.").set_function(
            env_call_s
        )
        self.on_hang: Callable[[], None] = metrics.counter(
            "env_hangs", "Calls of the environment that took longer than actor.max_step_s."
        ).inc

    def show_exploration(self, policies: Sequence[Policy]) -> None:
        """Serve the ladder's values (sigma or epsilon) over the lanes of all lane groups."""

        def over_lanes(statistic: Callable[[npt.NDArray[np.float32]], np.float32]) -> float:
            return float(statistic(np.concatenate([policy.exploration() for policy in policies])))

        for name, statistic in (("min", np.min), ("median", np.median), ("max", np.max)):
            gauge = self._metrics.gauge(
                f"exploration_{name}", "Noise or epsilon of the exploration ladder, over this actor's lanes."
            )
            gauge.set_function(partial(over_lanes, statistic))

    def on_chunk(self, chunk: Chunk) -> None:
        """Count the steps of a chunk."""
        self._steps.inc(chunk.num_valid)
        ended = chunk.flags[chunk.flags & VALID != 0] & (TERMINATED | TRUNCATED) != 0
        if ended.any():
            self._episodes.inc(int(np.count_nonzero(ended)))

    def on_drop(self, reason: str, steps: int) -> None:
        """Count steps that were never delivered."""
        self._drops[reason].inc(steps)
