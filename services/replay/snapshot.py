"""Snapshots: a consistent copy of a ring's folder while traffic goes on.

The log and the newest rows are held at one instant, then older and older rows are copied without a lock, while traffic
overwrites the ring from its other end. Where the two meet the copy ends, so that no traffic is too fast for it and no
disk too slow. `reserved` tells an opened copy where that was: it gives the rows before up like those of a chunk that
was never acknowledged, and counts them.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Callable, ContextManager, List, Mapping, Tuple

import numpy as np
import numpy.typing as npt

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
from services.replay.footprint import column_bytes, in_words, row_bytes
from services.replay.item_store import ItemStore
from services.replay.items import ITEM, OPEN
from services.replay.ring import Ring
from services.replay.ring_folder import RingFolder, take_space

PIECE_BYTES = 1 << 19  # of rows in memory at once: less than 0.1 ms, for which the first piece has the table's lock
PAUSE_S = 1e-3  # between two pieces: the copy leaves others most of a core


@dataclass(frozen=True)
class Copied:
    """What a snapshot brought."""

    steps: int  # that come back when the copy is opened: those of its whole chunks
    num_bytes: int
    seconds: float


class Snapshots:
    """Takes snapshots of one ring, one at a time."""

    def __init__(
        self,
        source: RingFolder,
        store: ItemStore,
        hold_log: Callable[[Path], Callable[[], int]],
        table_lock: ContextManager[Any],
    ) -> None:
        """Name the parts of the table.

        Args:
            source: the ring's folder.
            store: its columns, and where chunks begin.
            hold_log: called with the table's lock held: see `FolderJournal.hold`.
            table_lock: held for the instant that the copy shows.
        """
        self._source = source
        self._store = store
        self._hold_log = hold_log
        self._table_lock = table_lock
        self._one_at_a_time = threading.Lock()
        self.num_taken = 0

    def take(self, target: Path) -> Copied:
        """Copy the ring to `target`, which must not exist.

        Raises:
            UserError: it exists, there is no space, another snapshot is under way, or no chunk could be copied before
                it was overwritten; nothing is left behind.
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
        ring = self._store.ring
        need, free = column_bytes(ring.capacity, ring.schema), stats.f_bavail * stats.f_frsize
        if need > free:
            raise UserError(
                f"a snapshot takes {in_words(need)}, and {str(target.parent)!r} has {in_words(free)} left: free some "
                "space or name another folder"
            )

    def _copy(self, aside: Path) -> Tuple[int, int]:
        ring = self._store.ring
        with ExitStack() as opened:
            files = {}
            for spec in all_columns(ring.schema):
                file = column_file(aside, spec.name)
                take_space(file, spec.row_bytes * ring.capacity)
                files[spec.name] = opened.enter_context(file.open("r+b", buffering=0))
            with self._table_lock:
                head, ring_format = ring.committed, self._source.format
                piece = _Piece.hold(ring, head)
                first_keys, status = self._store.stamps.first_keys(), ring.status.copy()
                copy_log = self._hold_log(aside / CHUNKS_FOLDER)
            num_bytes, oldest = copy_log() + column_bytes(ring.capacity, ring.schema), head
            while piece.first_key < oldest:
                piece.write(files)
                oldest = piece.first_key
                _let_others_run()
                piece = _Piece.hold(ring, oldest)
        whole = first_keys[first_keys >= oldest]
        if oldest > max(0, head - ring.capacity) and not len(whole):
            raise UserError("no chunk could be copied before it was overwritten; choose a larger ring")
        reserved = oldest + ring.capacity if oldest > 0 else head
        _write(aside / GUARDS_FILE, np.array([reserved, head], np.int64).tobytes())
        _write(aside / NONCE_FILE, b"a copy")
        _write(aside / FORMAT_FILE, replace(ring_format, boot_id="").to_bytes())
        for file in aside.rglob("*"):
            if file.is_file():
                _sync(file)
        return _count_steps(ring, status, int(whole.min(initial=head)), head), num_bytes


def _count_steps(ring: Ring, status: npt.NDArray[np.uint8], begin: int, end: int) -> int:
    """Steps between two keys by the status of all rows, <uint8>[capacity], at the instant that the copy shows."""
    parts = [status[slots] for slots, _ in ring.segments(begin, end - begin)]
    return sum(int(np.count_nonzero((part == OPEN) | (part == ITEM))) for part in parts)


@dataclass(frozen=True)
class _Piece:
    """Neighbouring rows in memory."""

    first_key: int
    parts: List[Tuple[str, int, npt.NDArray[Any]]]  # column, byte in its file, rows

    @classmethod
    def hold(cls, ring: Ring, end: int) -> _Piece:
        """Copy the youngest rows before the key `end`; `first_key` is `end` where none is left."""
        first_key = min(max(end - max(1, PIECE_BYTES // row_bytes(ring.schema)), ring.oldest_key), end)
        parts = [
            (spec.name, slots.start * spec.row_bytes, ring.column(spec.name)[slots].copy())
            for spec in all_columns(ring.schema)
            for slots, _ in ring.segments(first_key, end - first_key)
        ]
        # Asked again: whatever was overwritten while it was copied lies before the oldest row of now.
        return cls(min(max(first_key, ring.oldest_key), end), parts)

    def write(self, files: Mapping[str, IO[bytes]]) -> None:
        """Write the rows to where they belong in the columns' files."""
        for column, offset, rows in self.parts:
            if os.pwrite(files[column].fileno(), rows.data, offset) != rows.nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _let_others_run() -> None:
    time.sleep(PAUSE_S)


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
