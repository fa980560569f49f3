"""Priorities on their way back: what the learner found waits here for the next call to the replay."""

from __future__ import annotations

import threading
from typing import List, Optional, Tuple

import numpy as np
import numpy.typing as npt

from shoal.v1 import replay_pb2


class PriorityOutbox:
    """|TD errors| of whole batches, until a call takes them all; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: List[Tuple[int, npt.NDArray[np.int64], npt.NDArray[np.float32]]] = []

    def __len__(self) -> int:
        """Batches that wait."""
        return len(self._batches)

    def add(self, table_id: int, keys: npt.NDArray[np.int64], td_error: npt.NDArray[np.float32]) -> None:
        """Have a batch's errors wait.

        Args:
            table_id: of the table that drew it.
            keys: <int64>[N].
            td_error: <float32>[N], absolute.
        """
        with self._lock:
            self._batches.append((table_id, keys, td_error))

    def take(self) -> Optional[replay_pb2.PriorityUpdates]:
        """All that waits, and nothing waits any more; None where nothing did."""
        with self._lock:
            taken, self._batches = self._batches, []
        if not taken:
            return None
        table_id = taken[-1][0]
        alive = [batch for batch in taken if batch[0] == table_id]  # keys of an earlier table name nothing now
        return replay_pb2.PriorityUpdates(
            table_id=table_id,
            keys=np.concatenate([keys for _, keys, _ in alive]).tobytes(),
            td_error=np.concatenate([td_error for _, _, td_error in alive]).astype(np.float64).tobytes(),
        )
