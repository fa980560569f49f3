"""The guard around an update: one that is not finite is stopped, kept for a person to look at, and training goes on."""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from services.agent.algorithm import NonFiniteUpdate, Update
from services.common.batch import Batch
from services.common.errors import EXIT_CRASH, UserError
from services.common.log import Log
from services.common.metrics import Metrics
from services.learner.batch_dump import BatchDump, StoppedBatch
from services.learner.drawn_batch import DrawnBatch
from services.learner.joint_update import Updater

ABSURD = 1e15  # nothing physical is so large; its square in a loss, summed over a batch, nears the end of float32
MAX_NAMED = 10  # items in a log line


class TooManyNonFiniteUpdates(UserError):
    """One update after the other had to be stopped: the training has diverged, and goes on from its checkpoint."""

    exit_code = EXIT_CRASH


def suspects(batch: Batch) -> npt.NDArray[np.bool_]:
    """Items <bool>[N] with a value that is not finite or beyond ABSURD."""
    found = np.zeros(len(batch), np.bool_)
    columns = (*batch.observation.values(), *batch.next_observation.values())
    for column in (*columns, batch.action, batch.n_step_return, batch.discount):
        if np.issubdtype(column.dtype, np.floating):
            rows = column.reshape(len(column), -1)
            found |= ~(np.abs(rows) <= ABSURD).all(axis=1)  # a comparison with NaN is false
    return found


class NanGuard:
    """Calls the update, and catches what it refuses.

    Items that are suspects themselves get a TD error of 0, so that a prioritized replay hardly draws them again, and
    the update is tried once more without them. Of the others in a stopped batch nothing is reported: they keep their
    priorities.
    """

    def __init__(
        self,
        updater: Updater,
        dump: BatchDump,
        metrics: Metrics,
        log: Log,
        *,
        max_in_row: int,
        report: Callable[[DrawnBatch, npt.NDArray[np.float32]], None],
        on_stopped: Callable[[int], None],
        chunks_of: Callable[[int, Sequence[int]], List[str]] = lambda _table_id, _keys: [],
    ) -> None:
        """Guard the updates of `updater`.

        Args:
            updater: a learner, or one with its helpers.
            dump: where stopped batches are kept.
            metrics: get a counter of stopped updates.
            log: hears of each stopped update.
            max_in_row: as many stopped updates, one after the other, end the training.
            report: sends TD errors to the replay.
            on_stopped: told how many were stopped in this life, after each.
            chunks_of: names the chunks of items by table and keys.
        """
        self._chunks_of = chunks_of
        self._updater = updater
        self._dump = dump
        self._log = log
        self._max_in_row = max_in_row
        self._report = report
        self._on_stopped = on_stopped
        self._counter = metrics.counter("non_finite_updates", "Updates that were stopped because they are not finite.")
        self._in_row = self.stopped = 0

    def update(self, drawn: DrawnBatch, importance_weights: npt.NDArray[np.float32]) -> Optional[Update]:
        """Update the learner on a batch, or on its sound items, and report their TD errors; None if it was stopped.

        A stopped update may have taken its first step: that of the critics, where only the policy's is not finite.

        Raises:
            TooManyNonFiniteUpdates: this was the last of `max_in_row`.
        """
        updates = self._updater.updates
        update, reason = self._attempt(drawn, importance_weights)
        if update is not None:
            return update
        found = suspects(drawn.batch)
        self._keep(drawn, importance_weights, reason, updates, found)
        sound_weights = importance_weights[~found]
        if found.any() and sound_weights.any() and self._updater.updates == updates:
            sound = DrawnBatch(drawn.batch.at(np.flatnonzero(~found)), drawn.table_id)
            update, reason = self._attempt(sound, sound_weights)
        if update is None:
            self._count_in_row(reason)
        return update

    def note_sound(self) -> None:
        """Note that somebody else's computation was finite."""
        self._in_row = 0

    def note_stopped(
        self, drawn: DrawnBatch, importance_weights: npt.NDArray[np.float32], reason: str, updates: int
    ) -> None:
        """Count and keep what somebody else stopped: a computation of gradients alone, by a learner at `updates`.

        Raises:
            TooManyNonFiniteUpdates: this was the last of `max_in_row`.
        """
        self._keep(drawn, importance_weights, reason, updates, suspects(drawn.batch))
        self._count_in_row(reason)

    def _attempt(self, drawn: DrawnBatch, importance_weights: npt.NDArray[np.float32]) -> Tuple[Optional[Update], str]:
        """Update and report; else None, and why it was stopped."""
        try:
            update = self._updater.update(drawn.batch, importance_weights)
        except NonFiniteUpdate as stopped:
            return None, str(stopped)
        if not np.isfinite(update.td_error).all():  # of a learner that does not look at them itself
            return None, "the TD errors are not finite"
        self._in_row = 0
        self._report(drawn, update.td_error)
        return update, ""

    def _keep(
        self,
        drawn: DrawnBatch,
        importance_weights: npt.NDArray[np.float32],
        reason: str,
        updates: int,
        found: npt.NDArray[np.bool_],
    ) -> None:
        self.stopped += 1
        self._counter.inc()
        self._on_stopped(self.stopped)
        keys: List[int] = drawn.batch.keys[found][:MAX_NAMED].tolist()
        chunks = self._chunks_of(drawn.table_id, keys)
        self._log.warning(
            "an update is stopped: it is not finite; its batch is kept in non_finite/",
            reason=reason,
            updates=updates,
            suspects=int(found.sum()),
            keys=keys,
            chunk=",".join(chunks),
        )
        self._dump.write(
            StoppedBatch(drawn.batch, importance_weights, reason, updates, drawn.table_id, found, tuple(chunks))
        )
        if found.any():
            sick = DrawnBatch(drawn.batch.at(np.flatnonzero(found)), drawn.table_id)
            self._report(sick, np.zeros(len(sick.batch), np.float32))

    def _count_in_row(self, reason: str) -> None:
        self._in_row += 1
        if self._in_row >= self._max_in_row:
            raise TooManyNonFiniteUpdates(
                f"{self._in_row} updates in a row were not finite (learner.max_non_finite_updates, and what was drawn "
                f"ahead), the last because {reason}: training has diverged, or the replay holds values that are too "
                "large; see non_finite/ in the run's folder, and lower the learning rate or normalization.reward_scale"
            )
