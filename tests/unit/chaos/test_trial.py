"""What a trial demands: it is shown to fail where a service, a checkpoint or a limit is not what it must be."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import numpy as np
import pytest

from shoal.v1 import replay_pb2
from tests.chaos import proc, trial
from tests.chaos.accounting import Account, Rows
from tests.chaos.scenario import MAX_STRAIN, Outcome, Scenario
from tests.chaos.trial import TooLate, Trial

NAMES = ("replay", "learner", "evaluator", "actor-0")


@dataclass
class System:
    """Processes that do nothing; the learner says of each start what it is given to say."""

    folder: Path
    says: List[Tuple[str, str]] = field(default_factory=list)
    checkpoint_period_s: float = 2.0
    names: Tuple[str, ...] = NAMES

    def __post_init__(self) -> None:
        self.run_folder = self.folder / "run"
        self.journals, self.pushes = self.folder / "journals", self.folder / "pushes"
        self.ring = self.folder / "ring"
        (self.run_folder / "checkpoints").mkdir(parents=True)
        self._said: List[Tuple[str, str]] = []

    def start(self, name: str, flags: Optional[Mapping[str, str]] = None) -> float:
        assert name in self.names
        self._said = list(self.says)
        return time.monotonic()

    def kill(self, name: str) -> None:
        assert name in self.names

    def logged(self, name: str, pattern: str) -> List[Tuple[str, str]]:
        assert name == "learner"
        return self._said

    def unexpected_ends(self) -> List[str]:
        return []

    def is_alive(self, name: str) -> bool:
        return name in self.names

    def stop(self, *names: str, timeout_s: float) -> List[str]:
        assert set(names) <= set(self.names)
        assert timeout_s > 0
        return []

    def target(self) -> str:
        return "nobody"

    def pid(self, name: str) -> int:
        return NAMES.index(name)


class Watch:
    updates, version, fastest_per_s = 500, 40, 50.0


class Observer:
    watch, learner, replay = Watch(), None, None


@dataclass
class Work:
    """Who works is given."""

    working: Set[str]

    def goes_on(self, name: str, _mark: object) -> bool:
        return name in self.working

    def has_begun(self, name: str) -> bool:
        return name in self.working

    def remember(self, name: str) -> None:
        assert name in NAMES

    success: float = 1.0
    updates: int = 1_000_000

    def best_success(self, _mark: object) -> float:
        return self.success

    checkpoints_there: Tuple[Path, ...] = ()

    def checkpoints(self) -> Tuple[Path, ...]:
        return self.checkpoints_there


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))


def make(folder: Path, working: Tuple[str, ...] = NAMES, **system: Any) -> Trial:
    outcome = Outcome(Scenario("x", "kind", "text", lambda _trial: None), 1)
    made = Trial(outcome, System(folder, **system), Observer())  # type: ignore[arg-type]
    made.work = Work(set(working))  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("stuck", NAMES)
def test_each_service_must_work_again_whichever_was_cut_or_frozen(tmp_path: Path, stuck: str) -> None:
    others = tuple(name for name in NAMES if name != stuck)
    tried = make(tmp_path, others)
    with pytest.raises(TooLate, match=f"^{stuck} did no work within 0.1 s"):
        tried.works_again(tried.mark(), (others[0],), limit_s=0.1)
    assert [measure.what for measure in tried.outcome.measures] == [f"{others[0]} again"]


def test_whoever_works_again_is_measured_if_asked_for(tmp_path: Path) -> None:
    tried = make(tmp_path)
    tried.works_again(tried.mark(), ("evaluator",))
    assert [measure.what for measure in tried.outcome.measures] == ["evaluator again"]


def resume(tried: Trial, folder: Path, *, age_s: float, seen: int = 500) -> List[str]:
    """Kill the learner when its only checkpoint, of update 400, is so old."""
    checkpoint = folder / "00000400.safetensors"
    checkpoint.touch()
    tried.work.checkpoints_there = (checkpoint,)  # type: ignore[attr-defined]
    tried.kill("learner")
    os.utime(checkpoint, (time.time(), time.time() - age_s))
    tried.resume_learner(seen)
    return tried.outcome.faults


@pytest.mark.parametrize(
    ("said", "age_s", "period_s", "words"),
    [
        (("400", "110"), 1.0, 2.0, ""),
        (("400", "90"), 1.0, 2.0, "500 were seen"),
        (("390", "120"), 1.0, 2.0, "and not from 00000400"),
        (("400", "110"), 6.0, 2.0, "more is lost than may be"),
        (("400", "110"), 17.0, 15.0, ""),
        (("400", "110"), 19.0, 15.0, "more is lost than may be"),
        (("400", "400"), 1.0, 2.0, "at 50 a second"),  # 5 s of 50 updates, and half as many again
        (("400", "1360"), 12.0, 15.0, "at 50 a second"),
    ],
)
def test_what_a_kill_of_the_learner_may_cost(
    tmp_path: Path, said: Tuple[str, str], age_s: float, period_s: float, words: str
) -> None:
    tried = make(tmp_path, says=[said], checkpoint_period_s=period_s)
    faults = resume(tried, tmp_path, age_s=age_s)
    assert len(faults) == bool(words), faults
    assert words in " ".join(faults)
    assert tried.outcome.lost_updates == int(said[1])


def test_a_learner_that_says_nothing_is_a_fault(tmp_path: Path) -> None:
    assert resume(make(tmp_path), tmp_path, age_s=1.0) == ["the learner does not say from where it resumes"]


def test_limits_widen_no_more_than_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = make(tmp_path)
    assert tried.strain == 1.0
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0 * (os.cpu_count() or 1), 0.0, 0.0))
    tried.add_measure("x at work", 1.0, 10.0)
    assert tried.outcome.measures[0].limit_s == pytest.approx(10.0 * MAX_STRAIN)
    assert tried.outcome.strain > MAX_STRAIN


@pytest.mark.parametrize(
    ("now", "faults"),
    [(proc.Footprint(20, 20, 200), 0), (proc.Footprint(40, 20, 200), 4), (proc.Footprint(20, 20, 240), 4)],
)
def test_each_life_may_hold_so_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: proc.Footprint, faults: int
) -> None:
    held: Dict[str, proc.Footprint] = {"": proc.Footprint(20, 20, 200)}
    monkeypatch.setattr(proc, "footprint", lambda _pid: held[""])
    monkeypatch.setattr(trial, "CLOSING_S", 0.0)
    tried = make(tmp_path)
    tried.note_footprints(proc.Footprint(10, 6, 15))
    tried.kill("actor-0")
    held[""] = now
    tried.check_footprints()
    assert len(tried.outcome.faults) == faults


@pytest.mark.parametrize(
    ("acknowledged", "reset", "lost_tail", "without_successor", "present", "lost", "faults"),
    [
        (24, 0, 0, 0, 24, 0, []),
        (24, 0, 4, 4, 24, 0, []),  # the ends of lives
        (24, 8, 0, 0, 16, 8, []),
        (24, 12, 0, 4, 16, 8, []),  # four more had their successors in what was damaged
        (24, 0, 0, 0, 16, 8, ["the replay counts 24 steps, and 16 are there", "8 acknowledged steps are lost"]),
        (24, 12, 4, 4, 16, 8, ["the replay counts 12 steps, and 16 are there", "-4 acknowledged steps are lost"]),
        (24, 8, 0, 0, 24, 0, ["the replay counts 16 steps, and 24 are there", "-8 acknowledged steps are lost"]),
    ],
)
def test_what_the_replay_gave_up_must_be_what_is_not_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    acknowledged: int,
    reset: int,
    lost_tail: int,
    without_successor: int,
    present: int,
    lost: int,
    faults: List[str],
) -> None:
    none = np.zeros(0, np.int64)
    rows = Rows(none, none, none, none, without_successor)
    monkeypatch.setattr(trial, "read_rows", lambda _folder: rows)
    monkeypatch.setattr(trial, "account", lambda _answers, _rows: Account(acknowledged, present, lost, 0, 0))
    tried = make(tmp_path)
    counters = replay_pb2.StepCounters(acknowledged=acknowledged, reset=reset, lost_tail=lost_tail)
    tried._account_for_steps(counters)
    tried.outcome.scenario = replace(tried.outcome.scenario, may_reset=True)
    tried.outcome.judge()
    assert tried.outcome.faults == faults
    tried.outcome.scenario = replace(tried.outcome.scenario, may_reset=False)
    tried.outcome.faults.clear()
    tried.outcome.judge()
    assert bool(tried.outcome.faults) == bool(reset or lost)


@pytest.mark.parametrize(("bar", "success", "enough"), [(0.5, 0.5, True), (0.5, 0.4, False), (0.9, 0.88, False)])
def test_training_must_reach_its_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bar: float, success: float, enough: bool
) -> None:
    monkeypatch.setattr(trial, "BAR_PATIENCE_S", 0.05)
    tried = make(tmp_path)
    tried.outcome.scenario = replace(tried.outcome.scenario, bar=bar)
    tried.work.success = success  # type: ignore[attr-defined]
    with contextlib.nullcontext() if enough else pytest.raises(TooLate, match=f"a success of {bar:.0%}"):
        tried.goes_on()


def test_training_that_stands_still_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "PATIENCE_S", 0.05)
    tried = make(tmp_path)
    tried.work.updates = Watch.updates + trial.GO_ON_UPDATES - 1  # type: ignore[misc]
    with pytest.raises(TooLate, match="further training"):
        tried.goes_on()


def test_a_scenario_that_looked_at_nobodys_holdings_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "ask_replay", lambda _target: None)
    monkeypatch.setattr(proc, "footprint", lambda _pid: proc.Footprint(1, 1, 1))
    tried = make(tmp_path)
    tried.finish()
    assert any("never noted" in fault for fault in tried.outcome.faults)
    tried.outcome.faults.clear()
    tried.note_footprints()
    tried.finish()
    assert tried.outcome.faults == ["the replay does not answer at the end"]
