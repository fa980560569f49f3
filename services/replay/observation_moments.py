"""Moments of what was observed, gathered at insertion: each step counts once, as in no prioritized batch.

After a start of the replay they are counted anew over the steps that are resident, which the chunk log has vouched for:
exact as long as nothing was overwritten, and of the newest `capacity` rows afterwards. Nothing of them is written down.
"""

from __future__ import annotations

from typing import Dict

import numpy as np

from services.common.chunk import VALID, Chunk
from services.common.moments import Moments, normalized_tensors
from services.replay.items import NO_STEP
from services.replay.ring import Ring

BLOCK_ROWS = 1 << 16  # rows of the ring that are looked at together: bounds the memory


class ObservationMoments:
    """Moments by tensor, of all but images and flags. The caller's lock guards them."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        sizes = {spec.name: int(np.prod(spec.shape, dtype=np.int64)) for spec in ring.schema.observation}
        self.by_tensor: Dict[str, Moments] = {
            name: Moments.none(sizes[name]) for name in normalized_tensors(ring.schema)
        }

    def add(self, chunk: Chunk) -> None:
        """Count the steps of a chunk from which quarantined lanes were taken; final observations are no steps."""
        valid = (chunk.flags & VALID) != 0
        every = bool(valid.all())
        for name, known in self.by_tensor.items():
            column = chunk.observation[name]
            rows = column.reshape(valid.size, *column.shape[2:]) if every else column[valid]
            self.by_tensor[name] = known.merged(Moments.of(rows))

    def recount(self) -> None:
        """Count all steps that are resident, and only these."""
        for name, known in self.by_tensor.items():
            counted, column = Moments.none(len(known.mean)), self._ring.observation[name]
            for begin in range(0, self._ring.capacity, BLOCK_ROWS):
                block = slice(begin, begin + BLOCK_ROWS)
                is_step = self._ring.status[block] != NO_STEP
                if is_step.any():
                    counted = counted.merged(Moments.of(column[block][is_step]))
            self.by_tensor[name] = counted
