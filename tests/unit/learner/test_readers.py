from __future__ import annotations

from typing import Any, List

import pytest

from services.common.peer import Peer
from services.learner.readers import FORGET_S, MAX_ASK_AGAIN_S, MAX_QUESTIONS_PER_S, NEEDED_S, Readers
from shoal.v1 import experience_pb2, parameters_pb2
from tests.fakes import RUN_ID, FakeClock


def _question(name: str, version: int = 0, digest: str = "d", incarnation: int = 1) -> Any:
    peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, name, incarnation).to_proto()
    return parameters_pb2.GetManifestRequest(peer=peer, running_version=version, running_digest=digest)


def _saw(readers: Readers, name: str, *, version: int = 0, finished: bool = False) -> None:
    readers.saw(_question(name, version), finished=finished)


def test_a_rung_is_kept_over_lives_and_shared_when_all_are_taken(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=3)
    rungs = [readers.lease_rung(name) for name in ("a", "b", "c", "a", "d", "b", "d")]
    assert rungs == [0, 1, 2, 0, 0, 1, 0]


def test_readers_live_as_long_as_they_ask(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=3)
    _saw(readers, "a", version=4)
    clock.now_s += 5
    _saw(readers, "b")
    assert [reader.peer.name for reader in readers.living(5.0)] == ["a", "b"]
    clock.now_s += 1
    assert [reader.peer.name for reader in readers.living(5.0)] == ["b"]
    _saw(readers, "a", version=5, finished=True)
    living: List[int] = [reader.version for reader in readers.living(5.0) if reader.told_finished]
    assert living == [5]


def test_the_rung_of_an_actor_that_is_gone_goes_to_the_next_newcomer(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=3)
    for name in ("host-1", "host-2", "host-3"):
        _saw(readers, name)
        readers.lease_rung(name)
    clock.now_s += FORGET_S
    for name in ("host-1", "host-3"):
        _saw(readers, name)
    clock.now_s += 1
    _saw(readers, "host-4")
    assert readers.lease_rung("host-4") == 1
    assert [readers.lease_rung(name) for name in ("host-1", "host-3")] == [0, 2]


def test_readers_of_ever_new_names_are_forgotten(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=4)
    for number in range(5000):
        _saw(readers, f"actor-{number}")
        readers.lease_rung(f"actor-{number}")
        clock.now_s += 1
    assert len(readers._readers) == len(readers._rungs) <= FORGET_S + 1


def test_a_reader_that_runs_something_else_is_told_once_a_life_and_version(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=1)
    told = [
        readers.saw(_question("a", version, digest, incarnation), finished=False, published_digest=published)[1]
        for version, digest, incarnation, published in [
            (0, "", 1, ""),  # runs nothing yet
            (3, "right", 1, "right"),
            (3, "right", 1, ""),  # a restarted chief does not know
            (4, "wrong", 1, "right"),
            (4, "wrong", 1, "right"),
            (4, "", 1, "right"),
            (5, "wrong", 1, "right"),
            (5, "wrong", 2, "right"),
        ]
    ]
    assert told == [False, False, False, True, False, False, True, True]
    assert readers.mismatches_total == 3
    (reader,) = readers.living(1.0)
    assert reader.digest_differs
    readers.saw(_question("a", 6, "right", 2), finished=False, published_digest="right")
    (reader,) = readers.living(1.0)
    assert not reader.digest_differs


@pytest.mark.parametrize("count", [1, 128, 1024])
def test_all_readers_together_ask_no_more_than_so_often(count: int, clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=count)
    for number in range(count):
        _saw(readers, f"actor-{number}")
    period_s = readers.ask_again_s
    assert period_s <= MAX_ASK_AGAIN_S
    if count / MAX_QUESTIONS_PER_S < MAX_ASK_AGAIN_S:
        assert count / period_s <= MAX_QUESTIONS_PER_S + 1e-9


def test_the_silence_of_a_reader_is_by_the_readers_clock(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=1)
    _saw(readers, "a")
    clock.now_s += 2.5
    (reader,) = readers.living(10)
    assert readers.silence_s(reader) == 2.5


def test_a_reader_that_does_not_take_what_it_is_sent_is_counted(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=1)
    counted = [
        readers.saw(_question("a", version, incarnation=incarnation), finished=False, offered=offered)[0].unheeded
        for version, incarnation, offered in [
            (0, 1, True),
            (0, 1, True),
            (0, 1, True),
            (7, 1, True),  # it took one
            (7, 1, True),
            (7, 1, False),  # there is nothing newer
            (7, 1, True),
            (7, 2, True),  # another life
        ]
    ]
    assert counted == [1, 2, 3, 1, 2, 0, 1, 1]


def test_what_a_reader_waits_for_is_kept_until_it_says_otherwise(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=1)
    for said in ("the environment hangs", "x" * 1000, ""):
        question = _question("a")
        question.waiting_for = said
        readers.saw(question, finished=False)
        (reader,) = readers.living(1.0)
        assert reader.waiting_for == said[:300]


def test_since_when_a_reader_waits_is_kept_as_long_as_it_says_so(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=1)

    def says(sentence: str, incarnation: int = 1) -> float:
        clock.now_s += 2.0
        question = _question("a", incarnation=incarnation)
        question.waiting_for = sentence
        return readers.waited_s(readers.saw(question, finished=False)[0])

    assert says("") == 0.0
    assert says("the environment hangs for 1 s") == 0.0
    assert says("the environment hangs for 3 s") == 2.0
    assert says("the environment hangs for 5 s") == 4.0
    assert says("the environment hangs for 1 s", incarnation=2) == 0.0  # another life
    assert says("") == 0.0
    assert says("something else") == 0.0


def test_readers_are_let_in_up_to_a_bound_and_the_silent_make_room(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=2, max_peers=2)
    for name in ("a", "b"):
        assert not readers.why_no_room(name)
        readers.saw(_question(name), finished=False)
    assert "learner.max_peers" in readers.why_no_room("c")
    assert not readers.why_no_room("a")
    clock.now_s += NEEDED_S + 1
    readers.saw(_question("b"), finished=False)
    assert not readers.why_no_room("c")  # a is silent
    readers.saw(_question("c"), finished=False)
    assert {reader.peer.name for reader in readers.living(1000)} == {"b", "c"}
