"""The end of training: the chief stays until its readers know, and the evaluator has judged the last version."""

from __future__ import annotations

from typing import Callable, Optional

from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.run_folder import Evaluation
from services.learner.readers import Readers
from shoal.v1 import experience_pb2

READERS_WAIT_S = 5.0
EVALUATOR_WAIT_S = 30.0
LIVING_WITHIN_S = 10.0  # a reader silent for longer is not waited for


def wait_for_readers(
    readers: Readers,
    *,
    last_version: int,
    latest_evaluation: Callable[[], Optional[Evaluation]],
    clock: Callable[[], float],
    lifecycle: Lifecycle,
    log: Log,
) -> None:
    """Return when every living reader was told the end and the evaluator judged `last_version`, or in time."""
    began = clock()
    said = ""
    while not lifecycle.stopping.wait(0.05):
        waited = clock() - began
        # Many readers ask less often; each gets the time for a question, and for one that was lost.
        readers_wait_s = max(READERS_WAIT_S, 2 * readers.ask_again_s)
        living = readers.living(max(LIVING_WITHIN_S, 2 * readers.ask_again_s))
        untold = [reader.peer.name for reader in living if not reader.told_finished]
        # An evaluator asks between two judgements alone, and one of them may take long.
        judging = [
            reader.peer.name
            for reader in readers.living(EVALUATOR_WAIT_S)
            if reader.peer.role == experience_pb2.ROLE_EVALUATOR
        ]
        latest = latest_evaluation()
        if latest is not None and latest.version >= last_version:
            judging = []
        if (not untold or waited > readers_wait_s) and (not judging or waited > EVALUATOR_WAIT_S):
            return
        reason = f"waiting for {', '.join(judging or untold)} to hear that training is finished"
        if reason != said:
            log.info(reason)
            said = reason
