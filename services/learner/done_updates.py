"""The number of updates that were done, kept where a kill does not reach: what a crash costs can then be told."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from services.common.files import FILE_MODE, cannot_write

NUM_BYTES = 8  # one int64


class DoneUpdates:
    """A number in a mapped file: the page cache outlives the process, so nothing is written or synced at an update.

    After a stop of the machine it may be older, and then says less than was lost.
    """

    def __init__(self, file: Path) -> None:
        """Map the file, which is made if it is missing or not whole.

        Args:
            file: where the number is kept; its folder is made if need be.

        Raises:
            UserError: the disk is full or the folder cannot be written.
        """
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, FILE_MODE)
            try:
                if os.fstat(descriptor).st_size != NUM_BYTES:
                    os.ftruncate(descriptor, 0)
                os.posix_fallocate(descriptor, 0, NUM_BYTES)  # a mapping without space behind it ends in SIGBUS
                mapping = mmap.mmap(descriptor, NUM_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise cannot_write(file, error) from None
        self._updates = np.frombuffer(mapping, "<i8")

    @property
    def updates(self) -> int:
        """Done so far, over all lives of the chief; 0 where nothing is known."""
        return max(0, int(self._updates[0]))

    def note(self, updates: int) -> None:
        """So many are done now."""
        self._updates[0] = updates
