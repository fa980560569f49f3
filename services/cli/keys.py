"""Single keys from a terminal, without Enter."""

from __future__ import annotations

import os
import select
import termios
import time
import tty
from types import TracebackType
from typing import Any, List, Optional, TextIO, Type

from typing_extensions import Self


class Keys:
    """While it is entered, keys come one by one and are not shown; where there is no terminal, none comes."""

    def __init__(self, stream: TextIO) -> None:
        """Name the stream that keys come from, as sys.stdin."""
        self._stream = stream
        self._before: Optional[List[Any]] = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
            self._before = termios.tcgetattr(self._stream)
            tty.setcbreak(self._stream)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(self._stream, termios.TCSADRAIN, self._before)

    def read(self, timeout_s: float) -> str:
        """The next key, or nothing after `timeout_s`."""
        if self._before is None:
            time.sleep(timeout_s)
            return ""
        ready, _, _ = select.select([self._stream], [], [], timeout_s)
        return os.read(self._stream.fileno(), 1).decode("ascii", "ignore") if ready else ""
