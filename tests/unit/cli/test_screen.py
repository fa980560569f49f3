from __future__ import annotations

import io

from rich.console import Console

from services.cli.screen import STATUS_PERIOD_S, LiveScreen, PlainScreen, make_screen
from services.cli.snapshot import ProcessState, Snapshot

SNAPSHOT = Snapshot("a", "training", 1.0, (ProcessState("replay", "running"),))


class Gone(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_plain_lines_have_their_process_before_them():
    stream = io.StringIO()
    PlainScreen(stream).line("actor-0", "12:00:00 info    [x] y", "info")
    assert stream.getvalue() == "actor-0    | 12:00:00 info    [x] y\n"


def test_plain_status_comes_by_period():
    stream = io.StringIO()
    screen = PlainScreen(stream)
    for tick in range(101):
        screen.show(SNAPSHOT, 100.0 + tick * STATUS_PERIOD_S / 50)
    assert stream.getvalue().count("training") == 2


def test_nobody_reading_is_no_error():
    screen = PlainScreen(Gone())
    screen.line("replay", "x", None)
    assert not screen._stream.getvalue()


def live(verbose):
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30, color_system=None)
    screen = LiveScreen(console, verbose=verbose)
    screen.start()
    screen.show(SNAPSHOT, 1.0)
    screen.line("replay", "12:00:00 info    calm", "info")
    screen.line("replay", "12:00:00 warning [b]hot[/b]", "warning")
    screen.line("replay", '  File "x.py", line 1', None)
    screen.stop()
    return console.file.getvalue()


def test_above_the_live_view_only_what_matters_scrolls():
    shown = live(verbose=False)
    assert "calm" not in shown
    assert "warning [b]hot[/b]" in shown
    assert 'File "x.py", line 1' in shown
    assert "not answered yet" in shown


def test_verbose_shows_all():
    assert "calm" in live(verbose=True)


def test_a_file_gets_plain_lines(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(make_screen(io.StringIO(), verbose=False), PlainScreen)
