"""Memory of batches that is used again: fresh pages cost more than the copy of the rows that go into them."""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from typing import Deque

import numpy as np
import numpy.typing as npt

MAX_SPARE = 4  # blocks that are kept while no batch lies in them


class RowMemory:
    """Blocks of bytes, each taken back when the last array that views it is gone. Any thread may take one."""

    def __init__(self) -> None:
        self._spare: Deque[mmap.mmap] = deque(maxlen=MAX_SPARE)

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """A block <uint8>[num_bytes] that holds anything, aligned to a page."""
        memory = self._reuse(num_bytes)
        # Arrays that view the block keep this one alive, since its bytes are not numpy's own.
        block = np.frombuffer(memory, np.uint8, num_bytes)
        weakref.finalize(block, self._spare.append, memory).atexit = False
        return block

    def _reuse(self, num_bytes: int) -> mmap.mmap:
        try:
            memory = self._spare.pop()  # the one that was in use last: its bytes are in a cache, if any are
        except IndexError:
            return _map(num_bytes)
        return memory if len(memory) >= num_bytes else _map(num_bytes)


def _map(num_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
