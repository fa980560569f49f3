"""One watched process: started by exec in a session of its own, its output read line by line."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from typing import IO, Callable, Deque, Optional, Sequence

from services.cli.plan import ChildSpec

MAX_LINE_BYTES = 64 * 1024  # a longer line comes in pieces, so that no child can fill the launcher's memory
KEPT_LINES = 50
LAST_WORDS_S = 1.0


class Child:
    """A process and its output; it may be started again after it has ended."""

    def __init__(self, spec: ChildSpec, on_line: Callable[[str, bytes], None], inherited: Sequence[int]) -> None:
        """Prepare a process.

        Args:
            spec: what to start.
            on_line: called with the process's name and each line, on a thread of this child.
            inherited: descriptors that the process keeps open.
        """
        self.spec = spec
        self.tail: Deque[str] = deque(maxlen=KEPT_LINES)  # the newest lines of this life
        self._on_line = on_line
        self._inherited = tuple(inherited)
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._reader: Optional[threading.Thread] = None

    @property
    def pid(self) -> int:
        """Of the newest life; 0 before the first."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start the process; Ctrl-C in the terminal reaches the launcher alone, which stops children in order."""
        self.tail.clear()
        self._process = subprocess.Popen(
            self.spec.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(self.spec.environ),
            pass_fds=self._inherited,
            start_new_session=True,
        )
        stream = self._process.stdout
        if stream is None:
            raise AssertionError("a process started with a pipe has one")
        self._reader = threading.Thread(target=self._read, args=(stream,), name=f"read-{self.spec.name}", daemon=True)
        self._reader.start()

    def exit_code(self) -> Optional[int]:
        """None while it lives; negative for a signal. Before the first start: None."""
        return self._process.poll() if self._process is not None else None

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def terminate(self) -> None:
        """Ask it to stop."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End it and all that it started."""
        if self._process is not None and self._process.poll() is None:
            # Not yet waited for, so its number is still its own, and its group's.
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end; after `kill` that is at once."""
        if self._process is not None:
            self._process.wait()

    def drain(self) -> None:
        """After its end: wait shortly for what it still said; a grandchild may hold the pipe open for longer."""
        if self._reader is not None:
            self._reader.join(LAST_WORDS_S)

    def last_words(self) -> str:
        """What it said about its end: from the last line that begins with `shoal`, else the last line."""
        lines = [line for line in self.tail if line.strip()]
        for index in range(len(lines) - 1, -1, -1):
            head, colon, sentence = lines[index].partition(": ")
            if colon and head.split(" ")[0] == "shoal":
                return "\n".join([sentence, *lines[index + 1 :]])
        return lines[-1] if lines else "it said nothing"

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in iter(lambda: stream.readline(MAX_LINE_BYTES), b""):
                self.tail.append(line.decode("utf-8", "replace").rstrip("\r\n"))
                self._on_line(self.spec.name, line)
