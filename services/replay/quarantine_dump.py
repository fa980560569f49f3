"""Quarantine dumps: what led to a value that is not finite, as a file that a person can load and step through again."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Callable, Dict, List, Tuple

from services.common.errors import UserError
from services.common.files import write_atomically
from services.common.log import Log
from services.common.sealed import seal
from services.common.sick_lane import SickLane

PERIOD_S = 60.0  # between two files of one lane: a broken simulator would push the first evidence out in a second
MAX_KNOWN_LANES = 65_536
PREFIX, SUFFIX = "quarantine-", ".safetensors"


class QuarantineDump:
    """Writes sick lanes into a folder that stays bounded: the oldest files make room.

    Nothing that goes wrong here reaches the caller: it is counted and logged, and the replay goes on.
    """

    def __init__(
        self, folder: Path, *, max_files: int, max_bytes: int, log: Log, now_s: Callable[[], float] = time.time
    ) -> None:
        """Make the dump; its folder is made with the first file.

        Args:
            folder: for the files; other files in it are left alone.
            max_files: that are kept.
            max_bytes: of all files that are kept.
            log: hears of files and of failures.
            now_s: wall clock, seconds since 1970.
        """
        if max_files < 1 or max_bytes < 1:
            raise ValueError(f"max_files is {max_files} and max_bytes {max_bytes}; each must be at least 1")
        self._folder = folder
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._log = log
        self._now_s = now_s
        self._lock = threading.Lock()
        self._written_at_s: Dict[Tuple[str, int, int], float] = {}
        self.written = 0
        self.failed = 0

    def write(self, lane: SickLane) -> None:
        """Write one sick lane, unless it was written within the last minute."""
        key = (lane.actor, lane.lane_group, lane.lane)
        with self._lock:
            now_s = self._now_s()
            if 0.0 <= now_s - self._written_at_s.get(key, -PERIOD_S) < PERIOD_S:
                return
            if len(self._written_at_s) >= MAX_KNOWN_LANES:
                self._written_at_s.clear()
            self._written_at_s[key] = now_s
            self._write(lane, now_s)

    def _write(self, lane: SickLane, now_s: float) -> None:
        actor = re.sub(r"[^A-Za-z0-9_-]", "_", lane.actor)[:64]  # whatever a peer calls itself names no other folder
        name = f"{PREFIX}{actor}-{int(now_s * 1000)}-{lane.lane_group}-{lane.lane}{SUFFIX}"
        facts = {key: value for key, value in asdict(lane).items() if key != "columns"}
        try:
            data = seal(lane.columns, {**facts, "written_at_s": now_s})
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._make_room(len(data))
            write_atomically(self._folder / name, data)
        except (OSError, UserError) as error:
            self.failed += 1
            self._log.warning(
                "a quarantined lane could not be written", chunk=lane.chunk, lane=lane.lane, reason=str(error)
            )
            return
        self.written += 1
        self._log.info(
            "a quarantined lane is written",
            chunk=lane.chunk,
            lane=lane.lane,
            file=str(self._folder / name),
            columns=",".join(lane.bad_columns),
        )

    def _make_room(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise UserError(f"it takes {size_bytes} bytes, and all dumps together may take {self._max_bytes}")
        files: List[Tuple[int, Path, int]] = []
        for path in self._folder.glob(f"{PREFIX}*{SUFFIX}"):
            status = path.stat()
            files.append((status.st_mtime_ns, path, status.st_size))
        files.sort()
        kept = sum(size for _, _, size in files)
        while files and (len(files) >= self._max_files or kept + size_bytes > self._max_bytes):
            _, path, size = files.pop(0)
            path.unlink()
            kept -= size
