"""What the looker-on makes of answers: versions that fall, standstills that nobody explains."""

from __future__ import annotations

from typing import Optional

import pytest

from services.cli.target import Addresses
from shoal.v1 import experience_pb2, parameters_pb2, replay_pb2
from tests.chaos.observer import STALL_S, Watch

TRAINING = parameters_pb2.RUN_STATE_TRAINING


def learner(
    updates: int, version: int = 1, chief: int = 1, waiting_for: str = ""
) -> parameters_pb2.GetLearnerInfoResponse:
    return parameters_pb2.GetLearnerInfoResponse(
        chief_incarnation=chief, run_state=TRAINING, updates=updates, version=version, waiting_for=waiting_for
    )


def replay() -> replay_pb2.GetReplayInfoResponse:
    return replay_pb2.GetReplayInfoResponse(schema=experience_pb2.Schema())


def watch() -> Watch:
    return Watch(Addresses("here:1", "there:2"), began_s=0.0)


def look(looker: Watch, seconds: float, of_replay: object, of_learner: Optional[object], begin_s: float = 0.0) -> None:
    for quarter in range(int(4 * seconds)):
        looker.see(begin_s + quarter / 4, of_replay, of_learner)  # type: ignore[arg-type]


def test_a_standstill_without_a_reason_is_a_fault_once() -> None:
    looker = watch()
    look(looker, STALL_S + 10, replay(), learner(5))
    assert len(looker.faults) == 1
    assert "names nobody" in looker.faults[0]
    assert looker.longest_stall_s > STALL_S


@pytest.mark.parametrize(
    ("of_replay", "of_learner"),
    [
        (None, learner(5)),
        (replay(), None),
        (replay(), learner(5, waiting_for="waiting for the replay")),
        (replay_pb2.GetReplayInfoResponse(), learner(5)),
    ],
)
def test_a_standstill_with_a_reason_is_none(of_replay: object, of_learner: object) -> None:
    looker = watch()
    look(looker, STALL_S + 10, of_replay, of_learner)
    assert looker.faults == []
    assert looker.reasons


def test_a_reason_that_is_missing_for_a_moment_is_none_that_is_missing() -> None:
    looker = watch()
    for round_s in range(0, 30, 2):
        look(looker, 1.0, replay(), learner(5), begin_s=round_s)
        look(looker, 1.0, replay(), learner(5, waiting_for="for batches"), begin_s=round_s + 1)
    assert looker.faults == []


def test_who_learns_stands_not_still() -> None:
    looker = watch()
    for second in range(60):
        looker.see(float(second), replay(), learner(second))
    assert looker.faults == []
    assert looker.updates == 59


@pytest.mark.parametrize(("share", "faults"), [(0.0, 1), (0.1, 1), (0.9, 0)])
def test_a_learner_that_computes_waits_for_nobody(share: float, faults: int) -> None:
    looker = watch()
    for quarter in range(80):
        looker.see(quarter / 4, replay(), learner(5), busy_s=7.0 + share * quarter / 4)
    assert len(looker.faults) == faults


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (learner(9, version=3), "fell from 4 to 3"),
        (learner(9, version=4, chief=2), "a new life of the learner publishes version 4, after 4"),
    ],
)
def test_versions_that_do_not_rise_are_faults(then: object, words: str) -> None:
    looker = watch()
    looker.see(0.0, replay(), learner(5, version=4))
    looker.see(0.1, replay(), then)  # type: ignore[arg-type]
    assert words in looker.faults[0]


def test_a_new_life_trains_when_it_made_updates_of_its_own() -> None:
    looker = watch()
    looker.see(0.0, replay(), learner(500, version=4))
    resumed = learner(450, version=1001, chief=2)
    looker.see(0.1, replay(), resumed)
    assert not looker.trains(resumed)
    assert looker.trains(learner(451, version=1001, chief=2))
    assert looker.faults == []
    assert looker.updates == 500
