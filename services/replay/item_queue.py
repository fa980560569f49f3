"""The item queue: keys of items in the order in which they became items, for draws first in, first out."""

from __future__ import annotations

from typing import Callable, List

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
MIN_WINDOW = 256


class ItemQueue:
    """A queue that does not hear of items that leave: it asks about those at its head when they are wanted."""

    def __init__(self, capacity: int, is_live: Callable[[Keys], npt.NDArray[np.bool_]]) -> None:
        """Make an empty queue.

        Args:
            capacity: items that can be live at once.
            is_live: whether each key <int64>[N] is that of an item which can still be drawn.
        """
        self._is_live = is_live
        self._keys = np.zeros(2 * capacity, np.int64)
        self._begin = 0
        self._end = 0

    def push(self, keys: Keys) -> None:
        """Append the keys <int64>[N <= capacity] of fresh items."""
        if self._end + len(keys) > len(self._keys):
            kept = self._keys[self._begin : self._end]
            kept = kept[self._is_live(kept)]
            self._begin, self._end = 0, len(kept)
            self._keys[: self._end] = kept
        self._keys[self._end : self._end + len(keys)] = keys
        self._end += len(keys)

    def oldest(self, count: int) -> Keys:
        """The up to `count` keys that became items first and are live; they stay in the queue."""
        found: List[Keys] = []
        missing, at = count, self._begin
        while missing > 0 and at < self._end:
            window = self._keys[at : min(self._end, at + max(missing, MIN_WINDOW))]
            live = self._is_live(window)
            if at == self._begin:
                self._begin += int(np.argmax(live)) if live.any() else len(window)
            found.append(window[live][:missing])
            missing -= len(found[-1])
            at += len(window)
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def clear(self) -> None:
        """Forget all keys."""
        self._begin = self._end = 0
