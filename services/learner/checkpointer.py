"""Writes checkpoints beside the training loop: the loop copies the state, a thread writes it."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any, Callable, Mapping, Optional, Tuple

import numpy.typing as npt

from services.common.lifecycle import Lifecycle
from services.common.waits import Held
from services.learner.checkpoint import Checkpoint, CheckpointFolder
from services.learner.checkpoint_metrics import CheckpointMetrics

State = Mapping[str, npt.NDArray[Any]]


class Checkpointer:
    """One checkpoint is on its way at a time; a due one is put off until then, and is copied into its memory."""

    def __init__(
        self,
        folder: CheckpointFolder,
        take: Callable[[Optional[State]], Checkpoint],
        *,
        period_s: float,
        clock: Callable[[], float],
        lifecycle: Lifecycle,
        metrics: CheckpointMetrics,
        held: Held = contextlib.nullcontext,
    ) -> None:
        """Start the thread.

        Args:
            folder: where they are written.
            take: copies the present state, into the memory of an earlier one if that is given.
            period_s: between two checkpoints.
            clock: monotonic seconds.
            lifecycle: a write that fails stops the process.
            metrics: told of each that is written, or is not.
            held: entered while the training loop is held up for a checkpoint.
        """
        self._metrics = metrics
        self._held = held
        self._folder = folder
        self._take = take
        self._period_s = period_s
        self._clock = clock
        self._stopping = lifecycle.stopping
        self._done = threading.Event()
        self._idle = threading.Event()  # nothing is on its way, and `_spare` is the caller's
        self._idle.set()
        # Of the last checkpoint that was written; taken now, for memory that is new to the process is slow to fill.
        self._spare: State = take(None).state
        self._due_at = clock() + period_s
        self._queue: queue.Queue[Tuple[Checkpoint, float]] = queue.Queue(maxsize=1)  # and when it was taken
        self._thread = lifecycle.spawn("checkpointer", self._write_until_stopped)

    def save_if_due(self) -> None:
        """Copy the state and hand it to the thread when the period is over."""
        if self._clock() >= self._due_at and self._idle.is_set():
            self._due_at = self._clock() + self._period_s
            self._idle.clear()
            with self._held():
                self._queue.put((self._take(self._spare), self._clock()))

    def finish(self) -> None:
        """Write the present state before returning; call it when the loop has ended."""
        self._done.set()
        with self._held():
            self._thread.join()
            self._save(self._take(self._spare if self._idle.is_set() else None), self._clock())

    def _write_until_stopped(self) -> None:
        while not (self._done.is_set() or self._stopping.is_set()):
            try:
                checkpoint, taken_s = self._queue.get(timeout=0.1)
            except queue.Empty:
                continue
            self._save(checkpoint, taken_s)
            self._spare = checkpoint.state
            self._idle.set()

    def _save(self, checkpoint: Checkpoint, taken_s: float) -> None:
        began_s = self._clock()
        try:
            self._folder.save(checkpoint)
        except BaseException:
            self._metrics.failed()
            raise
        self._metrics.written(self._clock() - began_s, taken_s)
