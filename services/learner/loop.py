"""The learner's loop: next batch, its weights, step, priorities back, publish by period, checkpoint by period."""

from __future__ import annotations

from typing import Callable

from services.learner.data_staleness import DataStaleness
from services.learner.importance import importance_weights
from services.learner.joint_update import Updater
from services.learner.monitor import Monitor
from services.learner.nan_guard import NanGuard
from services.learner.replay_client import Paused, ReplayClient


def train(
    updater: Updater,
    batches: ReplayClient,
    guard: NanGuard,
    monitor: Monitor,
    staleness: DataStaleness,
    *,
    publish_if_due: Callable[[], None],
    checkpoint_if_due: Callable[[], None],
    rest: Callable[[], None],
    max_updates: int,
    importance_exponent: float,
) -> None:
    """Train until `max_updates`; the loop knows no algorithm, no helpers and no gRPC.

    `rest` is called when the run is drained and all that was drawn is trained on; it returns when the run goes on.

    Raises:
        Stopped: the process is to end before that.
        TooManyNonFiniteUpdates: the training has diverged.
    """
    while updater.updates < max_updates:
        try:
            drawn = batches.next()
        except Paused:
            rest()
            continue
        before = updater.updates
        weights = importance_weights(drawn.batch, importance_exponent)
        weights = staleness.weigh(drawn, before, weights)
        if not weights.any():
            continue  # all of it became too old in the queue: the ledger has counted it
        update = guard.update(drawn, weights)
        if update is not None:
            monitor.after_update(updater.updates, drawn.batch, update)
        # One that was stopped may have moved the critics, and then counts; or nothing, and then is no update.
        if updater.updates > before:
            publish_if_due()
        checkpoint_if_due()
