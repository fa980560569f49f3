"""Whatever a scenario runs into, the others run, and the last line counts it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Callable, List

import pytest

from tests.chaos import runner
from tests.chaos.report import last_line
from tests.chaos.scenario import Outcome, Scenario
from tests.chaos.trial import Broken, TooLate, Trial


@pytest.fixture(autouse=True)
def quick_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "python_start_s", lambda: 0.1)


def scenario(name: str, inject: Callable[[Trial], None]) -> Scenario:
    return Scenario(name, "kind", "what happens", inject, begins=False)


def raising(error: BaseException) -> Callable[[Trial], None]:
    def inject(_trial: Trial) -> None:
        raise error

    return inject


def run(folder: Path, *scenarios: Scenario) -> List[Outcome]:
    return runner.run_all(scenarios, seed=1, folder=folder, lacking={}, keep=False, say=lambda _line: None)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (subprocess.TimeoutExpired(["replay"], 60.0), "timed out after 60"),
        (ValueError("the ring of 10 rows has wrapped"), "ValueError: the ring of 10 rows has wrapped"),
        (IndexError("list index out of range"), "IndexError"),
        (RuntimeError("tc failed: no such device"), "tc failed"),
        (OSError(28, "No space left on device"), "No space left"),
        (Broken("replay ended by itself"), "replay ended by itself"),
        (TooLate("a chunk does not come within 90 s"), "does not come within 90 s"),
    ],
)
def test_whatever_a_scenario_raises_is_its_fault_and_the_others_run(
    tmp_path: Path, error: BaseException, words: str
) -> None:
    outcomes = run(tmp_path, scenario("first", raising(error)), scenario("second", raising(Broken("too"))))
    assert [outcome.verdict for outcome in outcomes] == ["FAILED", "FAILED"]
    assert any(words in fault for fault in outcomes[0].faults)
    assert last_line(outcomes) == "0 passed, 2 failed"


def test_an_error_of_the_harness_is_told_with_its_place_and_kept_whole(tmp_path: Path) -> None:
    (outcome,) = run(tmp_path, scenario("first", raising(ValueError("wrapped"))))
    assert outcome.faults[0].startswith("the scenario broke off: ValueError: wrapped (test_runner.py, line ")
    assert "Traceback" in (tmp_path / "first" / "harness.log").read_text()


def test_a_system_that_cannot_be_laid_out_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("ip link add failed: no permission")

    monkeypatch.setattr(runner, "System", refuse)
    (outcome,) = run(tmp_path, scenario("first", lambda _trial: None))
    assert any("no permission" in fault for fault in outcome.faults)


def test_who_stops_the_harness_stops_it(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, scenario("first", raising(KeyboardInterrupt())))
