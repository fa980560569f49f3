"""The learner's loop: next batch, step, priorities back, publish by period, checkpoint by period."""

from __future__ import annotations

from typing import Callable

from services.agent.algorithm import Learner
from services.learner.data_staleness import DataStaleness
from services.learner.importance import importance_weights
from services.learner.monitor import Monitor
from services.learner.replay_client import ReplayClient


def train(
    learner: Learner,
    batches: ReplayClient,
    monitor: Monitor,
    staleness: DataStaleness,
    *,
    publish: Callable[[], None],
    checkpoint_if_due: Callable[[], None],
    max_updates: int,
    publish_period: int,
    importance_exponent: float,
) -> None:
    """Train until `max_updates`; the loop knows no algorithm and no gRPC.

    Raises:
        Stopped: the process is to end before that.
    """
    while learner.updates < max_updates:
        drawn = batches.next()
        weights = importance_weights(drawn.batch, importance_exponent)
        weights = staleness.weigh(drawn, learner.updates, weights)
        if not weights.any():
            continue  # all of it became too old in the queue: the ledger has counted it
        update = learner.update(drawn.batch, weights)
        batches.report(drawn, update.td_error)
        monitor.after_update(learner.updates, drawn.batch, update)
        if learner.updates % publish_period == 0:
            publish()
        checkpoint_if_due()
