"""The learner's loop: next batch, step, priorities back, publish by period, checkpoint by period."""

from __future__ import annotations

from typing import Callable

from services.agent.algorithm import Learner
from services.learner.importance import importance_weights
from services.learner.joint_update import TakeUpdate
from services.learner.monitor import Monitor
from services.learner.replay_client import ReplayClient


def train(
    learner: Learner,
    take_update: TakeUpdate,
    batches: ReplayClient,
    monitor: Monitor,
    *,
    publish_if_due: Callable[[], None],
    checkpoint_if_due: Callable[[], None],
    max_updates: int,
    importance_exponent: float,
) -> None:
    """Train until `max_updates`; the loop knows no algorithm, no helpers and no gRPC.

    `take_update` is `learner.update` or one on helpers' gradients too, which may take several batches a step.

    Raises:
        Stopped: the process is to end before that.
    """
    while learner.updates < max_updates:
        drawn = batches.next()
        weights = importance_weights(drawn.batch, importance_exponent)
        done_before = learner.updates
        update = take_update(drawn.batch, weights)
        batches.report(drawn, update.td_error)
        if learner.updates > done_before:
            monitor.after_update(learner.updates, drawn.batch, update)
            publish_if_due()
        checkpoint_if_due()
