"""The steps that a ring's folder holds, read from its columns when nobody writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from services.common.ring_reader import RingReader
from services.replay.items import StepOutcome
from tests.chaos.accounting import Rows
from tests.chaos.numbered_arm import read_marks


def read_rows(folder: Path) -> Rows:
    """All steps of the ring in `folder`.

    Raises:
        ValueError: the ring has wrapped, so that steps are gone that nobody can look for.
    """
    ring = RingReader(folder)
    if ring.reserved > ring.capacity:
        raise ValueError(f"the ring of {ring.capacity} rows has wrapped: the scenario needs a larger replay.capacity")
    status = ring.column("status")[: ring.committed]
    is_step = status != StepOutcome.NO_STEP
    keys = np.flatnonzero(is_step)
    life, step, lane = read_marks(ring.column("observation.policy")[keys])
    versions = ring.column("policy_version")[keys].astype(np.int64)
    return Rows(life, step, lane, versions, int(np.count_nonzero(status == StepOutcome.LOST)))
