"""The queue of batches that wait to be trained on."""

from __future__ import annotations

import threading
from collections import deque
from typing import Deque, Generic, List, TypeVar

Entry = TypeVar("Entry")


class BatchQueue(Generic[Entry]):
    """A bounded queue that takes several entries at once: one wakes the reader instead of each."""

    def __init__(self, max_size: int) -> None:
        if max_size < 1:
            raise ValueError(f"a queue of {max_size} batches holds none; keep at least 1")
        self._max_size = max_size
        self._entries: Deque[Entry] = deque()
        lock = threading.Lock()
        self._filled, self._emptied = threading.Condition(lock), threading.Condition(lock)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entries: List[Entry], timeout_s: float) -> List[Entry]:
        """Append as many of `entries` as there is room for, and wait for room for the first of them.

        Returns:
            Those that there was no room for.
        """
        with self._emptied:
            if not self._emptied.wait_for(lambda: len(self._entries) < self._max_size, timeout_s):
                return entries
            room = self._max_size - len(self._entries)
            self._entries.extend(entries[:room])
            self._filled.notify(len(entries[:room]))
            return entries[room:]

    def get(self, timeout_s: float) -> List[Entry]:
        """The oldest entry as a list of one, or an empty list after `timeout_s` without any."""
        with self._filled:
            if not self._filled.wait_for(lambda: len(self._entries) > 0, timeout_s):
                return []
            entry = self._entries.popleft()
            self._emptied.notify()
            return [entry]
