"""The queue of batches that wait to be trained on."""

from __future__ import annotations

import threading
from collections import deque
from typing import Deque, Generic, List, TypeVar

Entry = TypeVar("Entry")


class BatchQueue(Generic[Entry]):
    """A bounded queue whose writers reserve room before they make what they put.

    So never more than `max_size` entries are made ahead of the reader, and none grows old in a writer's hands.
    """

    def __init__(self, max_size: int) -> None:
        if max_size < 1:
            raise ValueError(f"a queue of {max_size} batches holds none; keep at least 1")
        self._max_size = max_size
        self._reserved = 0
        self._entries: Deque[Entry] = deque()
        lock = threading.Lock()
        self._filled, self._emptied = threading.Condition(lock), threading.Condition(lock)

    def __len__(self) -> int:
        return len(self._entries)

    def reserve(self, count: int, timeout_s: float) -> bool:
        """Wait for room for `count` entries and keep it; False: there was none in time.

        Raises:
            ValueError: there will never be so much.
        """
        if not 1 <= count <= self._max_size:
            raise ValueError(f"room for {count} batches was asked of a queue of {self._max_size}")

        def has_room() -> bool:
            return len(self._entries) + self._reserved + count <= self._max_size

        with self._emptied:
            if not self._emptied.wait_for(has_room, timeout_s):
                return False
            self._reserved += count
            return True

    def put(self, entries: List[Entry]) -> None:
        """Append `entries`, for which room was reserved."""
        with self._filled:
            self._reserved -= len(entries)
            self._entries.extend(entries)
            self._filled.notify(len(entries))

    def release(self, count: int) -> None:
        """Give up room that was reserved for `count` entries which do not come."""
        with self._emptied:
            self._reserved -= count
            self._emptied.notify_all()

    def wait_for_fewer(self, count: int, timeout_s: float) -> bool:
        """Wait until fewer than `count` entries wait for the reader; False: that did not happen in time."""
        with self._emptied:
            return self._emptied.wait_for(lambda: len(self._entries) < count, timeout_s)

    def get(self, timeout_s: float) -> List[Entry]:
        """The oldest entry as a list of one, or an empty list after `timeout_s` without any."""
        with self._filled:
            if not self._filled.wait_for(lambda: len(self._entries) > 0, timeout_s):
                return []
            entry = self._entries.popleft()
            self._emptied.notify_all()  # of several writers one may need more room than another
            return [entry]
