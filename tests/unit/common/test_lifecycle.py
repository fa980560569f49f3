from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any, List

import pytest

from services.common import lifecycle
from services.common.errors import Fenced, UserError
from services.common.lifecycle import LIFELINE_VARIABLE, STOP_BUDGET_S, Lifecycle
from services.common.rpc import Refused, TokenRefused

# Says `ready`, waits for the stop and for the end of its input, says why it came; `hang` never ends by itself.
PROCESS = """
import os, sys, threading
from services.common import lifecycle
if "hang" in sys.argv:
    lifecycle.STOP_BUDGET_S = 0.3
life = lifecycle.Lifecycle()
stops = []
life.on_stop(lambda: stops.append(1))
life.start(os.environ)
print("ready", flush=True)
while not stops:
    life.stopping.wait(0.01)
if "hang" in sys.argv:
    threading.Event().wait()
sys.stdin.read()
print(life.reason, sum(stops), life.was_asked, flush=True)
"""


def _start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        **options,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_process_in_order(number: signal.Signals) -> None:
    process = _start()
    process.send_signal(number)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, f"{number.name} 1 True\n", "")


def test_a_process_that_hangs_in_its_stop_says_where_and_ends() -> None:
    process = _start("hang")
    process.terminate()
    _out, err = process.communicate(timeout=20)
    assert process.returncode == 70
    assert "did not stop within 0.3 s" in err
    assert "wait" in err


def test_the_launchers_death_stops_a_process() -> None:
    read, write = os.pipe()
    process = _start(env={**os.environ, LIFELINE_VARIABLE: str(read)}, pass_fds=[read])
    os.close(read)
    os.write(write, b"x")  # a launcher that lives may write as it likes
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    os.close(write)
    out, _err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "the launcher is gone 1 True\n")


def test_the_first_reason_is_kept_and_callbacks_come_once() -> None:
    life = Lifecycle()
    calls: Any = []
    life.on_stop(lambda: calls.append("before"))
    life.stop("first")
    life.stop("second", asked=True)
    assert (life.reason, life.was_asked) == ("first", False)
    assert calls == ["before"]
    life.on_stop(lambda: calls.append("after"))
    assert calls == ["before", "after"]


def test_last_calls_share_what_is_left_of_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    life, now_s = Lifecycle(), 100.0
    monkeypatch.setattr(lifecycle.time, "monotonic", lambda: now_s)
    assert life.last_s(20.0) == 20.0
    life.stop("test")
    assert (life.last_s(2.0), life.last_s(20.0)) == (2.0, STOP_BUDGET_S / 4)
    now_s += STOP_BUDGET_S - 1.0
    assert life.last_s(2.0) == 0.25
    now_s += 5.0
    assert life.last_s(2.0) == 0.0


def test_a_stop_in_a_foreign_process_sets_no_budget() -> None:
    life = Lifecycle()
    life.stop("over")
    assert "stop-budget" not in [thread.name for thread in threading.enumerate()]


def test_a_failed_thread_stops_the_process_and_is_heard() -> None:
    life = Lifecycle()

    def fail() -> None:
        raise ZeroDivisionError("here")

    life.spawn("worker", fail)
    assert life.stopping.wait(5)
    assert life.reason == "thread worker failed: here"
    with pytest.raises(ZeroDivisionError, match="here"):
        life.check()
    with pytest.raises(ZeroDivisionError, match="here"):
        life.join()


@pytest.mark.parametrize("refusal", [Refused("no"), TokenRefused("no"), Fenced("no")])
def test_a_refusal_hides_no_other_failure(refusal: UserError) -> None:
    life = Lifecycle()
    life.fail(refusal)
    life.fail(UserError("the disk is full"))
    life.fail(refusal)
    life.fail(ValueError("third"))
    with pytest.raises(UserError, match="the disk is full"):
        life.check()


def test_the_first_failure_is_the_one_that_is_heard() -> None:
    life, first_failed = Lifecycle(), threading.Event()

    def first() -> None:
        raise KeyError("first")

    def second() -> None:
        first_failed.wait(5)
        raise ValueError("second")

    life.spawn("first", first).join(5)
    thread = life.spawn("second", second)
    first_failed.set()
    thread.join(5)
    with pytest.raises(KeyError):
        life.join()


def test_join_waits_for_every_thread() -> None:
    life = Lifecycle()
    ended: Any = []
    release = threading.Event()

    def work() -> None:
        release.wait(5)
        ended.append(1)

    threads: List[threading.Thread] = [life.spawn(f"worker-{i}", work) for i in range(3)]
    threading.Timer(0.05, release.set).start()
    life.join()
    assert len(ended) == 3
    assert not any(thread.is_alive() for thread in threads)
    life.check()
