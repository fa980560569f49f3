"""A ring's folder: made whole or not at all, owned by one process, every byte of it taken at the start."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import numpy.typing as npt

from services.common.errors import UserError
from services.common.files import storage_error, sync_folder, write_atomically
from services.common.ring_layout import (
    CHUNKS_FOLDER,
    COLUMNS_FOLDER,
    FILE_MODE,
    FOLDER_MODE,
    FORMAT_FILE,
    GUARDS_FILE,
    LOCK_FILE,
    NONCE_FILE,
    NUM_GUARDS,
    RingFormat,
    all_columns,
    column_file,
    map_array,
    read_format,
)
from services.common.schema import Schema
from services.replay.chunk_log import SEGMENT_BYTES, ChunkLog
from services.replay.footprint import TableTooLarge, column_bytes, in_words

LOCK_PATIENCE_S = 1.0  # a process that was killed holds its lock until the kernel has taken it down
POPULATE_WRITE = 23  # madvise: take the pages in, writable, and change nothing (Linux 5.14)


def _write_nonce(folder: Path, nonce: str) -> None:
    """Whole or not there, and no matter if the machine stops: the next life writes its own."""
    aside = folder / f".{NONCE_FILE}"
    aside.write_text(nonce, encoding="ascii")
    aside.chmod(FILE_MODE)
    aside.replace(folder / NONCE_FILE)


def boot_id() -> str:
    """This life of this machine: page cache survives a process, not a machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class RingFolder:
    """The open folder; `close` gives it up, and so does the end of the process."""

    def __init__(self, path: Path, lock: int, ring_format: RingFormat, nonce: str, segment_bytes: int) -> None:
        """Take over an opened folder: `RingFolder.create` and `RingFolder.open` do it."""
        self.path = path
        self.format = ring_format
        self.nonce = nonce
        self._lock = lock
        self._columns: List[mmap.mmap] = []
        self._mappings: List[mmap.mmap] = []  # columns whose pages are still to be taken in
        self._populated = 0  # bytes of the first of them that are
        self.guards: npt.NDArray[np.int64]
        self.guards, self._guards_mapping = map_array(path / GUARDS_FILE, "int64", (NUM_GUARDS,), writable=True)
        self.log = ChunkLog(path / CHUNKS_FOLDER, segment_bytes)
        self.is_same_boot = ring_format.boot_id == boot_id()

    @classmethod
    def create(cls, path: Path, ring_format: RingFormat, nonce: str, segment_bytes: int = SEGMENT_BYTES) -> RingFolder:
        """Make the folder with an empty ring in it, aside first, so that it is whole or not there.

        Args:
            path: must not exist.
            ring_format: what the ring is to be; its boot id is set here.
            nonce: what readers on this machine find.
            segment_bytes: size of the chunk log's files.

        Raises:
            UserError: no space, no permission, or another process makes the same ring; nothing is left behind.
        """
        aside = path.parent / f".{path.name}.making"
        need = f"the ring of {ring_format.capacity} rows takes {in_words(column_bytes(*_size(ring_format)))}"
        lock = -1
        try:
            path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            _clear(aside)
            for folder in (aside, aside / COLUMNS_FOLDER, aside / CHUNKS_FOLDER):
                folder.mkdir()
                folder.chmod(FOLDER_MODE)
            lock = take_lock(aside)
            _check_space(aside, ring_format)
            for spec in all_columns(ring_format.schema):
                take_space(column_file(aside, spec.name), spec.row_bytes * ring_format.capacity)
            take_space(aside / GUARDS_FILE, NUM_GUARDS * 8)
            _write_nonce(aside, nonce)
            ring_format = replace(ring_format, boot_id=boot_id(), keys_id=secrets.randbits(62))
            write_atomically(aside / FORMAT_FILE, ring_format.to_bytes(), FILE_MODE)
            aside.rename(path)
            sync_folder(path.parent)
        except (OSError, UserError) as error:
            if lock >= 0:
                shutil.rmtree(aside, ignore_errors=True)
                os.close(lock)
            if isinstance(error, OSError):
                raise storage_error(path, error, need) from None
            raise
        return cls(path, lock, ring_format, nonce, segment_bytes)

    @classmethod
    def open(cls, path: Path, nonce: str, segment_bytes: int = SEGMENT_BYTES) -> RingFolder:
        """Take over a folder that holds a ring.

        Raises:
            UserError: another process owns it, it may not be written, or a file is missing or damaged; nothing changed.
        """
        lock = take_lock(path)
        try:
            ring_format = read_format(path)
            folder = cls(path, lock, ring_format, nonce, segment_bytes)
            _write_nonce(path, nonce)
        except OSError as error:
            os.close(lock)
            raise storage_error(path / NONCE_FILE, error, "readers need it") from None
        except BaseException:
            os.close(lock)
            raise
        return folder

    def allocate(self, name: str, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Map a column, writable.

        Raises:
            UserError: its file is missing or has another size.
        """
        column, mapping = map_array(column_file(self.path, name), dtype.name, shape, writable=True)
        self._mappings.append(mapping)
        self._columns.append(mapping)
        return column

    def check_fits(self, capacity: int, schema: Schema) -> None:
        """Compare with what the run asks for.

        Raises:
            UserError: the ring has another capacity or schema; nothing changed.
        """
        where, had = repr(str(self.path)), self.format.capacity
        if had != capacity:
            raise UserError(
                f"the ring in {where} has {had} rows, the run file asks for {capacity}: set replay.capacity = {had}, "
                "or choose another run.name or replay.data_dir"
            )
        if self.format.schema != schema:
            raise UserError(
                f"the ring in {where} holds another experience: {self.format.schema.difference(schema)}; choose "
                "another run.name or replay.data_dir, or the environment of that run"
            )

    def save_format(self, *, n_step: int, discount: float) -> None:
        """Say that the columns hold items of this kind, and that they were last written in this life of the machine.

        After another life of the machine, and in a copy, the log may end earlier than it once did: keys that were given
        out then may be used again, so that they get another id.
        """
        keys_id = self.format.keys_id if self.is_same_boot else secrets.randbits(62)
        wanted = replace(self.format, n_step=n_step, discount=discount, boot_id=boot_id(), keys_id=keys_id)
        if wanted != self.format:
            write_atomically(self.path / FORMAT_FILE, wanted.to_bytes(), FILE_MODE)
            self.format = wanted

    def populate(self, piece_bytes: int) -> bool:
        """Take in the next `piece_bytes` of the columns' pages, so that a first insert finds them; False: no more."""
        while self._mappings:
            mapping, begin = self._mappings[0], self._populated
            if begin >= len(mapping):
                self._mappings.pop(0)
                self._populated = 0
                continue
            try:
                mapping.madvise(POPULATE_WRITE, begin, min(piece_bytes, len(mapping) - begin))
            except OSError:
                return False  # a kernel without it: pages come with the first touch
            self._populated = begin + piece_bytes
            return True
        return False

    def flush(self) -> None:
        """Bring all that is written to the disk: the rows first, then what says that they are there.

        Raises:
            UserError: the disk takes it not.
        """
        try:
            for mapping in (*self._columns, self._guards_mapping):
                mapping.flush()
            self.log.flush()
        except OSError as error:
            raise storage_error(self.path, error, "what lies in memory could not be written") from None

    def close(self) -> None:
        """Give the folder up; what is mapped stays readable and must not be written any more."""
        self.log.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _size(ring_format: RingFormat) -> Tuple[int, Any]:
    return ring_format.capacity, ring_format.schema


def take_lock(path: Path) -> int:
    """Become the owner of a ring's folder; returns the descriptor that holds the lock.

    Raises:
        UserError: another process is.
    """
    file = path / LOCK_FILE
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise storage_error(file, error, "the replay must own its ring") from None
    deadline_s = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(lock)
                raise UserError(
                    f"the ring in {str(path)!r} belongs to the process {owner}, which runs: stop it, or choose another "
                    "run.name or replay.data_dir"
                ) from None
            time.sleep(0.02)
    os.fchmod(lock, FILE_MODE)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def owner_of(path: Path) -> str:
    """The process that owns a ring's folder, or an empty string; takes nothing from it."""
    try:
        lock = os.open(path / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return ""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(lock)
    return ""


def _clear(aside: Path) -> None:
    """Remove what a process left that was killed while it made a ring."""
    if aside.exists():
        lock = take_lock(aside)
        shutil.rmtree(aside)
        os.close(lock)


def _check_space(folder: Path, ring_format: RingFormat) -> None:
    """Refuse a file system that is too small before it is filled up.

    Raises:
        TableTooLarge: it is.
    """
    need = column_bytes(*_size(ring_format)) + SEGMENT_BYTES
    stats = os.statvfs(folder)
    free = stats.f_bavail * stats.f_frsize
    if need <= free:
        return
    advice = "free some space, lower replay.capacity or replay.memory, or choose another replay.data_dir"
    if str(folder.resolve()).startswith("/dev/shm/"):  # noqa: S108 (named, not written to)
        advice = f"a container's /dev/shm is small unless it is started with --shm-size; {advice}"
    raise TableTooLarge(
        f"the ring of {ring_format.capacity} rows takes {in_words(need)}, and {str(folder.parent)!r} has "
        f"{in_words(free)} left: {advice}"
    )


def take_space(file: Path, num_bytes: int) -> None:
    """Make a file of `num_bytes` zeros, all of them on the disk: a mapping without space behind it ends in SIGBUS.

    Raises:
        OSError: there is no space, or the file exists.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        os.fchmod(descriptor, FILE_MODE)
        os.posix_fallocate(descriptor, 0, num_bytes)
    finally:
        os.close(descriptor)
