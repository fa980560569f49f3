from __future__ import annotations

from typing import Any, Callable

import pytest

from services.common.peer import Peer
from services.learner.drain import FIRST_QUESTIONS_S, LIVING_WITHIN_S, Drain, DrainPhase
from services.learner.readers import Readers
from shoal.v1 import experience_pb2, parameters_pb2
from tests.fakes import RUN_ID, FakeClock, FakeLog

Ask = Callable[..., None]


@pytest.fixture
def readers(clock: FakeClock) -> Readers:
    return Readers(clock, num_actors=4)


@pytest.fixture
def ask(readers: Readers) -> Ask:
    def question(name: str, *, drained: bool = False, says: str = "", role: Any = experience_pb2.ROLE_ACTOR) -> None:
        peer = Peer(RUN_ID, role, name, 1).to_proto()
        request = parameters_pb2.GetManifestRequest(peer=peer, drained=drained, waiting_for=says)
        readers.saw(request, finished=False)

    return question


@pytest.fixture
def drain(readers: Readers, clock: FakeClock, log: FakeLog) -> Drain:
    """Of a chief that has lived for a while, with a loop."""
    made = Drain(readers, clock, log)  # type: ignore[arg-type]
    made.loop_begins()
    clock.now_s += FIRST_QUESTIONS_S
    return made


def test_actors_come_first_then_the_learner_then_it_is_at_rest(drain: Drain, ask: Ask, clock: FakeClock) -> None:
    assert not drain.is_on
    assert not drain.is_learners_turn()
    ask("actor-0")
    ask("actor-1")
    ask("helper-0", role=experience_pb2.ROLE_HELPER)  # not waited for, like the evaluator
    drain.begin(30.0)
    assert drain.is_on
    assert not drain.is_learners_turn()
    ask("actor-1", drained=True)
    assert "actor-0" in drain.state().waiting_for
    assert "actor-1" not in drain.state().waiting_for
    assert not drain.is_learners_turn()
    ask("actor-0", drained=True)
    assert drain.is_learners_turn()
    assert drain.state().phase is DrainPhase.LEARNER
    clock.now_s += 2.0
    assert drain.state().seconds == 2.0
    drain.learner_rests(17)
    state = drain.state()
    assert (state.phase, state.waiting_for, state.checkpoint_updates) == (DrainPhase.DRAINED, "", 17)
    assert drain.is_at_rest
    assert drain.is_learners_turn()  # it goes on resting
    drain.undo()
    assert not drain.is_on
    assert not drain.is_learners_turn()
    assert drain.state().phase is DrainPhase.NONE


def test_actors_that_overdraw_their_time_are_named_until_they_are_at_rest(
    drain: Drain, ask: Ask, clock: FakeClock, log: FakeLog
) -> None:
    drain.begin(8.0)
    for _ in range(8):
        clock.now_s += 1.0
        ask("actor-0", says="the environment hangs")
    assert drain.is_learners_turn()
    assert drain.state().held_up == ("actor-0: the environment hangs",)
    assert "an actor is not at rest in its time" in log.events("warning")
    ask("actor-0", drained=True)
    assert drain.state().held_up == ()


def test_a_second_call_gives_actors_their_time_anew(drain: Drain, ask: Ask, clock: FakeClock) -> None:
    drain.begin(5.0)
    clock.now_s += 4.0
    ask("actor-0")
    drain.begin(5.0)
    clock.now_s += 4.0
    ask("actor-0")
    assert not drain.is_learners_turn()
    clock.now_s += 1.0
    assert drain.is_learners_turn()


def test_an_actor_that_is_gone_is_not_waited_for(drain: Drain, ask: Ask, clock: FakeClock) -> None:
    ask("actor-0")
    drain.begin(1000.0)
    assert not drain.is_learners_turn()
    clock.now_s += LIVING_WITHIN_S + 0.1
    assert drain.is_learners_turn()


def test_a_chief_that_has_just_begun_waits_to_hear_of_its_actors(
    readers: Readers, ask: Ask, clock: FakeClock, log: FakeLog
) -> None:
    drain = Drain(readers, clock, log)  # type: ignore[arg-type]
    drain.loop_begins()
    drain.begin(60.0)
    assert not drain.is_learners_turn()
    assert "all actors" in drain.state().waiting_for
    clock.now_s += FIRST_QUESTIONS_S - 0.1
    ask("actor-0")
    clock.now_s += 0.2
    assert not drain.is_learners_turn()
    ask("actor-0", drained=True)
    assert drain.is_learners_turn()


def test_without_a_training_loop_there_is_nothing_to_save_and_one_that_comes_rests_too(
    readers: Readers, clock: FakeClock, log: FakeLog
) -> None:
    drain = Drain(readers, clock, log)  # type: ignore[arg-type]
    clock.now_s += FIRST_QUESTIONS_S
    drain.begin(5.0)
    assert drain.state().phase is DrainPhase.DRAINED
    drain.loop_begins()
    assert drain.is_learners_turn()
    assert drain.state().phase is DrainPhase.LEARNER
    drain.learner_rests(0)
    assert drain.is_at_rest


def test_undoing_what_was_not_begun_changes_nothing(drain: Drain, log: FakeLog) -> None:
    drain.undo()
    assert not drain.is_on
    assert log.events() == []
