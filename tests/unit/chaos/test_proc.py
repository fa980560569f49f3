from __future__ import annotations

import os
import subprocess
import sys
import threading
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


def test_a_thread_and_a_file_of_this_process_are_seen() -> None:
    stop = threading.Event()
    before = footprint(os.getpid())
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with open(os.devnull):  # noqa: PTH123 (a descriptor is what is wanted)
            assert {words.split()[1].rstrip(",") for words in footprint(os.getpid()).beyond(before, NONE)} >= {
                "threads",
                "files",
            }
    finally:
        stop.set()
        thread.join()


def test_a_process_is_found_by_its_mark_for_as_long_as_it_lives() -> None:
    words = [sys.executable, "-c", "import sys; print('there', flush=True); sys.stdin.read()"]
    environ = {**os.environ, MARK: "a-test-of-it"}
    with subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert list(marked_processes("a-test-of-it")) == [process.pid]
        assert state(process.pid) in ("S", "R")
    assert marked_processes("a-test-of-it") == {}
    assert state(process.pid) == ""
