"""Writes checkpoints beside the training loop: the loop copies the state, a thread writes it."""

from __future__ import annotations

import queue
import threading
from typing import Callable

from services.common.lifecycle import Lifecycle
from services.learner.checkpoint import Checkpoint, CheckpointFolder


class Checkpointer:
    """At most one checkpoint waits to be written; a due one is put off while the last is still on its way."""

    def __init__(
        self,
        folder: CheckpointFolder,
        take: Callable[[], Checkpoint],
        *,
        period_s: float,
        clock: Callable[[], float],
        lifecycle: Lifecycle,
    ) -> None:
        self._folder = folder
        self._take = take
        self._period_s = period_s
        self._clock = clock
        self._stopping = lifecycle.stopping
        self._done = threading.Event()
        self._due_at = clock() + period_s
        self._queue: queue.Queue[Checkpoint] = queue.Queue(maxsize=1)
        self._thread = lifecycle.spawn("checkpointer", self._write_until_stopped)

    def save_if_due(self) -> None:
        """Copy the state and hand it to the thread when the period is over."""
        if self._clock() >= self._due_at and self._queue.empty():
            self._due_at = self._clock() + self._period_s
            self._queue.put(self._take())

    def finish(self) -> None:
        """Write the present state before returning; call it when the loop has ended."""
        self._done.set()
        self._thread.join()
        self._folder.save(self._take())

    def _write_until_stopped(self) -> None:
        while not (self._done.is_set() or self._stopping.is_set()):
            try:
                checkpoint = self._queue.get(timeout=0.1)
            except queue.Empty:
                continue
            self._folder.save(checkpoint)
