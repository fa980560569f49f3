from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from services.cli.child import MAX_LINE_BYTES, Child
from services.cli.plan import ChildSpec


def make(code, inherited=()):
    lines = []
    spec = ChildSpec("actor-0", "actor", (sys.executable, "-c", code), dict(os.environ))
    return Child(spec, lambda name, line: lines.append((name, line)), inherited), lines


def ended(child, within_s=10.0):
    deadline = time.monotonic() + within_s
    while child.exit_code() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.drain()
    return child.exit_code()


def test_both_streams_arrive_as_lines():
    child, lines = make("import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(7)")
    assert child.pid == 0
    child.start()
    assert ended(child) == 7
    assert lines == [("actor-0", b"out\n"), ("actor-0", b"err\n")]


def test_a_life_without_end_of_line_is_heard_in_pieces():
    child, lines = make(f"print('x' * {2 * MAX_LINE_BYTES + 5}, end='')")
    child.start()
    ended(child)
    assert [len(line) for _name, line in lines] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 5]


def test_a_child_can_be_started_again():
    child, _lines = make("print('words')")
    child.start()
    ended(child)
    first = child.pid
    child.start()
    ended(child)
    assert child.pid != first
    assert list(child.tail) == ["words"]


def test_last_words_are_the_sentence_of_a_mistake():
    child, _lines = make("print('12:00:00 info x'); print('shoal replay: the disk is full: x\\nsecond: line')")
    child.start()
    ended(child)
    assert child.last_words() == "the disk is full: x\nsecond: line"


def test_last_words_of_a_crash_are_the_last_line():
    child, _lines = make("raise ValueError('no')")
    child.start()
    ended(child)
    assert child.last_words() == "ValueError: no"


def test_last_words_of_the_silent():
    child, _lines = make("")
    child.start()
    ended(child)
    assert child.last_words() == "it said nothing"


def test_kill_ends_grandchildren_too():
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    child, lines = make(code)
    child.start()
    deadline = time.monotonic() + 10
    while not lines:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    grandchild = int(lines[0][1])
    child.kill()
    assert ended(child) == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while is_running(grandchild):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
