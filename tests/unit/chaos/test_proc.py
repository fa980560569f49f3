from __future__ import annotations

import os
import subprocess
import sys
from typing import List

import pytest

from tests.chaos.proc import MARK, Footprint, footprint, marked_processes, state

NONE = Footprint(0, 0, 0)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (Footprint(3, 4, 5), []),
        (Footprint(4, 5, 6), []),
        (Footprint(5, 4, 5), ["5 threads, 3 before"]),
        (Footprint(3, 9, 9), ["9 files, 4 before", "9 mappings, 5 before"]),
    ],
)
def test_growth_beyond_the_slack_is_told(now: Footprint, words: List[str]) -> None:
    assert now.beyond(Footprint(3, 4, 5), Footprint(1, 1, 1)) == words


def test_a_thread_and_a_file_of_a_process_are_seen() -> None:
    grow = "kept = open('/dev/null'); threading.Thread(target=threading.Event().wait, daemon=True).start()"
    code = f"import threading; print(flush=True); input(); {grow}; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = footprint(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        found = {words.split()[1].rstrip(",") for words in footprint(process.pid).beyond(before, NONE)}
        process.communicate(b"\n")
    assert found >= {"threads", "files"}


def test_a_process_is_found_by_its_mark_for_as_long_as_it_lives() -> None:
    mark = f"a-test-of-it-{os.getpid()}"
    words = [sys.executable, "-c", "import sys; print('there', flush=True); sys.stdin.read()"]
    environ = {**os.environ, MARK: mark}
    with subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert list(marked_processes(mark)) == [process.pid]
        assert state(process.pid) in ("S", "R")
    assert marked_processes(mark) == {}
    assert state(process.pid) == ""
