"""Rest: what the learner saves when its loop pauses or is over, and how it stays at rest while the run is drained."""

from __future__ import annotations

import time
from typing import Callable

from services.common.lifecycle import Lifecycle
from services.common.rpc import Stopped
from services.common.run_folder import RunFolder
from services.learner.checkpointer import Checkpointer
from services.learner.collaboration import Collaboration
from services.learner.data_staleness import DataStaleness
from services.learner.drain import Drain
from services.learner.env_steps import AcknowledgedSteps
from services.learner.monitor import Monitor
from services.learner.publisher import Publisher
from services.learner.replay_client import ReplayClient

LOOK_S = 0.1  # between two looks at whether the run goes on


class Rest:
    """The rest of the training loop, whose thread alone uses it: for a while, and at its end."""

    def __init__(
        self,
        drain: Drain,
        lifecycle: Lifecycle,
        *,
        collaboration: Collaboration,
        replay: ReplayClient,
        steps: AcknowledgedSteps,
        staleness: DataStaleness,
        publisher: Publisher,
        monitor: Monitor,
        checkpointer: Checkpointer,
        folder: RunFolder,
        updates: Callable[[], int],
    ) -> None:
        """Name the parts that have something to end.

        Args:
            drain: says when the run goes on, and is told that the learner rests.
            lifecycle: ends the rest.
            collaboration: gives back what helpers have pushed.
            replay: delivers the last priorities.
            steps: asks it once more.
            staleness: writes the ledger.
            publisher: publishes the newest parameters.
            monitor: counts no rest as training.
            checkpointer: writes a checkpoint.
            folder: of the run.
            updates: that are done.
        """
        self._drain = drain
        self._lifecycle = lifecycle
        self._collaboration = collaboration
        self._replay = replay
        self._steps = steps
        self._staleness = staleness
        self._publisher = publisher
        self._monitor = monitor
        self._checkpointer = checkpointer
        self._folder = folder
        self._updates = updates

    def __call__(self) -> None:
        """The run is drained: save all there is, and stay until it goes on.

        Raises:
            Stopped: the process is to end.
            UserError: something cannot be written.
        """
        began_s, updates = time.monotonic(), self._updates()
        self._collaboration.pause("the run is drained: its step is taken with another base when it goes on")
        self._replay.deliver()
        self._close_books(updates)
        self._checkpointer.save_now()
        self._show(updates)
        self._drain.learner_rests(updates)
        while self._drain.is_on:
            if self._lifecycle.stopping.wait(LOOK_S):
                raise Stopped
        self._monitor.rested(time.monotonic() - began_s)

    def end(self) -> None:
        """The loop is over: save all there is.

        Raises:
            UserError: something cannot be written.
        """
        updates = self._updates()
        self._collaboration.end("the chief stops training")
        self._replay.finish()
        self._close_books(updates)
        self._checkpointer.finish()
        self._show(updates)

    def _close_books(self, updates: int) -> None:
        self._steps.poll_once(self._replay)
        self._staleness.close(updates)
        self._publisher.publish()

    def _show(self, updates: int) -> None:
        self._monitor.show(updates)
        self._folder.save_progress(self._monitor.progress(updates))
