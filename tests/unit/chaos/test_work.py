"""Who does its work is told from who was seen to do it before."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

import pytest

from services.common.run_folder import Evaluation, RunFolder
from shoal.v1 import experience_pb2, parameters_pb2, replay_pb2
from tests.chaos.journal import Answer, JournalWriter
from tests.chaos.pushes import PushAnswer, PushWriter
from tests.chaos.work import AGAIN_UPDATES, Mark, Work

MARK = Mark(at_s=100.0, updates=500, version=40)
CHUNK = Answer("actor-0", 7, 0, 3, 30, 10, 8, True, 99.0)
GRADIENT = PushAnswer(life=7, chief=1, sequence=3, accepted=True, at_s=99.0)


@dataclass
class System:
    """Where files lie."""

    folder: Path

    def __post_init__(self) -> None:
        self.run_folder, self.journals, self.pushes = (self.folder / name for name in ("run", "journals", "pushes"))
        self.run_folder.mkdir()


@dataclass
class Watch:
    updates: int = 500
    version: int = 40

    def trains(self, learner: Any) -> bool:
        return bool(learner.updates)


@dataclass
class Observer:
    learner: Optional[parameters_pb2.GetLearnerInfoResponse] = None
    replay: Optional[replay_pb2.GetReplayInfoResponse] = None
    watch: Watch = field(default_factory=Watch)


def learner(updates: int, evaluator: int = 3) -> parameters_pb2.GetLearnerInfoResponse:
    reader = parameters_pb2.ParameterReader(name="evaluator", role=experience_pb2.ROLE_EVALUATOR, incarnation=evaluator)
    return parameters_pb2.GetLearnerInfoResponse(updates=updates, chief_incarnation=1, readers=[reader])


def judge(system: System, *versions: int) -> None:
    folder = RunFolder(system.run_folder)
    for version in versions:
        folder.append_evaluation(Evaluation(version, version * 20, 10, 0.1 * (version % 10), 1.0, 50.0))


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_an_evaluator_that_hangs_since_the_fault_does_not_go_on(system: System) -> None:
    work = Work(system, Observer(learner(900)))  # type: ignore[arg-type]
    judge(system, 20, 40)  # the last one was got before the fault, and told after it
    assert not work.goes_on("evaluator", MARK)
    judge(system, 41)
    assert work.goes_on("evaluator", MARK)


def test_a_helper_goes_on_when_a_gradient_is_taken(system: System) -> None:
    work = Work(system, Observer(learner(900)))  # type: ignore[arg-type]
    assert not work.goes_on("helper-0", MARK)
    writer = PushWriter(system.pushes, 7)
    writer.add(GRADIENT)
    writer.add(replace(GRADIENT, sequence=4, accepted=False, at_s=101.0))  # it is there, and nothing comes of it
    assert not work.goes_on("helper-0", MARK)
    writer.add(replace(GRADIENT, sequence=5, at_s=101.0))
    assert work.goes_on("helper-0", MARK)


def test_an_actor_goes_on_when_a_chunk_is_acknowledged(system: System) -> None:
    work = Work(system, Observer())  # type: ignore[arg-type]
    writer = JournalWriter(system.journals, "actor-0", 7)
    for answer in (CHUNK, replace(CHUNK, acknowledged=False, at_s=101.0), replace(CHUNK, num_steps=0, at_s=101.0)):
        writer.add(answer)
    assert not work.goes_on("actor-0", MARK)
    writer.add(replace(CHUNK, at_s=101.0))
    assert work.goes_on("actor-0", MARK)
    assert not work.goes_on("actor-1", MARK)


def test_learner_and_replay_go_on_when_there_are_new_updates(system: System) -> None:
    observer = Observer(learner(500 + AGAIN_UPDATES - 1), replay_pb2.GetReplayInfoResponse())
    work = Work(system, observer)  # type: ignore[arg-type]
    assert not work.goes_on("learner", MARK)
    assert not work.goes_on("replay", MARK)
    observer.learner = learner(500 + AGAIN_UPDATES)
    assert work.goes_on("learner", MARK)
    assert work.goes_on("replay", MARK)
    observer.replay = None
    assert not work.goes_on("replay", MARK)
    observer.learner = None
    assert not work.goes_on("learner", MARK)


def test_a_new_evaluator_is_at_work_when_it_has_judged_and_not_when_it_is_known(system: System) -> None:
    observer = Observer(learner(500, evaluator=3))
    work = Work(system, observer)  # type: ignore[arg-type]
    judge(system, 20)
    assert work.has_begun("evaluator")  # the first life
    work.remember("evaluator")
    judge(system, 41)  # by the life that ended
    assert not work.has_begun("evaluator")
    observer.learner = learner(500, evaluator=4)
    observer.watch.version = 60
    assert work.has_begun("evaluator")
    work.remember("evaluator")
    observer.learner = learner(500, evaluator=5)
    assert not work.has_begun("evaluator")
    judge(system, 61)
    assert work.has_begun("evaluator")


def test_a_new_helper_is_at_work_when_a_gradient_of_its_own_is_taken(system: System) -> None:
    work = Work(system, Observer(learner(500)))  # type: ignore[arg-type]
    PushWriter(system.pushes, 7).add(GRADIENT)
    assert work.has_begun("helper-0")
    work.remember("helper-0")
    assert not work.has_begun("helper-0")
    PushWriter(system.pushes, 8).add(replace(GRADIENT, life=8, accepted=False))
    assert not work.has_begun("helper-0")
    PushWriter(system.pushes, 8).add(replace(GRADIENT, life=8))
    assert work.has_begun("helper-0")


def test_success_counts_of_versions_after_the_fault_alone(system: System) -> None:
    work = Work(system, Observer())  # type: ignore[arg-type]
    judge(system, 39)
    assert work.best_success(MARK) == -1.0
    judge(system, 43, 42)
    assert work.best_success(MARK) == pytest.approx(0.3)
    assert work.judged_versions() == [39, 43, 42]
