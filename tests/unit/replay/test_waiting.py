from __future__ import annotations

import threading
import time
from typing import Any, List, Set

import pytest

from services.common.waits import Waits
from services.replay import waiting
from services.replay.waiting import INSERT_LIMITER, LATE_S, REASONS, SAMPLE_LIMITER, SAMPLE_MIN_SIZE, WaitingRoom
from tests.conftest import Eventually
from tests.fakes import FakeClock


class Gate:
    """Lets through as many calls as there are tokens, and notes their order."""

    def __init__(self, eventually: Eventually) -> None:
        self._eventually = eventually
        self.lock = threading.RLock()
        self.waits = Waits(REASONS)
        self.room = WaitingRoom(self.lock, time.monotonic, self.waits)
        self.tokens = 0
        self.served: List[str] = []
        self.turned_away: List[str] = []
        self.outside: Set[str] = set()  # turned away since the last token, without a place in the room

    def pass_through(self, name: str, max_wait_s: float = 20.0, room: float = 100) -> str:
        with self.lock:
            why = self.room.wait(name, "Insert", lambda: "" if self.tokens else "no token", max_wait_s, room)
            if not why:
                self.tokens -= 1
                self.served.append(name)
            else:
                self.turned_away.append(name)
                if "wait already" in why:
                    self.outside.add(name)
            return why

    def give(self, tokens: int = 1) -> None:
        with self.lock:
            self.tokens += tokens
            self.room.wake()

    def give_when_all_have_come(self, names: str) -> bool:
        """Give a token if each of `names` stands in line or found the room full; returns whether."""
        with self.lock:
            here = self.outside | {waiter.peer_name for waiter in self.room.waiters()}
            if here != set(names):
                return False
            self.outside.clear()
            self.give()
            return True

    def start(self, name: str, **how: Any) -> threading.Thread:
        """Begin a call in a thread of its own and return when it waits."""
        before = self.room.count("Insert")
        thread = threading.Thread(target=self.pass_through, args=(name,), kwargs=how)
        thread.start()
        self._eventually(lambda: self.room.count("Insert") == before + 1)
        return thread


@pytest.fixture
def gate(eventually: Eventually) -> Gate:
    return Gate(eventually)


def test_who_came_first_is_served_first_and_one_token_wakes_one(gate: Gate, eventually: Eventually) -> None:
    threads = [gate.start(name) for name in "abcde"]
    reasons = [waiter.reason for waiter in gate.room.waiters()]
    assert reasons[0] == "no token"
    assert reasons[3] == "3 calls came before it: no token"
    for n in range(5):
        gate.give()
        eventually(lambda n=n: len(gate.served) == n + 1)
    assert gate.served == list("abcde")
    for thread in threads:
        thread.join(10.0)
    assert gate.room.waiters() == []


def test_several_tokens_serve_several_at_once(gate: Gate) -> None:
    threads = [gate.start(name) for name in "abc"]
    gate.give(3)
    for thread in threads:
        thread.join(10.0)
    assert gate.served == list("abc")


def test_who_comes_later_does_not_overtake(gate: Gate) -> None:
    thread = gate.start("a")
    with gate.lock:  # a token is there, but `a` has not seen it yet
        gate.tokens = 1
        assert gate.pass_through("b", max_wait_s=0.0) == "1 calls came before it: no token"
        gate.room.wake()
    thread.join(10.0)
    assert gate.served == ["a"]


def test_a_peer_with_many_calls_holds_nobody_up(gate: Gate, eventually: Eventually) -> None:
    threads = [gate.start("many") for _ in range(4)] + [gate.start("one")]
    gate.give()
    eventually(lambda: len(gate.served) == 1)
    threads.append(gate.start("one"))
    gate.give(5)
    for thread in threads:
        thread.join(10.0)
    assert gate.served[:2] == ["many", "one"]
    assert gate.served[2:4] in (["many", "one"], ["one", "many"])
    assert gate.served[4:] == ["many", "many"]


def test_a_place_is_kept_for_who_left_in_vain(gate: Gate, eventually: Eventually) -> None:
    assert gate.pass_through("a", max_wait_s=0.0) == "no token"
    threads = [gate.start("b"), gate.start("a")]
    gate.give()
    eventually(lambda: len(gate.served) == 1)
    assert gate.served == ["a"]
    threads.append(gate.start("a"))  # served once, it stands behind
    gate.give(2)
    for thread in threads:
        thread.join(10.0)
    assert gate.served == ["a", "b", "a"]


def test_a_full_room_turns_away_and_makes_way_for_who_was_turned_away_before(gate: Gate) -> None:
    first = gate.start("a", room=1)
    why = gate.pass_through("b", room=1)
    assert why == "1 other inserts wait already, since no token"
    gate.give()
    first.join(10.0)
    second = gate.start("a", room=1)
    third = threading.Thread(target=gate.pass_through, args=("b",), kwargs={"room": 1})
    third.start()  # it came before this call of `a`, and takes its place
    second.join(10.0)
    assert gate.turned_away == ["b", "a"]
    gate.give()
    third.join(10.0)
    assert gate.served == ["a", "b"]


def test_the_last_of_a_full_line_makes_way(gate: Gate) -> None:
    served = [gate.start(name, room=2) for name in "ab"]
    assert gate.pass_through("c", room=2) == "2 other inserts wait already, since no token"
    gate.give(2)
    for thread in served:
        thread.join(10.0)
    first, last = gate.start("a", room=2), gate.start("b", room=2)
    earlier = threading.Thread(target=gate.pass_through, args=("c",), kwargs={"room": 2})
    earlier.start()
    last.join(10.0)
    assert gate.turned_away == ["c", "b"]
    gate.give(2)
    for thread in (first, earlier):
        thread.join(10.0)
    assert gate.served == ["a", "b", "c", "a"]


def test_nobody_starves_in_a_room_that_is_too_small(gate: Gate, eventually: Eventually) -> None:
    stop = threading.Event()

    def actor(name: str) -> None:
        while not stop.is_set():
            if gate.pass_through(name, max_wait_s=0.2, room=2):
                time.sleep(0.002)

    threads = [threading.Thread(target=actor, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for n in range(120):
        eventually(lambda: gate.give_when_all_have_come("abcdef"))
        eventually(lambda n=n: len(gate.served) > n)
    stop.set()
    for thread in threads:
        thread.join(10.0)
    first = gate.served[:6]
    assert sorted(first) == list("abcdef")
    assert gate.served[:120] == first * 20  # whoever was served stands behind all others


def test_deadlines_and_interruptions_end_a_wait(gate: Gate) -> None:
    began = time.monotonic()
    assert gate.pass_through("a", max_wait_s=0.05) == "no token"
    assert 0.04 < time.monotonic() - began < 5.0
    threads = [gate.start("a"), gate.start("b")]
    with gate.lock:
        gate.room.interrupt("the replay is stopping")
    for thread in threads:
        thread.join(10.0)
    assert gate.room.count("Insert") == 0
    assert gate.pass_through("c") == "the replay is stopping"


def test_who_comes_again_at_once_goes_on_with_its_wait(gate: Gate) -> None:
    assert gate.pass_through("a", max_wait_s=1.0) == "no token"
    assert gate.waits.seconds()[INSERT_LIMITER].now_s == 0.0
    thread = gate.start("a")
    (waiter,) = gate.room.waiters()
    assert waiter.seconds >= 1.0
    assert gate.waits.seconds()[INSERT_LIMITER].now_s >= 1.0
    gate.give()
    thread.join(10.0)
    served_s = time.monotonic()
    thread = gate.start("a")  # served meanwhile: another wait
    assert gate.waits.seconds()[INSERT_LIMITER].now_s <= time.monotonic() - served_s
    gate.give()
    thread.join(10.0)
    assert gate.waits.seconds()[INSERT_LIMITER].total_s >= 1.0


def test_who_comes_again_after_long_begins_anew(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SAME_WAIT_S", 0.0)
    assert gate.pass_through("a", max_wait_s=1.0) == "no token"
    time.sleep(0.01)
    left_s = time.monotonic()
    thread = gate.start("a")
    assert gate.room.waiters()[0].seconds <= time.monotonic() - left_s
    gate.give()
    thread.join(10.0)


def test_a_wait_is_counted_for_the_reason_that_holds_it_now(clock: FakeClock) -> None:
    lock = threading.RLock()
    waits = Waits(REASONS, clock)
    room = WaitingRoom(lock, clock, waits)
    word = [SAMPLE_MIN_SIZE]
    answers = iter(["few items", "few items", "the ratio", ""])

    def reason() -> str:
        clock.now_s += 1
        return next(answers)

    def look(_timeout_s: float) -> bool:
        word[0] = SAMPLE_LIMITER
        return True

    with lock, pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Condition, "wait", lambda _self, timeout_s: look(timeout_s))
        assert room.wait("learner", "Sample", reason, 60.0, word=lambda: word[0]) == ""
    found = waits.seconds()
    assert (found[SAMPLE_MIN_SIZE].total_s, found[SAMPLE_LIMITER].total_s) == (2.0, 1.0)
    assert not any(waited.now_s for waited in found.values())


def test_who_is_told_to_come_again_waits_outside_until_it_is_let_in_or_stays_away(clock: FakeClock) -> None:
    room = WaitingRoom(threading.RLock(), clock)
    for _ in range(3):
        room.turn_away("a", "Insert", "the disk is full", 0.5)
        clock.now_s += 1.0
    room.turn_away("b", "Insert", "the disk is full", 0.5)
    told = [(w.peer_name, w.call, w.seconds, w.reason) for w in room.waiters()]
    assert told == [("a", "Insert", 3.0, "the disk is full"), ("b", "Insert", 0.0, "the disk is full")]
    assert room.wait("a", "Insert", lambda: "", 0.0) == ""
    assert [w.peer_name for w in room.waiters()] == ["b"]
    clock.now_s += 0.5 + LATE_S + 0.1  # it has gone
    assert room.waiters() == []


def test_places_of_those_who_never_come_back_are_bounded(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_KEPT", 3)
    room = WaitingRoom(threading.RLock(), clock)
    for name in "abcde":
        assert room.wait(name, "Insert", lambda: "no token", 0.0) == "no token"
    assert [name for _call, name in room._kept] == ["c", "d", "e"]  # the oldest are forgotten
