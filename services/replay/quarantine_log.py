"""Says which lanes are quarantined, seldom enough to be read."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Callable, Dict

import numpy as np
import numpy.typing as npt

from services.common.chunk import VALID, Chunk
from services.common.chunk_id import chunk_id
from services.common.log import Log

PERIOD_S = 5.0


@dataclass
class _Told:
    """What was said of one actor, and what has not been said yet."""

    steps: int = 0  # quarantined since the last line
    next_s: float = -np.inf  # when the next line may come
    next_all_s: float = -np.inf  # the same of the line that all lanes are sick
    is_all: bool = False  # whether its last chunk had no healthy lane


class QuarantineLog:
    """At most one line in `PERIOD_S` an actor, and a distinct one when an actor has no healthy lane left.

    May be called from many threads.
    """

    def __init__(self, log: Log, clock: Callable[[], float]) -> None:
        """Say nothing yet.

        Args:
            log: takes the lines.
            clock: monotonic, seconds.
        """
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._told: Dict[str, _Told] = {}

    def note(self, actor: str, incarnation: int, chunk: Chunk, lanes: npt.NDArray[np.int64]) -> None:
        """Take note of a chunk that was applied.

        Args:
            actor: its sender's name.
            incarnation: of the sender.
            chunk: as it came, [T, B].
            lanes: those of the B that were quarantined, sorted; often none.
        """
        is_all = len(lanes) == chunk.flags.shape[1] and len(lanes) > 0
        with self._lock:
            told = self._told.setdefault(actor, _Told())
            was_all, told.is_all = told.is_all, is_all
            if not len(lanes):
                return
            now_s = self._clock()
            told.steps += int(np.count_nonzero(chunk.flags[:, lanes] & VALID))
            steps = told.steps
            is_due, is_all_due = now_s >= told.next_s, is_all and not was_all and now_s >= told.next_all_s
            if is_due:
                told.steps, told.next_s = 0, now_s + PERIOD_S
            if is_all_due:
                told.next_all_s = now_s + PERIOD_S
        if is_due:
            self._log.warning(
                "lanes are quarantined: values that are not finite",
                actor=actor,
                chunk=chunk_id(actor, incarnation, chunk.sequence, chunk.lane_group),
                lanes=lanes.tolist(),
                steps=steps,
            )
        if is_all_due:
            self._log.error(
                "every lane of an actor is quarantined: nothing of it is learned from; mend the environment",
                actor=actor,
                lanes=len(lanes),
            )
