"""A drawn batch: what the replay gave, and what is known of its way to the learner."""

from __future__ import annotations

from dataclasses import dataclass

from services.common.batch import Batch


@dataclass(frozen=True)
class DrawnBatch:
    """A batch, the table that its keys belong to, and its way from there."""

    batch: Batch
    table_id: int
    arrived_s: float = 0.0  # monotonic clock at the answer
    half_trip_s: float = 0.0  # bound of how long the answer was on its way
