from __future__ import annotations

from pathlib import Path
from typing import Any, List, Optional

import pytest

from services.cli import waits
from services.cli.target import Addresses
from services.cli.waits import OTHERWISE, RELEASES, Wait, release_of, waits_of
from shoal.v1 import experience_pb2, parameters_pb2, replay_pb2

ADDRESSES = Addresses("127.0.0.1:1", "127.0.0.1:2")
HANG = "the environment hangs: step has not returned for 40.0 s"
PARKED = "parked: the chief has not confirmed its parameters for 80 s"


def of(
    replay: Optional[replay_pb2.GetReplayInfoResponse] = None,
    learner: Optional[parameters_pb2.GetLearnerInfoResponse] = None,
) -> List[Wait]:
    there = replay_pb2.GetReplayInfoResponse(schema=experience_pb2.Schema())
    return waits_of(ADDRESSES, replay or there, learner or parameters_pb2.GetLearnerInfoResponse())


def the_only_one(waits: List[Wait]) -> Wait:
    assert len(waits) == 1, waits
    return waits[0]


def with_actor(**values: Any) -> replay_pb2.GetReplayInfoResponse:
    info = replay_pb2.GetReplayInfoResponse(schema=experience_pb2.Schema())
    info.actors.add(name="actor-0", **values)
    return info


def with_reader(name: str, role: Any, version: int = 7, **values: Any) -> parameters_pb2.GetLearnerInfoResponse:
    info = parameters_pb2.GetLearnerInfoResponse(version=7)
    info.readers.add(name=name, role=role, version=version, **values)
    return info


@pytest.mark.parametrize(("sentence", "release"), [(HANG, "simulator"), (PARKED, "start the learner")])
def test_what_an_actor_told_the_replay_is_a_wait_even_without_a_learner(sentence: str, release: str) -> None:
    replay = with_actor(seconds_since_insert=90.0, waiting_for=sentence, waiting_seconds=42.0)
    wait = the_only_one(of(replay))
    assert (wait.who, wait.since_s, wait.what) == ("actor-0", 42.0, sentence)
    assert release in wait.release


def test_what_an_actor_told_both_is_said_once() -> None:
    replay = with_actor(waiting_for=HANG, waiting_seconds=42.0)
    learner = with_reader("actor-0", experience_pb2.ROLE_ACTOR, waiting_for=HANG, waiting_seconds=41.0)
    assert the_only_one(of(replay, learner)).since_s == 42.0
    assert the_only_one(of(None, learner)).since_s == 41.0


def test_calls_of_one_peer_are_one_wait() -> None:
    replay = replay_pb2.GetReplayInfoResponse(schema=experience_pb2.Schema())
    for seconds in (1.0, 9.0, 3.0):
        replay.waiters.add(peer_name="learner", call="Sample", seconds=seconds, reason=f"since {seconds}")
    assert the_only_one(of(replay)).what == "its Sample: since 9.0"


def test_an_actor_that_is_held_by_the_limiter_is_not_called_silent() -> None:
    replay = with_actor(seconds_since_insert=90.0)
    replay.waiters.add(peer_name="actor-0", call="Insert", seconds=90.0, reason="the learner is behind")
    assert the_only_one(of(replay)).what == "its Insert: the learner is behind"


@pytest.mark.parametrize("sentence", [beginning for beginning, _ in RELEASES])
def test_a_learner_that_waits_is_told_with_since_when_and_what_releases_it(sentence: str) -> None:
    learner = parameters_pb2.GetLearnerInfoResponse(waiting_for=f"{sentence} and so on", waiting_seconds=5.0)
    wait = the_only_one(of(learner=learner))
    assert (wait.who, wait.since_s) == ("learner", 5.0)
    assert wait.release == dict(RELEASES)[sentence] != OTHERWISE


def test_helpers_that_wait_are_told() -> None:
    learner = parameters_pb2.GetLearnerInfoResponse()
    learner.helpers.add(name="helper-0", lease_left_seconds=3.0, push_waits_seconds=8.0)
    learner.helpers.add(name="helper-1", lease_left_seconds=3.0, push_waits_seconds=0.1)  # as each step takes
    wait = the_only_one(of(learner=learner))
    assert (wait.who, wait.since_s) == ("helper-0", 8.0)
    assert "waits for the learner's step" in wait.what


def test_what_a_helper_said_counts_as_long_as_it_goes_on_asking() -> None:
    says = {"waiting_for": "waiting for the chief's next step", "waiting_seconds": 4.0}
    asks = with_reader("helper-0", experience_pb2.ROLE_HELPER, seconds_since_call=0.1, **says)
    assert the_only_one(of(learner=asks)).since_s == 4.0
    computes = with_reader("helper-0", experience_pb2.ROLE_HELPER, seconds_since_call=6.0, **says)
    assert of(learner=computes) == []


def test_an_evaluator_waits_for_a_newer_version_judges_or_hangs() -> None:
    says = {"waiting_for": "waiting for a version newer than 7, which is judged", "waiting_seconds": 30.0}
    idle = with_reader("evaluator", experience_pb2.ROLE_EVALUATOR, version=7, seconds_since_call=0.2, **says)
    assert the_only_one(of(learner=idle)).what == says["waiting_for"]
    judging = with_reader("evaluator", experience_pb2.ROLE_EVALUATOR, version=5, seconds_since_call=20.0, **says)
    assert of(learner=judging) == []
    hanging = with_reader("evaluator", experience_pb2.ROLE_EVALUATOR, version=5, seconds_since_call=90.0, **says)
    assert "or hangs" in the_only_one(of(learner=hanging)).what


def test_with_many_readers_each_may_be_silent_for_longer() -> None:
    learner = with_reader("actor-0", experience_pb2.ROLE_ACTOR, seconds_since_call=15.0)
    assert "it has not asked for parameters" in the_only_one(of(learner=learner)).what
    for number in range(1, 300):
        learner.readers.add(name=f"actor-{number}", role=experience_pb2.ROLE_ACTOR)
    assert of(learner=learner) == []


def test_a_drain_on_its_way_is_a_wait() -> None:
    drain = parameters_pb2.DrainState(
        phase=parameters_pb2.DRAIN_PHASE_ACTORS, waiting_for="waiting for actors to come to rest: actor-0", seconds=3.0
    )
    wait = the_only_one(of(learner=parameters_pb2.GetLearnerInfoResponse(drain=drain)))
    assert (wait.who, wait.since_s) == ("the drain", 3.0)
    assert "--undo" in wait.release


def test_a_sentence_that_nobody_foresaw_has_a_release_too() -> None:
    assert release_of("something else") == OTHERWISE


@pytest.mark.parametrize("beginning", [beginning for beginning, _ in RELEASES if not beginning.endswith(" at")])
def test_services_say_what_is_looked_for(beginning: str) -> None:
    services = Path(waits.__file__).parents[1]
    texts = [file.read_text() for file in services.rglob("*.py") if "cli" not in file.parts]
    assert any(f'"{beginning}' in text for text in texts)
