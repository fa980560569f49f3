"""The inspector: looks into a table for people, with its lock held."""

from __future__ import annotations

import threading
from typing import Callable, List, Optional

from services.replay.admission import Admission
from services.replay.heard_versions import HeardVersions
from services.replay.inspection import InspectOrder, describe_item, find_items, histograms
from services.replay.item_store import ItemStore
from services.replay.items import StepOutcome
from services.replay.table_info import Histogram, InspectedItem


class Inspector:
    """Shows items and how they spread; changes nothing."""

    def __init__(
        self,
        store: ItemStore,
        admission: Admission,
        history: HeardVersions,
        lock: threading.RLock,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._admission = admission
        self._history = history
        self._lock = lock
        self._clock = clock

    def find(self, order: InspectOrder, max_items: int, actor: str = "") -> List[InspectedItem]:
        """The first `max_items` items in `order`, of one actor unless `actor` is empty."""
        with self._lock:
            store, names, now_s = self._store, self._admission.names, self._clock()
            if not actor:
                keys = find_items(store.ring, order, max_items, None)
            elif actor in self._admission.actors:
                keys = find_items(store.ring, order, max_items, self._admission.actors[actor].index)
            else:
                return []
            return [describe_item(store, int(key), names, now_s, in_full=False) for key in keys]

    def item(self, key: int) -> Optional[InspectedItem]:
        """One item in full, or None if no resident item starts at `key`."""
        with self._lock:
            ring = self._store.ring
            if not ring.oldest_key <= key < ring.committed or ring.status[key % ring.capacity] != StepOutcome.ITEM:
                return None
            return describe_item(self._store, key, self._admission.names, self._clock(), in_full=True)

    def histograms(self) -> List[Histogram]:
        """How the items spread by priority, age, versions behind the newest, and draws."""
        with self._lock:
            return histograms(self._store.ring, self._clock(), self._history.newest_version)
