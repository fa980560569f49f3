"""The learner's loop: next batch, step, priorities back, publish by period, checkpoint by period."""

from __future__ import annotations

from typing import Callable

from services.learner.importance import importance_weights
from services.learner.joint_update import Updater
from services.learner.monitor import Monitor
from services.learner.replay_client import ReplayClient


def train(
    updater: Updater,
    batches: ReplayClient,
    monitor: Monitor,
    *,
    publish_if_due: Callable[[], None],
    checkpoint_if_due: Callable[[], None],
    max_updates: int,
    importance_exponent: float,
) -> None:
    """Train until `max_updates`; the loop knows no algorithm, no helpers and no gRPC.

    Raises:
        Stopped: the process is to end before that.
    """
    while updater.updates < max_updates:
        drawn = batches.next()
        weights = importance_weights(drawn.batch, importance_exponent)
        update = updater.update(drawn.batch, weights)
        batches.report(drawn, update.td_error)
        monitor.after_update(updater.updates, drawn.batch, update)
        publish_if_due()
        checkpoint_if_due()
