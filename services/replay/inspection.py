"""Inspection: items by priority or age, one item in full, and how the items spread."""

from __future__ import annotations

import enum
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import numpy.typing as npt

from services.replay.item_store import ItemStore
from services.replay.items import StepOutcome
from services.replay.ring import Ring
from services.replay.table_info import Histogram, InspectedItem

NUM_BINS = 20


class InspectOrder(enum.IntEnum):
    """Which items come first; the numbers are those of the wire."""

    HIGHEST_PRIORITY = 1
    OLDEST = 2
    NEWEST = 3


def find_items(ring: Ring, order: InspectOrder, max_items: int, actor_index: Optional[int]) -> npt.NDArray[np.int64]:
    """Keys <int64>[<= max_items] of items in `order`; only those of one actor unless `actor_index` is None."""
    wanted = ring.status == StepOutcome.ITEM
    if actor_index is not None:
        wanted &= ring.actor == actor_index
    slots = np.flatnonzero(wanted)
    keys = ring.keys(slots)
    rank: npt.NDArray[Any] = -ring.priority[slots]
    if order is not InspectOrder.HIGHEST_PRIORITY:
        rank = keys if order is InspectOrder.OLDEST else -keys
    return keys[np.argsort(rank, kind="stable")[: max(0, max_items)]]


def describe_item(store: ItemStore, key: int, names: Sequence[str], now_s: float, *, in_full: bool) -> InspectedItem:
    """One resident item by key; with its columns if `in_full`."""
    ring = store.ring
    slot = key % ring.capacity
    bootstrap_key = int(ring.bootstrap_key[slot])
    columns: Dict[str, npt.NDArray[Any]] = {}
    if in_full:
        next_slot = bootstrap_key % ring.capacity
        for name, column in ring.observation.items():
            columns[f"observation.{name}"] = column[slot].copy()
            columns[f"next_observation.{name}"] = column[next_slot].copy()
        for name in ("action", "reward", "flags", "q_taken", "value"):
            columns[name] = np.array(getattr(ring, name)[slot])
    return InspectedItem(
        key=key,
        actor=names[int(ring.actor[slot])],
        chunk=store.stamps.name_of(key, names),
        priority=float(ring.priority[slot]),
        times_sampled=int(ring.times_sampled[slot]),
        age_s=now_s - float(ring.inserted_s[slot]),
        policy_version=int(ring.policy_version[slot]),
        n_step_return=float(ring.n_step_return[slot]),
        discount=float(ring.discount[slot]),
        bootstrap_key=bootstrap_key,
        columns=columns,
    )


def histograms(ring: Ring, now_s: float, newest_version: int) -> List[Histogram]:
    """How the items spread by priority, age, versions behind the newest, and draws. Empty without items."""
    slots = np.flatnonzero(ring.status == StepOutcome.ITEM)
    if len(slots) == 0:
        return []
    priority = ring.priority[slots]
    low, high = float(priority.min()), float(priority.max())
    edges = np.geomspace(low, high, NUM_BINS + 1) if high > low else np.array([low, np.nextafter(low, np.inf)])
    edges[0], edges[-1] = low, max(high, edges[-1])
    spreads = [Histogram("priority", edges, np.histogram(priority, edges)[0].astype(np.int64))]
    for name, values in (
        ("age_seconds", now_s - ring.inserted_s[slots]),
        ("lag_versions", np.maximum(0, newest_version - ring.policy_version[slots])),
        ("times_sampled", ring.times_sampled[slots]),
    ):
        counts, edges = np.histogram(values, NUM_BINS)
        spreads.append(Histogram(name, edges.astype(np.float64), counts.astype(np.int64)))
    return spreads
