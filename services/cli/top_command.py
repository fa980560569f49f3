"""`shoal top`: a running system, here or elsewhere, as a live view; or one frame of it, as text or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import Any, Dict, Sequence, TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from services.cli.arguments import add_target, split_overrides
from services.cli.flow_view import SORTS, flow_lines, snapshot_of
from services.cli.keys import Keys
from services.cli.live_view import render
from services.cli.operator import Operator
from services.cli.poller import Poller
from services.cli.snapshot import TrainingState
from services.cli.target import find_target
from services.common.errors import EXIT_OK

EXIT_SILENT = 1
TIMEOUT_S = 2.0
ONCE_GAP_S = 1.0  # between the two looks of one frame: rates need two
FRAME_S = 0.5
FRAME_WIDTH = 120  # of a frame that goes to no terminal
MAX_OTHERS = 3  # waits of what is no process, such as a drain
FIXED_ROWS = 20  # of a frame, beside a row a process
HELP = "q quits · s sorts by"


class Top:
    """The view of one system."""

    def __init__(self, poller: Poller, run: str, sort: str) -> None:
        """Draw what `poller` knows.

        Args:
            poller: of the system.
            run: what the system is called.
            sort: of the actors, one of SORTS.
        """
        self._poller = poller
        self._run = run
        self._sort = sort

    def frame(self, width: int, height: int) -> RenderableType:
        """What is known now, for a terminal of this size."""
        training = self._poller.state()
        snapshot = snapshot_of(training, self._run, self._sort)
        hint = f"{HELP} {SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]}"
        named = {process.name for process in snapshot.processes}
        others = [wait for wait in training.waits if wait.who not in named][:MAX_OTHERS]
        lines = [*flow_lines(training), *(_one_line(f" {wait.who}: {wait.short()}") for wait in others)]
        return render(snapshot, width, height, hint, lines)

    def press(self, key: str) -> bool:
        """Act on a key; False: it is over."""
        if key == "s":
            self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        return key != "q"

    def live(self, console: Console, keys: Keys) -> None:
        """Draw until q."""
        with keys, Live(console=console, screen=True, auto_refresh=False) as live:
            goes_on = True
            while goes_on:
                live.update(self.frame(console.size.width, console.size.height - 1), refresh=True)
                goes_on = self.press(keys.read(FRAME_S))

    def once(self, out: TextIO, *, as_json: bool) -> int:
        """Write one frame, of two looks at the system; returns the exit code."""
        self._poller.look()
        time.sleep(ONCE_GAP_S)
        training = self._poller.look()
        if as_json:
            out.write(json.dumps(facts(training, self._run, self._sort)) + "\n")
        else:
            rows = FIXED_ROWS + len(training.actors) + len(training.readers) + len(training.helpers)
            console = Console(file=out, width=FRAME_WIDTH)
            console.print(self.frame(FRAME_WIDTH, rows))
        is_whole = training.replay is not None and training.learner is not None
        is_silent = not is_whole or any(each.silent_s for each in (training.replay, training.learner) if each)
        return EXIT_SILENT if is_silent or training.problem else EXIT_OK


def _one_line(text: str) -> Text:
    return Text(text, style="yellow", no_wrap=True, overflow="ellipsis")


def facts(training: TrainingState, run: str, sort: str) -> Dict[str, Any]:
    """The frame as an object of `--json`."""
    snapshot = snapshot_of(training, run, sort)
    return {"run": run, "processes": [asdict(each) for each in snapshot.processes], **asdict(training)}


def run(words: Sequence[str], out: TextIO) -> int:
    """Show the system until q, or write one frame; returns the exit code.

    Raises:
        UserError: what the user can mend.
    """
    rest, overrides = split_overrides(words)
    options = parser().parse_args(rest)
    target = find_target(options.target, overrides)
    poller = Poller(Operator(target.addresses, target.security), timeout_s=TIMEOUT_S)
    top = Top(poller, target.name, options.sort)
    console = Console(file=out)
    try:
        if options.once or options.json or not console.is_terminal or console.is_dumb_terminal:
            return top.once(out, as_json=options.json)
        poller.start()
        top.live(console, Keys(sys.stdin))
    except KeyboardInterrupt:  # as usual a way to quit
        return EXIT_OK
    finally:
        poller.stop()
    return EXIT_OK


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="shoal top",
        description="Watch a running system: the way of the data with rates, depths and lags, each actor, who waits "
        "for what, who is silent. Keys: q quits, s sorts. Where the output is no terminal it is one frame. Exit code "
        "of one frame: 0; 1: replay or learner does not answer.",
        allow_abbrev=False,
    )
    add_target(made)
    made.add_argument("--once", action="store_true", help="write one frame, and end")
    made.add_argument("--json", action="store_true", help="write one frame as an object, and end")
    made.add_argument("--sort", choices=SORTS, default=SORTS[0], help=f"order of the actors; else by {SORTS[0]}")
    return made
