"""A ring whose keys and counters are those of a replay that has run for very long: made, and checked in the end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, List

import numpy as np
import numpy.typing as npt

from bench.replay.shoal_server import N_STEP, RUN_ID
from services.common.ring_layout import RingFormat
from services.replay.ring_folder import RingFolder
from services.replay.table import InsertStatus, Table, TableSettings
from tests.fakes import make_chunk
from tests.soak.traffic import CHUNK_LANES, CHUNK_ROWS, CHUNK_STEPS, SCHEMA, UPDATES_A_VERSION, Traffic

DISCOUNT = 0.99  # as the run file of the benchmarks' server has it
FORMER_ACTOR = "of-before"  # who sent what was there before
TURNS_BEFORE = 20  # of the ring, until its keys pass the bound
BOUNDS = {"2^32": 2**32, "2^53": 2**53}  # where a uint32 or a float64 loses numbers


@dataclass(frozen=True)
class Age:
    """Where a replay's life begins: a little before a bound, with everything that grows for ever."""

    name: str  # of the bound
    bound: int
    first: int  # of chunks, steps, updates and versions, see Traffic
    first_key: int  # of rows; also the steps that were acknowledged and overwritten, and the items that were drawn


def age_before(name: str, capacity: int) -> Age:
    """An age whose keys pass the bound after TURNS_BEFORE turns of a ring, its versions sooner."""
    chunks = TURNS_BEFORE * capacity // CHUNK_ROWS
    # Versions and chunks count from one number, and there is a version for many chunks only.
    first = BOUNDS[name] - min(chunks, chunks // UPDATES_A_VERSION + 1)
    return Age(name, BOUNDS[name], first, BOUNDS[name] - TURNS_BEFORE * capacity)


def make_ring(data_dir: Path, capacity: int, age: Age) -> None:
    """Make the folder of a ring of that age for a replay to find, with the last chunk of an actor of before in it.

    Args:
        data_dir: of the replay, `replay.data_dir`.
        capacity: rows.
        age: what its counters and keys begin with.
    """
    ring_format = RingFormat(RUN_ID, SCHEMA, capacity, N_STEP, DISCOUNT, boot_id="", made_wall_s=time.time())
    folder = RingFolder.create(data_dir / RUN_ID, ring_format, "aged")
    try:
        settings = TableSettings(capacity=capacity, n_step=N_STEP, discount=DISCOUNT)
        table = Table(settings, SCHEMA, clock=time.monotonic, folder=folder)
        before = age.first_key - CHUNK_ROWS
        for name in ("acknowledged", "overwritten", "items"):
            setattr(table.store.counters, name, before)
        table._admission.enter(FORMER_ACTOR, 1, 0.0)
        table._admission.actors[FORMER_ACTOR].acknowledged_steps = before
        table._limiter.restore(before, age.first_key)
        table.set_newest(1 + age.first, age.first)
        table._journal.roll()  # the log's first segment names the actor, the second one begins with the keys
        table.store.ring.reserve_up_to(before)
        table.store.ring.commit()
        table._journal.roll()
        last = make_chunk(CHUNK_STEPS, CHUNK_LANES, schema=SCHEMA, version=1 + age.first)
        result = table.insert(FORMER_ACTOR, 1, last, max_wait_s=0.0)
        if result.status is not InsertStatus.APPLIED or table.check_valid() is not None:
            raise RuntimeError(f"the ring could not be made: {result.reason or table.check_valid()}")
    finally:
        folder.close()


def faults_of(age: Age, traffic: Traffic) -> List[str]:
    """What a replay of that age, at rest, has lost or counted wrongly; empty if all is right."""
    traffic.sample()
    info = traffic.info()
    return differences(age, info, traffic.inserted, traffic.drawn, traffic.last_keys)


def differences(age: Age, info: Any, chunks: int, drawn: int, keys: npt.NDArray[np.int64]) -> List[str]:
    """What does not agree with so many chunks and items drawn since the beginning of that age.

    Args:
        age: see Age.
        info: `GetReplayInfoResponse`.
        chunks: that were acknowledged.
        drawn: items.
        keys: <int64>[N], of the last draw.
    """
    steps, newest = info.steps, age.first_key + chunks * CHUNK_ROWS
    kept = steps.resident + steps.overwritten + steps.reset + steps.quarantined + steps.lost_tail
    wanted = {
        "steps acknowledged": (steps.acknowledged, newest),
        "steps accounted for": (kept, steps.acknowledged),
        "steps the limiter let in": (info.limiter.inserted_items, newest),
        "items drawn": (info.limiter.sampled_items, age.first_key + drawn),
        "steps lost, damaged or quarantined": (steps.reset + steps.quarantined + steps.lost_tail, 0),
    }
    found = [f"{what}: {had}, and not {want}" for what, (had, want) in wanted.items() if had != want]
    if newest <= age.bound or info.newest_version <= age.bound:
        found.append(f"keys came to {newest} and versions to {info.newest_version}: {age.bound} was not passed")
    if not len(keys) or keys.min() < newest - info.capacity_rows or keys.max() >= newest:
        found.append(f"keys drawn are not among the last {info.capacity_rows} before {newest}")
    return [f"counters near {age.name}: {fault}" for fault in found]
