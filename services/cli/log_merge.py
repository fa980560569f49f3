"""The output of all processes: each to a file of its own, and all to the terminal."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Dict, List, Optional

from services.cli.screen import Screen

LEVELS = ("debug", "info", "warning", "error", "critical")
_LOG_LINE = re.compile(r"^\d\d:\d\d:\d\d (debug|info|warning|error|critical)\b")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
LAUNCHER = "shoal"


def level_of(line: str) -> Optional[str]:
    """The level of a log line; None for anything else, such as a line of a traceback."""
    match = _LOG_LINE.match(line)
    return match.group(1) if match else None


def clean(line: bytes) -> str:
    """A line as text that cannot move the cursor or ring the bell."""
    return _CONTROL.sub("", line.decode("utf-8", "replace").rstrip("\r\n"))


class LogMerge:
    """Takes lines from any thread. A disk that is full costs the file, never the run."""

    def __init__(self, folder: Path, screen: Screen, *, max_file_bytes: int, max_old_files: int) -> None:
        """Open no file yet.

        Args:
            folder: holds `<process>.log`, appended to, and what was moved aside: `<process>.log.1` the newest of it.
            screen: shows the lines.
            max_file_bytes: a file that would grow beyond it is moved aside first.
            max_old_files: files of a process that are kept beside the one that grows.
        """
        if max_file_bytes < 1 or max_old_files < 0:
            raise ValueError(f"max_file_bytes is {max_file_bytes} and max_old_files {max_old_files}; 1 and 0 at least")
        self._folder = folder
        self._screen = screen
        self._max_file_bytes = max_file_bytes
        self._max_old_files = max_old_files
        self._files: Dict[str, int] = {}
        self._sizes_bytes: Dict[str, int] = {}
        self._lost: List[str] = []
        self._lock = threading.Lock()

    def line(self, process: str, raw: bytes) -> None:
        """One line that a process wrote."""
        text = clean(raw)
        with self._lock:
            trouble = self._append(process, text)
            self._screen.line(process, text, level_of(text))
            if trouble:
                self._screen.line(LAUNCHER, trouble, "warning")

    def note(self, text: str, level: str = "info") -> None:
        """One line of the launcher's own, always shown."""
        text = f"{time.strftime('%H:%M:%S')} {level:<7} {text}"
        with self._lock:
            self._append(LAUNCHER, text)
            self._screen.line(LAUNCHER, text, None if level == "info" else level)

    def close(self) -> None:
        with self._lock:
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()
            self._lost = ["*"]

    def _append(self, process: str, text: str) -> str:
        """Write to the process's file; a sentence when that failed for the first time."""
        if process in self._lost or self._lost == ["*"]:
            return ""
        path = self._folder / f"{process}.log"
        data = f"{text}\n".encode()
        try:
            if process not in self._files:
                self._open(process, path)
            if 0 < self._sizes_bytes[process] > self._max_file_bytes - len(data):
                os.close(self._files.pop(process))
                self._move_aside(path)
                self._open(process, path)
            self._sizes_bytes[process] += os.write(self._files[process], data)
        except OSError as error:
            self._lost.append(process)
            return f"cannot write {path}: {error.strerror}; its further lines are shown here only"
        return ""

    def _open(self, process: str, path: Path) -> None:
        descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._files[process] = descriptor
        self._sizes_bytes[process] = os.fstat(descriptor).st_size

    def _move_aside(self, path: Path) -> None:
        """Give each file of a process the next number; the last one makes room."""
        numbered = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, self._max_old_files + 1))]
        for newer, older in reversed(list(zip(numbered, numbered[1:]))):
            if newer.exists():
                newer.replace(older)
        if not self._max_old_files:
            path.unlink()
