"""What there is to say of a table: sizes, counters, the limiter's state, who waits for what, and the actors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, Optional

from services.replay.admission import WORD_LASTS_S, ActorRecord, Admission
from services.replay.item_store import ItemStore
from services.replay.rate_limiter import RateLimiter
from services.replay.table_info import ActorInfo, RateLimiterState, SamplingInfo, TableInfo, TableSettings
from services.replay.version_history import VersionHistory
from services.replay.waiting import WaitingRoom


@dataclass(frozen=True)
class ChunkCounts:
    """What the table counts of the calls that it answers."""

    updates: Dict[str, int]  # priority updates by outcome
    refused_chunks: Dict[str, int]  # by reason
    clamped_priorities: int


def describe_table(
    settings: TableSettings,
    store: ItemStore,
    limiter: RateLimiter,
    admission: Admission,
    waiting: WaitingRoom,
    history: VersionHistory,
    counts: ChunkCounts,
    now_s: float,
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
            updates=counts.updates,
            exhausted_items=store.sampler.exhausted_total,
            freshness_rebases=store.sampler.num_rebases,
            num_exhausted=store.sampler.num_exhausted,
            expired_items=store.sampler.expired_total,
            num_expired=store.sampler.num_expired,
        ),
        refused_chunks=counts.refused_chunks,
        limiter=RateLimiterState(
            samples_per_insert=limiter.samples_per_insert,
            error_buffer=limiter.error_buffer,
            min_size_to_sample=limiter.min_size_to_sample,
            inserted_items=limiter.inserted,
            sampled_items=limiter.sampled,
            insert_blocked=waiting.count("Insert") > 0,
            sample_blocked=waiting.count("Sample") > 0,
            explanation=limiter.explain(store.stock()),
        ),
        waiters=waiting.waiters(),
        actors=[_describe_actor(record, now_s) for record in admission.actors.values()],
        newest_version=history.newest_version,
        newest_updates=history.newest_updates,
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
