"""What the looker-on makes of answers: versions that fall, standstills that nobody explains."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import pytest

from services.cli.target import Addresses
from shoal.v1 import experience_pb2, parameters_pb2, replay_pb2
from tests.chaos.observer import STALL_S, Watch

TRAINING = parameters_pb2.RUN_STATE_TRAINING


def learner(
    updates: int, version: int = 1, chief: int = 1, waiting_for: str = "", **more: Any
) -> parameters_pb2.GetLearnerInfoResponse:
    return parameters_pb2.GetLearnerInfoResponse(
        chief_incarnation=chief, run_state=TRAINING, updates=updates, version=version, waiting_for=waiting_for, **more
    )


def replay(
    waiters: Sequence[replay_pb2.Waiter] = (), actors: Sequence[replay_pb2.ActorInfo] = ()
) -> replay_pb2.GetReplayInfoResponse:
    return replay_pb2.GetReplayInfoResponse(schema=experience_pb2.Schema(), waiters=waiters, actors=actors)


def waiter(name: str, call: str) -> replay_pb2.Waiter:
    return replay_pb2.Waiter(peer_name=name, call=call, seconds=3.0, reason="as the limiter has it")


def silent(waiting_for: str = "") -> replay_pb2.ActorInfo:
    return replay_pb2.ActorInfo(name="actor-0", seconds_since_insert=STALL_S + 1, waiting_for=waiting_for)


def reader(waiting_for: str, seconds_since_call: float = 0.5) -> parameters_pb2.ParameterReader:
    return parameters_pb2.ParameterReader(
        name="actor-0",
        role=experience_pb2.ROLE_ACTOR,
        version=1,
        waiting_for=waiting_for,
        seconds_since_call=seconds_since_call,
    )


def watch() -> Watch:
    return Watch(Addresses("here:1", "there:2"), began_s=0.0)


def look(looker: Watch, seconds: float, of_replay: object, of_learner: Optional[object], begin_s: float = 0.0) -> None:
    for quarter in range(int(4 * seconds)):
        looker.see(begin_s + quarter / 4, of_replay, of_learner)  # type: ignore[arg-type]


def test_a_standstill_without_a_reason_is_a_fault_once() -> None:
    looker = watch()
    look(looker, STALL_S + 10, replay(), learner(5))
    assert len(looker.faults) == 1
    assert "nothing that the learner waits for" in looker.faults[0]
    assert looker.longest_stall_s > STALL_S


@pytest.mark.parametrize(
    ("of_replay", "of_learner"),
    [
        (None, learner(5)),
        (replay(), None),
        (replay(), learner(5, waiting_for="waiting for the replay")),
        (replay_pb2.GetReplayInfoResponse(), learner(5)),
        (replay([waiter("learner", "Sample")]), learner(5)),
    ],
)
def test_a_standstill_with_a_reason_is_none(of_replay: object, of_learner: object) -> None:
    looker = watch()
    look(looker, STALL_S + 10, of_replay, of_learner)
    assert looker.faults == []
    assert looker.reasons


@pytest.mark.parametrize(
    ("of_replay", "more"),
    [
        (replay([waiter("actor-0", "Insert"), waiter("actor-1", "Insert")]), {}),
        (replay(actors=[silent("the environment has taken 9 s")]), {}),
        (replay(), {"readers": [reader("parked: the policy is too old")]}),
        (replay(), {"helpers": [parameters_pb2.HelperInfo(name="helper-0", push_waits_seconds=9.0)]}),
    ],
)
def test_that_others_wait_excuses_no_learner_that_hangs(of_replay: object, more: Any) -> None:
    looker = watch()
    look(looker, STALL_S + 10, of_replay, learner(5, **more))
    assert len(looker.faults) == 1
    assert "nothing that the learner waits for" in looker.faults[0]
    assert looker.reasons  # `shoal why` named somebody


def test_a_silent_actor_without_a_reason_is_a_fault_once() -> None:
    looker = watch()
    for second in range(20):
        looker.see(float(second), replay(actors=[silent()]), learner(second))
    assert len(looker.faults) == 1
    assert "actor-0 has inserted nothing" in looker.faults[0]


@pytest.mark.parametrize(
    ("of_replay", "of_readers", "faults"),
    [
        (replay([waiter("actor-0", "Insert")], [silent()]), [], 0),
        (replay([waiter("actor-1", "Insert")], [silent()]), [], 1),
        (replay(actors=[silent("the environment has taken 9 s")]), [], 0),
        (replay(actors=[silent()]), [reader("waiting for the replay at here:1")], 0),
        (replay(actors=[silent()]), [reader("waiting for the replay at here:1", seconds_since_call=60.0)], 1),
        (replay(actors=[silent()]), [reader("")], 1),
    ],
)
def test_a_silent_actor_must_itself_wait_for_something(of_replay: object, of_readers: Any, faults: int) -> None:
    looker = watch()
    for second in range(20):
        looker.see(float(second), of_replay, learner(second, readers=of_readers))  # type: ignore[arg-type]
    assert len(looker.faults) == faults


def test_an_actor_that_the_harness_silenced_is_excused_for_as_long_as_it_does() -> None:
    looker = watch()
    for second in range(20):
        looker.see(float(second), replay(actors=[silent()]), learner(second), excused={"actor-0"})
    assert looker.faults == []
    for second in range(20, 30):
        looker.see(float(second), replay(actors=[silent()]), learner(second), excused={"actor-1"})
    assert len(looker.faults) == 1


def test_updates_that_are_not_finite_are_a_fault_once() -> None:
    looker = watch()
    for second in range(3):
        looker.see(float(second), replay(), learner(second, non_finite_updates=second))
    assert len(looker.faults) == 1
    assert "not finite" in looker.faults[0]


def test_the_fastest_training_is_taken_within_a_life() -> None:
    looker = watch()
    for second in range(9):
        looker.see(float(second), replay(), learner(100 * min(second, 4)))
    assert looker.fastest_per_s == pytest.approx(100.0)
    looker.see(9.0, replay(), learner(5000, version=9, chief=2))  # another life, from its checkpoint
    assert looker.fastest_per_s == pytest.approx(100.0)


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
