"""Where the launcher's output goes: plain lines, or lines that scroll above a live view."""

from __future__ import annotations

import threading
from typing import Optional, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text
from typing_extensions import Protocol

from services.cli.live_view import render, status_line
from services.cli.palette import colour_of
from services.cli.snapshot import Snapshot

NAME_WIDTH = 10
STATUS_PERIOD_S = 5.0
REFRESH_PERIOD_S = 0.25
QUIET_LEVELS = ("debug", "info")
LEVEL_STYLES = {"warning": "yellow", "error": "red", "critical": "bold red", "debug": "dim"}
VIEW_HEIGHT = 20


class Screen(Protocol):
    """Takes lines from any thread, snapshots from the main one."""

    def start(self) -> None: ...

    def line(self, process: str, text: str, level: Optional[str]) -> None:
        """Show a line; `level` is None where it has none, such as in a traceback."""

    def show(self, snapshot: Snapshot, now_s: float) -> None:
        """Show the run if it is time to; call it often."""

    def stop(self) -> None: ...


class PlainScreen:
    """Every line with its process before it, and a status line now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next_s = 0.0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Nothing to prepare."""

    def line(self, process: str, text: str, level: Optional[str]) -> None:  # noqa: ARG002 (all are shown)
        with self._lock:
            try:
                self._stream.write(f"{process:<{NAME_WIDTH}} | {text}\n")
                self._stream.flush()
            except (BrokenPipeError, ValueError):
                # Nobody reads any more; the run goes on, its logs are in files.
                return

    def show(self, snapshot: Snapshot, now_s: float) -> None:
        if not self._next_s:
            self._next_s = now_s + STATUS_PERIOD_S
        if now_s >= self._next_s:
            self._next_s = now_s + STATUS_PERIOD_S
            self.line("shoal", status_line(snapshot), None)

    def stop(self) -> None:
        """Nothing to undo."""


class LiveScreen:
    """Lines that matter scroll above the live view."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        """Draw on `console`.

        Args:
            console: of a terminal.
            verbose: show every line, not only warnings and what is no log line.
        """
        self._console = console
        self._verbose = verbose
        self._next_s = 0.0
        self._newest: Optional[Snapshot] = None
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def start(self) -> None:
        self._live.start()

    def line(self, process: str, text: str, level: Optional[str]) -> None:
        if level in QUIET_LEVELS and not self._verbose:
            return
        prefix = (f"{process:<{NAME_WIDTH}} ", colour_of(process))
        # Neither markup nor highlighting: what a process writes is shown as it is.
        body = Text.assemble(prefix, ("│ ", "dim"), (text, LEVEL_STYLES.get(level or "", "")))
        self._console.print(body, highlight=False, soft_wrap=True)

    def show(self, snapshot: Snapshot, now_s: float) -> None:
        self._newest = snapshot
        if now_s >= self._next_s:
            self._next_s = now_s + REFRESH_PERIOD_S
            self._draw(snapshot)

    def stop(self) -> None:
        if self._newest is not None:  # what stays on the terminal is the end, not what was drawn a little before
            self._draw(self._newest)
        self._live.stop()

    def _draw(self, snapshot: Snapshot) -> None:
        size = self._console.size
        height = min(VIEW_HEIGHT, max(1, size.height - 2))
        self._live.update(render(snapshot, size.width, height), refresh=True)


def make_screen(stream: TextIO, *, verbose: bool) -> Screen:
    """A live view on a terminal that can show one, plain lines anywhere else."""
    console = Console(file=stream)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(console, verbose=verbose)
    return PlainScreen(stream)
