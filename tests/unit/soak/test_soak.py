from __future__ import annotations

import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List

import pytest

from tests.soak import __main__ as soak
from tests.soak.latencies import Verdict
from tests.soak.readings import Series


@pytest.mark.parametrize(
    ("verdict", "is_quick", "code"),
    [
        (Verdict(), False, 0),
        (Verdict(faults=["threads grew"]), True, 1),
        (Verdict(not_tested=["insert p50: noise"]), True, 0),
        (Verdict(not_tested=["insert p50: noise"]), False, 1),
    ],
)
def test_what_was_not_tested_is_said_last_and_fails_a_full_soak(
    verdict: Verdict, is_quick: bool, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert soak.conclude(verdict, is_quick=is_quick) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("NOT TESTED: insert p50") == bool(verdict.not_tested)


class Traffic:
    """A replay that counts chunks; after some of them its inserts fail, and after some rows it counts no more."""

    def __init__(self, lasts: int, most_rows: float = math.inf) -> None:
        self.lasts = lasts
        self.most_rows = most_rows
        self.rows = 0.0

    def fill(self, num_rows: int) -> None:
        self.rows += 2 * num_rows

    def insert(self) -> float:
        self.lasts -= 1
        if self.lasts < 0:
            raise AssertionError("refused")
        self.rows = min(self.rows + 128, self.most_rows)
        threading.Event().wait(0.001)
        return 0.001

    def sample(self) -> float:
        threading.Event().wait(0.001)
        return 0.001

    def info(self) -> Any:
        return SimpleNamespace(steps=SimpleNamespace(acknowledged=self.rows))


@pytest.fixture(autouse=True)
def _flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Series, "faults", lambda self: [])


def test_a_load_that_fails_on_its_way_is_a_fault_though_nothing_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "time", SimpleNamespace(monotonic=lambda: 0.0))
    faults = soak._at_full_speed(Traffic(10_000), _own_pid(), 0.3, 0, "it")
    assert faults == []
    faults = soak._at_full_speed(Traffic(20), _own_pid(), 5.0, 0, "it")
    assert faults[0] == "insert number 21 failed: AssertionError: refused"
    assert "full speed ended after 0 of 5 s" in faults[1]


def test_a_ring_that_is_written_too_seldom_is_a_fault() -> None:
    traffic = Traffic(10**9, most_rows=(2 + 49) * soak.CAPACITY)  # twice while it is filled
    (fault,) = soak._at_full_speed(traffic, _own_pid(), 0.3, 50, "it")
    assert fault.endswith("times, and not 50")


def test_a_part_that_ends_early_is_a_fault_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: List[str] = []

    def end(folder: Path, seconds: float, wraps: int, age: Any) -> Verdict:
        ran.append(age.name)
        raise FileNotFoundError("/proc/1/smaps_rollup")

    monkeypatch.setattr(soak, "soak_replay", end)
    monkeypatch.setattr(soak, "soak_run", lambda folder, seconds, wraps: ran.append("run") or [])
    assert soak.main(["--quick"]) == 1
    assert ran == ["2^32", "2^53", "run"]


def _own_pid() -> int:
    import os

    return os.getpid()
