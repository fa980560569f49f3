"""Snapshots: a consistent copy of a ring's folder while traffic goes on.

The log is held at one instant, then the columns are copied without a lock. What was overwritten meanwhile is told by
the `reserved` that is copied last: an opened copy gives those rows up like the rows of a chunk that was never
acknowledged, at its oldest end, and counts them.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, ContextManager, Tuple

import numpy as np
import numpy.typing as npt

from services.common.chunk import VALID
from services.common.errors import UserError
from services.common.files import storage_error, sync_folder
from services.common.ring_layout import (
    CHUNKS_FOLDER,
    COLUMNS_FOLDER,
    FILE_MODE,
    FOLDER_MODE,
    FORMAT_FILE,
    GUARDS_FILE,
    NONCE_FILE,
    all_columns,
    column_file,
)
from services.replay.footprint import column_bytes, in_words
from services.replay.ring import Ring
from services.replay.ring_folder import RingFolder

PIECE_BYTES, PAUSE_S = 1 << 17, 2e-4  # between two pieces others may run, and the copy leaves them most of a core


@dataclass(frozen=True)
class Copied:
    """What a snapshot brought."""

    steps: int  # acknowledged steps whose rows are in the copy
    num_bytes: int
    seconds: float


class Snapshots:
    """Takes snapshots of one ring, one at a time."""

    def __init__(
        self,
        source: RingFolder,
        ring: Ring,
        hold_log: Callable[[Path], Callable[[], int]],
        table_lock: ContextManager[Any],
    ) -> None:
        """Name the parts of the table.

        Args:
            source: the ring's folder.
            ring: its columns.
            hold_log: called with the table's lock held: see `FolderJournal.hold`.
            table_lock: held for the instant that the copy shows.
        """
        self._source = source
        self._ring = ring
        self._hold_log = hold_log
        self._table_lock = table_lock
        self._one_at_a_time = threading.Lock()
        self.num_taken = 0

    def take(self, target: Path) -> Copied:
        """Copy the ring to `target`, which must not exist.

        Raises:
            UserError: it exists, there is no space, another snapshot is under way, or the ring was overwritten faster
                than it could be copied; nothing is left behind.
        """
        if not self._one_at_a_time.acquire(blocking=False):
            raise UserError("another snapshot is under way; wait until it is done")
        began = time.monotonic()
        aside = target.parent / f".{target.name}.copying"
        try:
            self._refuse(target)
            shutil.rmtree(aside, ignore_errors=True)  # what a process left that was killed while it copied
            for folder in (aside, aside / COLUMNS_FOLDER, aside / CHUNKS_FOLDER):
                folder.mkdir()
                folder.chmod(FOLDER_MODE)
            steps, num_bytes = self._copy(aside)
            aside.rename(target)
            sync_folder(target.parent)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise storage_error(target, error, "the snapshot was given up") from None
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        finally:
            self._one_at_a_time.release()
        self.num_taken += 1
        return Copied(steps, num_bytes, time.monotonic() - began)

    def _refuse(self, target: Path) -> None:
        if not target.is_absolute():
            raise UserError(f"the snapshot's folder {str(target)!r} is no absolute path of the replay's machine")
        if target.exists():
            raise UserError(f"{str(target)!r} exists; a snapshot overwrites nothing: name a folder that does not")
        if not target.parent.is_dir():
            raise UserError(f"{str(target.parent)!r} is no folder of the replay's machine; make it first")
        stats = os.statvfs(target.parent)
        need, free = column_bytes(self._ring.capacity, self._ring.schema), stats.f_bavail * stats.f_frsize
        if need > free:
            raise UserError(
                f"a snapshot takes {in_words(need)}, and {str(target.parent)!r} has {in_words(free)} left: free some "
                "space or name another folder"
            )

    def _copy(self, aside: Path) -> Tuple[int, int]:
        ring = self._ring
        with self._table_lock:
            copy_log = self._hold_log(aside / CHUNKS_FOLDER)
            head, ring_format = ring.committed, self._source.format
        num_bytes = copy_log()
        for spec in all_columns(ring.schema):
            num_bytes += _copy_column(ring.column(spec.name), column_file(aside, spec.name))
        reserved = ring.reserved  # last: whatever was touched while its column was copied lies below
        oldest = max(0, reserved - ring.capacity)
        if oldest >= head > 0:
            raise UserError("the ring was overwritten faster than it could be copied; choose a faster disk")
        _write(aside / GUARDS_FILE, np.array([reserved, head], np.int64).tobytes())
        _write(aside / NONCE_FILE, b"a copy")
        _write(aside / FORMAT_FILE, replace(ring_format, boot_id="").to_bytes())
        for file in aside.rglob("*"):
            if file.is_file():
                _sync(file)
        flags = np.fromfile(column_file(aside, "flags"), np.uint8)
        kept = [flags[slots] for slots, _ in ring.segments(oldest, head - oldest)]
        steps = sum(int(np.count_nonzero(part & VALID)) for part in kept)
        return steps, num_bytes


def _copy_column(column: npt.NDArray[Any], file: Path) -> int:
    data = column.reshape(-1).view(np.uint8).data
    with file.open("wb", buffering=0) as stream:
        os.fchmod(stream.fileno(), FILE_MODE)
        for begin in range(0, len(data), PIECE_BYTES):
            piece = data[begin : begin + PIECE_BYTES]
            if os.write(stream.fileno(), piece) != len(piece):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            time.sleep(PAUSE_S)
    return len(data)


def _write(file: Path, data: bytes) -> None:
    with file.open("wb") as stream:
        os.fchmod(stream.fileno(), FILE_MODE)
        stream.write(data)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
