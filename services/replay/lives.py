"""The lives of actors: a newer one fences the older, and a silent one has its open windows closed."""

from __future__ import annotations

from typing import Callable, List

import numpy as np

from services.replay.admission import ActorRecord, Admission, LaneGroup
from services.replay.item_store import ItemStore
from services.replay.journal import Journal


class Lives:
    """Begins and ends the lives of a table's actors. Every method is called with the table's lock held."""

    def __init__(
        self, store: ItemStore, admission: Admission, journal: Journal, clock: Callable[[], float], max_silence_s: float
    ) -> None:
        """Name the parts of the table.

        Args:
            store: holds the open windows.
            admission: knows the actors.
            journal: is told of each change.
            clock: monotonic seconds, the table's.
            max_silence_s: an actor that is silent for longer is taken for dead.
        """
        self._store = store
        self._admission = admission
        self._journal = journal
        self._clock = clock
        self._max_silence_s = max_silence_s

    def enter(self, actor: str, incarnation: int) -> None:
        """Let this life of an actor in; the windows of an older one are closed."""
        is_news = self._admission.is_news(actor, incarnation)
        for orphan in self._admission.enter(actor, incarnation, self._clock()):
            self.close_group(orphan)
        if is_news:
            self._journal.entered(self._admission.actors[actor])

    def leave(self, actor: str, incarnation: int) -> bool:
        """Close the open windows of this life of an actor; False: it is not the living one, or must wait."""
        record = self._admission.actors.get(actor)
        if record is None or record.incarnation != incarnation or self._journal.why_full():
            return False
        self._close(record)
        return True

    def expire(self) -> List[str]:
        """Close the open windows of actors that were silent for too long; returns their names."""
        closed: List[str] = []
        for record in self._admission.silent(self._clock(), self._max_silence_s):
            if self._journal.why_full():
                break  # they stay open until it can be written down that they are closed
            self._close(record)
            closed.append(record.name)
        return closed

    def close_group(self, group: LaneGroup) -> None:
        """Close the open windows of a lane group with what is known."""
        self._store.close(group.open_keys)
        group.open_keys = np.full_like(group.open_keys, -1)

    def _close(self, record: ActorRecord) -> None:
        for group in record.groups.values():
            self.close_group(group)
        self._journal.closed(record)
