"""What there is to say of a table: sizes, counters, the limiter's state, who waits for what, and the actors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, Optional

import numpy as np

from services.replay.admission import WORD_LASTS_S, ActorRecord, Admission
from services.replay.heard_versions import HeardVersions
from services.replay.item_store import ItemStore
from services.replay.rate_limiter import RateLimiter
from services.replay.refusal import WORDS
from services.replay.ring import Ring
from services.replay.table_info import ActorInfo, RateLimiterState, SamplingInfo, TableInfo, TableSettings
from services.replay.waiting import WaitingRoom

PRIORITY_ROWS = 16_384  # that p50 and p95 are estimated from
EFFECTIVE_DRAWS = 4096


@dataclass
class ChunkCounts:
    """What the table counts of the calls that it answers."""

    updates: Dict[str, int] = field(
        default_factory=lambda: {"applied": 0, "stale": 0, "rejected": 0, "superseded": 0}
    )  # priority updates by outcome
    refused_chunks: Dict[str, int] = field(default_factory=lambda: dict.fromkeys(WORDS, 0))  # by reason
    clamped_priorities: int = 0
    quarantined_lanes: int = 0
    inserted_bytes: int = 0


@dataclass(frozen=True)
class PrioritySpread:
    """How unequal the items are that can be drawn."""

    quantiles: Dict[str, float]  # of p: "p50", "p95" over some rows chosen at random, "max" over all
    effective_items: float  # 1 / sum P(i)^2: as many alike items would spread the draws as much


def spread_priorities(store: ItemStore, rng: np.random.Generator) -> Optional[PrioritySpread]:
    """Estimate the spread in a time that does not grow with the table, whose lock must be held; None without items.

    sum P(i)^2 is the mean of P over draws by P, so that items that dominate the draws are never overlooked.
    """
    ring, sampler = store.ring, store.sampler
    if store.num_items == 0 or not sampler.tree.total > 0.0:
        return None
    rows = (
        np.arange(ring.num_rows) if ring.num_rows <= PRIORITY_ROWS else rng.integers(ring.num_rows, size=PRIORITY_ROWS)
    )
    priority = ring.priority[ring.slots(ring.oldest_key + rows)]
    priority = priority[priority > 0.0]  # the others start no item
    largest = sampler.largest_priority()
    p50, p95 = np.percentile(priority, [50, 95]).tolist() if len(priority) > 0 else (largest, largest)
    leaves = sampler.tree.leaves(sampler.tree.draw_stratified(rng, 1, EFFECTIVE_DRAWS).reshape(-1))
    effective = sampler.tree.total / float(leaves.mean())
    return PrioritySpread({"p50": p50, "p95": p95, "max": largest}, effective)


def oldest_row_age_s(ring: Ring, now_s: float) -> float:
    """Seconds since the oldest row came; 0 without rows."""
    if ring.num_rows == 0:
        return 0.0
    return max(0.0, now_s - float(ring.inserted_s[ring.oldest_key % ring.capacity]))


def describe_table(
    settings: TableSettings,
    store: ItemStore,
    limiter: RateLimiter,
    admission: Admission,
    waiting: WaitingRoom,
    history: HeardVersions,
    counts: ChunkCounts,
    now_s: float,
    *,
    log_bytes: Optional[int],
    snapshots: int,
) -> TableInfo:
    """Everything a person asks of a table; its lock must be held."""
    return TableInfo(
        capacity_rows=settings.capacity,
        rows=store.ring.num_rows,
        num_items=store.num_items,
        n_step=settings.n_step,
        discount=settings.discount,
        steps=replace(store.counters),
        clamped_priorities=counts.clamped_priorities,
        sampling=SamplingInfo(
            updates=dict(counts.updates),
            exhausted_items=store.sampler.exhausted_total,
            freshness_rebases=store.sampler.num_rebases,
            num_exhausted=store.sampler.num_exhausted,
            expired_items=store.sampler.expired_total,
            num_expired=store.sampler.num_expired,
        ),
        refused_chunks=dict(counts.refused_chunks),
        quarantined_lanes=counts.quarantined_lanes,
        inserted_bytes=counts.inserted_bytes,
        oldest_row_age_s=oldest_row_age_s(store.ring, now_s),
        limiter=RateLimiterState(
            samples_per_insert=limiter.samples_per_insert,
            error_buffer=limiter.error_buffer,
            min_size_to_sample=limiter.min_size_to_sample,
            inserted_items=limiter.inserted,
            sampled_items=limiter.sampled,
            balance=limiter.balance,
            insert_blocked=waiting.count("Insert") > 0,
            sample_blocked=waiting.count("Sample") > 0,
            explanation=limiter.explain(store.stock()),
        ),
        waiters=waiting.waiters(),
        actors=[_describe_actor(record, now_s) for record in admission.actors.values()],
        max_actor_silence_s=settings.max_actor_silence_s,
        newest_version=history.newest_version,
        newest_updates=history.newest_updates,
        log_bytes=log_bytes,
        snapshots=snapshots,
    )


def _describe_actor(record: ActorRecord, now_s: float) -> ActorInfo:
    says = record.waiting_for if now_s - record.heard_s <= WORD_LASTS_S else ""
    return ActorInfo(
        name=record.name,
        incarnation=record.incarnation,
        acknowledged_steps=record.acknowledged_steps,
        seconds_since_insert=now_s - record.last_seen_s,
        counters=record.counters,
        last_policy_version=record.last_policy_version,
        life_acknowledged_steps=record.life_acknowledged_steps,
        elsewhere_steps=record.elsewhere_steps,
        earlier_lives=len(record.fenced),
        waiting_for=says,
        waiting_s=now_s - record.waiting_since_s if says else 0.0,
    )


def check_windows(store: ItemStore, admission: Admission) -> Optional[str]:
    """Whether the actors' open windows and steps are those that were counted: what is wrong, or None."""
    held = [group.open_keys for record in admission.actors.values() for group in record.groups.values()]
    num_open = sum(int((keys >= max(0, store.ring.oldest_key)).sum()) for keys in held)
    if num_open != store.counters.unripe:
        return f"lane groups hold {num_open} open windows in the ring; {store.counters.unripe} were counted"
    acknowledged = sum(record.acknowledged_steps for record in admission.actors.values())
    if acknowledged != store.counters.acknowledged:
        return f"actors sent {acknowledged} steps; {store.counters.acknowledged} were counted"
    return None
