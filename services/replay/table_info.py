"""What the table is made with and what it answers: plain values, without behaviour."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import numpy.typing as npt

from services.common.batch import Batch, DrawnKeys
from services.common.chunk import ActorCounters
from services.common.sick_lane import SickLane
from services.replay.admission import InsertStatus
from services.replay.chunk_stamps import FoundStamps
from services.replay.sampler_settings import SamplerSettings
from services.replay.step_counters import StepCounters


@dataclass(frozen=True)
class TableSettings:
    """How a table is made; the parts check what is theirs and say what is wrong with it."""

    capacity: int  # rows, final observations included
    n_step: int = 3
    discount: float = 0.99
    sampling: SamplerSettings = field(default_factory=SamplerSettings)
    samples_per_insert: float = 0.0  # 0: unlimited
    error_buffer: float = 0.0  # samples that either side may run ahead
    min_size_to_sample: int = 1  # items
    max_open_steps: int = 0  # steps whose windows are open at once, as far as that is known before
    max_chunk_steps: int = 4096  # transitions of one insert, counted only if samples_per_insert is set
    max_batch_size: int = 1024  # items
    max_num_batches: int = 8  # of one sample call
    max_waiting_inserts: int = 64  # further ones are turned away at once
    max_version_lead: int = 10_000  # versions that a step may be ahead of the newest that was heard of
    max_actor_silence_s: float = 60.0  # after it an actor's open windows are closed
    max_peers: int = 4096  # names of actors that are let in
    with_moments: bool = False  # whether moments of observations are kept
    seed: int = 0

    def check(self) -> None:
        """Compare the settings that are nobody else's to check.

        Raises:
            ValueError: they do not fit together.
        """
        if self.max_batch_size > self.capacity:
            raise ValueError(
                f"batches of up to {self.max_batch_size} items are larger than the table of {self.capacity} "
                f"rows; lower the batch size or raise the capacity"
            )
        if self.max_waiting_inserts < 0 or not self.max_actor_silence_s > 0.0:
            raise ValueError(
                f"max_waiting_inserts is {self.max_waiting_inserts} and max_actor_silence_s "
                f"{self.max_actor_silence_s}; they must be at least 0, and above 0"
            )


@dataclass(frozen=True)
class InsertResult:
    """The answer to an insert."""

    status: InsertStatus
    reason: str  # one sentence unless APPLIED
    next_sequence: int  # what the lane group should send next
    retry_after_s: float = 0.0  # with BLOCKED
    quarantined_lanes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    sick_lanes: Sequence[SickLane] = ()  # what is known of the first of them


class SampleStatus(enum.IntEnum):
    """The answer to a sample; the numbers are those of the wire."""

    OK = 1
    WAITING = 2


@dataclass(frozen=True)
class SampleResult:
    """K draws of N items, or the reason why there are none."""

    status: SampleStatus
    reason: str
    batch_size: int  # N
    priority_mass_log2: float  # log2 of the sum of p^priority_exponent; -inf with no item
    num_items: int
    drawn: Optional[DrawnKeys] = None  # K x N items, batch after batch
    batch: Optional[Batch] = None  # the same with their rows; None if only keys were asked for
    stamps: Optional[FoundStamps] = None  # of `drawn`

    @property
    def batches(self) -> List[Batch]:
        """The K draws on their own; none if only keys were asked for."""
        return self.batch.split(self.batch_size) if self.batch is not None else []


@dataclass(frozen=True)
class RateLimiterState:
    """The limiter's counts, and who is held back now."""

    samples_per_insert: float
    error_buffer: float
    min_size_to_sample: int
    inserted_items: int  # steps that can start an item, ever
    sampled_items: int
    balance: float  # samples owed to the inserts so far; means nothing where samples_per_insert is 0
    insert_blocked: bool  # an insert waits
    sample_blocked: bool  # a sample waits
    explanation: str


@dataclass(frozen=True)
class WaiterInfo:
    """A call that waits right now."""

    peer_name: str
    call: str  # "Insert" or "Sample"
    seconds: float
    reason: str


@dataclass(frozen=True)
class ActorInfo:
    """An actor in its newest life."""

    name: str
    incarnation: int
    acknowledged_steps: int  # of all lives
    seconds_since_insert: float
    counters: ActorCounters  # as they came with its last chunk
    last_policy_version: int
    life_acknowledged_steps: int = 0
    elsewhere_steps: int = 0
    earlier_lives: int = 0
    waiting_for: str = ""
    waiting_s: float = 0.0


@dataclass(frozen=True)
class SamplingInfo:
    """What the sampler did, in counts since the table was made."""

    updates: Dict[str, int]  # priorities by what became of them: applied, stale, rejected, superseded
    exhausted_items: int  # that left the sampler after max_times_sampled draws
    freshness_rebases: int
    num_exhausted: int  # of these, now in the ring
    expired_items: int  # that became older than max_lag_updates, since this life of the replay began
    num_expired: int  # in the ring now


@dataclass(frozen=True)
class TableInfo:
    """Everything a person asks of a table."""

    capacity_rows: int
    rows: int
    num_items: int
    n_step: int
    discount: float
    steps: StepCounters
    clamped_priorities: int  # updates whose p had to be brought into its range
    sampling: SamplingInfo
    refused_chunks: Dict[str, int]  # by reason
    quarantined_lanes: int  # a lane of a chunk each
    inserted_bytes: int  # of the columns of applied chunks
    oldest_row_age_s: float  # 0 without rows
    limiter: RateLimiterState
    waiters: List[WaiterInfo]
    actors: List[ActorInfo]
    max_actor_silence_s: float
    newest_version: int
    newest_updates: int
    log_bytes: Optional[int]  # that the chunk log takes; None: the ring is in memory
    snapshots: int  # taken since this life began


@dataclass(frozen=True)
class InspectedItem:
    """One item, as a person sees it."""

    key: int
    actor: str
    chunk: str  # its name
    priority: float
    times_sampled: int
    age_s: float
    policy_version: int
    n_step_return: float
    discount: float
    bootstrap_key: int
    columns: Dict[str, npt.NDArray[Any]] = field(default_factory=dict)  # filled when one item is asked for


@dataclass(frozen=True)
class Histogram:
    """How the items spread over a quantity."""

    name: str
    edges: npt.NDArray[np.float64]  # [bins + 1]
    counts: npt.NDArray[np.int64]  # [bins]
