"""Whom the harness excuses: only actors that it disturbs itself, or whose servers it disturbs, and not for long."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Callable, Iterator

import pytest

from tests.chaos import system as system_module
from tests.chaos.system import CALM_S, SETTINGS, System

ACTORS = {"actor-0", "actor-1"}


class Process:
    """A process that is there, and does nothing."""

    pid = 4_000_000  # above what the kernel gives

    def poll(self) -> None:
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def go_on(seconds: float) -> None:
        now[0] += seconds

    yield go_on
    monkeypatch.undo()


@pytest.fixture
def system(tmp_path: Path, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> System:
    made = System(tmp_path, "mark")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Process())
    made.start_all()
    return made


def test_who_was_just_started_is_excused_and_later_nobody_is(system: System, clock: Callable[[float], None]) -> None:
    assert system.excused() == ACTORS
    clock(CALM_S)
    assert system.excused() == set()


@pytest.mark.parametrize(
    ("name", "excused"), [("actor-0", {"actor-0"}), ("replay", ACTORS), ("learner", ACTORS), ("evaluator", set())]
)
def test_who_is_frozen_excuses_those_who_need_it(
    system: System, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, name: str, excused: object
) -> None:
    clock(CALM_S)
    frozen = Process()
    frozen.pid = 4_000_001
    system._processes[name] = frozen  # type: ignore[assignment]
    monkeypatch.setattr(system_module, "state", lambda pid: "T" if pid == frozen.pid else "S")
    for _ in range(5):
        clock(CALM_S)
        assert system.excused() == excused
    monkeypatch.setattr(system_module, "state", lambda _pid: "S")
    clock(CALM_S / 2)
    assert system.excused() == excused
    clock(CALM_S)
    assert system.excused() == set()


def test_a_cut_cable_excuses_the_actor_at_its_end(
    system: System, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(CALM_S)
    monkeypatch.setattr(system.cables, "is_shaped", lambda *pair: pair == ("learner", "actor-1"))
    assert system.excused() == {"actor-1"}


def test_whom_a_scenario_names_is_excused_while_it_does(system: System, clock: Callable[[float], None]) -> None:
    clock(CALM_S)
    with system.disturbed("actor-0"):
        clock(60.0)
        assert system.excused() == {"actor-0"}
    clock(CALM_S)
    assert system.excused() == set()


def test_the_period_of_checkpoints_is_what_the_scenario_sets(tmp_path: Path) -> None:
    period = "learner.checkpoint_period_s"
    assert System(tmp_path / "one", "m").checkpoint_period_s == float(SETTINGS[period])
    assert System(tmp_path / "two", "m", settings={period: "15"}).checkpoint_period_s == 15.0
