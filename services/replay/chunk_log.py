"""The chunk log: an append-only file of records in segments that are preallocated, so that an append finds its room.

A segment begins with a summary of all that came before it; segments whose chunks are all overwritten are deleted, and
one in which nothing was inserted is written anew: the log does not grow while no rows come.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Callable, List, NamedTuple

from services.common.errors import EXIT_CRASH, UserError
from services.common.files import files_in, storage_error, sync_folder
from services.common.ring_layout import FILE_MODE

SEGMENT_BYTES = 1 << 20
ASIDE_SUFFIX = ".new"  # of a segment that is being written anew: what a kill leaves of it is of no use
SPARE_BYTES = 1 << 16  # a new segment begins when less is left: far more than the records of one call


class RingBroken(UserError):
    """A record could not be written though its room was taken: memory is ahead of the log, so the process must end.

    Its next life comes back to the last record: unlike other errors of this kind, a restart mends it.
    """

    exit_code = EXIT_CRASH


class Segment(NamedTuple):
    """One file of the log."""

    number: int
    file: Path


def segments_in(folder: Path) -> List[Segment]:
    """The segments of a log, the oldest first."""
    return [Segment(int(file.stem), file) for file in files_in(folder, "*.log") if file.stem.isdigit()]


class ChunkLog:
    """The writing end of a log; not for several threads at once."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Make the log of a folder; the caller says where to go on: `resume`, or `roll` for a fresh one."""
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._descriptor = -1
        self._offset = 0
        self._size = 0
        self._ends: List[int] = []  # next key of the ring when each segment was closed
        self._start = 0  # next key of the ring when the last one began
        self._segments: List[Segment] = []
        self._broken = False

    def resume(self, segments: List[Segment], starts: List[int], end: int) -> None:
        """Go on behind byte `end` of the last of `segments`.

        Args:
            segments: the oldest first.
            starts: next key of the ring in the summary of each.
            end: whatever lies behind it is cleared.
        """
        last = segments[-1].file
        self._descriptor = os.open(last, os.O_RDWR)
        self._size = os.fstat(self._descriptor).st_size
        self._offset = end
        self._segments, self._ends, self._start = list(segments), starts[1:], starts[-1]
        if os.pread(self._descriptor, self._size - end, end).strip(b"\0"):
            os.pwrite(self._descriptor, bytes(self._size - end), end)

    @property
    def is_short(self) -> bool:
        """Whether the next event should find a new segment."""
        return self._size - self._offset < SPARE_BYTES

    @property
    def start(self) -> int:
        """Next key of the ring when the last segment began."""
        return self._start

    @property
    def num_bytes(self) -> int:
        """That its files take."""
        return sum(segment.file.stat().st_size for segment in self._segments)

    def roll(self, summary: bytes, next_key: int, oldest_key: int) -> None:
        """Begin a new segment, and delete those of which every chunk is overwritten.

        Args:
            summary: the record that begins it.
            next_key: of the ring.
            oldest_key: of the ring.

        Raises:
            UserError: there is no room for it; the log goes on in the old one.
        """
        number = self._segments[-1].number + 1 if self._segments else 0
        segment = Segment(number, self._folder / f"{number:08d}.log")
        descriptor = self._create(segment.file, summary)
        if self._segments:
            self._ends.append(next_key)
        self._segments.append(segment)
        self._go_on_in(descriptor, len(summary))
        self._start = next_key
        while self._ends and self._ends[0] <= oldest_key:
            self._segments[0].file.unlink()
            del self._segments[0], self._ends[0]

    def rewrite(self, records: bytes) -> None:
        """Let `records` be all that the last segment holds; a crash at any instant leaves the old one or the new one.

        Raises:
            UserError: there is no room for it; the log goes on in the old one.
        """
        file = self._segments[-1].file
        aside = file.with_suffix(ASIDE_SUFFIX)
        need = "the chunk log begins this segment anew"
        try:
            with contextlib.suppress(FileNotFoundError):  # what is left of an earlier life
                aside.unlink()
        except OSError as error:
            raise storage_error(aside, error, need) from None
        descriptor = self._create(aside, records)
        try:
            os.fsync(descriptor)
            aside.replace(file)
        except OSError as error:
            os.close(descriptor)
            raise storage_error(file, error, need) from None
        self._go_on_in(descriptor, len(records))
        with contextlib.suppress(OSError):  # until `flush` does it, a crash of the machine may cost what follows
            sync_folder(self._folder)

    def _create(self, file: Path, records: bytes) -> int:
        """Make a segment's file that begins with `records` and has room for more; returns its descriptor."""
        descriptor = -1
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
            os.fchmod(descriptor, FILE_MODE)
            os.posix_fallocate(descriptor, 0, max(self._segment_bytes, 2 * len(records) + 4 * SPARE_BYTES))
            os.pwrite(descriptor, records, 0)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
                file.unlink()
            raise storage_error(file, error, "the chunk log needs a new segment") from None
        return descriptor

    def _go_on_in(self, descriptor: int, offset: int) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._offset, self._size = descriptor, offset, os.fstat(descriptor).st_size

    def append(self, record: bytes) -> None:
        """Write one record: from here on, what it tells has happened.

        Raises:
            RingBroken: it could not be written; the log takes nothing more.
        """
        if self._broken or self._offset + len(record) > self._size:
            self._broken = True
            raise RingBroken(f"the chunk log {str(self._segments[-1].file)!r} takes no record: restart the replay")
        try:
            written = os.pwrite(self._descriptor, record, self._offset)
        except OSError as error:
            self._broken = True
            raise RingBroken(str(storage_error(self._segments[-1].file, error, "a record is lost"))) from None
        if written != len(record):
            self._broken = True
            raise RingBroken(f"the chunk log {str(self._segments[-1].file)!r} took half a record: is its disk full?")
        self._offset += len(record)

    def flush(self) -> None:
        """Bring every segment to the disk; any thread may call it, since it writes nothing itself."""
        for segment in list(self._segments):
            with contextlib.suppress(FileNotFoundError):  # every chunk of it was overwritten meanwhile
                descriptor = os.open(segment.file, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        sync_folder(self._folder)

    def copy_into(self, folder: Path) -> Callable[[], int]:
        """Hold the log as it is now; the call of what is returned writes it to `folder` and says how many bytes."""
        with contextlib.ExitStack() as opening:
            held = [opening.enter_context(segment.file.open("rb")) for segment in self._segments]
            opened, end = opening.pop_all(), self._offset

        def copy() -> int:
            total = 0
            with opened:
                for source in held:
                    data = source.read() if source is not held[-1] else source.read(end)
                    # Room behind the last record, so that the copy can be opened like any ring.
                    data += bytes(max(0, self._segment_bytes - len(data)))
                    file = folder / Path(source.name).name
                    file.write_bytes(data)
                    file.chmod(FILE_MODE)
                    total += len(data)
            return total

        return copy

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._broken = True
