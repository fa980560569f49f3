from __future__ import annotations

import threading
from typing import Any, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.waits import Waited, Waits
from tests.fakes import FakeClock


@pytest.fixture
def waits(clock: FakeClock) -> Waits:
    return Waits(("batches", "chief_away"), clock)


def test_all_reasons_are_there_before_anybody_has_waited(waits: Waits) -> None:
    assert waits.seconds() == {"batches": Waited(0.0, 0.0), "chief_away": Waited(0.0, 0.0)}


def test_a_wait_counts_while_it_lasts_and_stays_counted(waits: Waits, clock: FakeClock) -> None:
    with waits.on("batches"):
        clock.now_s += 2
        assert waits.seconds()["batches"] == Waited(2.0, 2.0)
        assert waits.is_on("batches")
        clock.now_s += 1
    assert waits.seconds()["batches"] == Waited(3.0, 0.0)
    assert not waits.is_on("batches")
    assert waits.seconds()["chief_away"] == Waited(0.0, 0.0)


def test_waits_at_the_same_time_count_once_and_the_oldest_is_shown(waits: Waits, clock: FakeClock) -> None:
    first = waits.begin("batches")
    clock.now_s += 2
    second = waits.begin("batches")
    clock.now_s += 3
    assert waits.seconds()["batches"] == Waited(5.0, 5.0)
    waits.end(first)
    assert waits.seconds()["batches"] == Waited(5.0, 3.0)
    clock.now_s += 1
    waits.end(second)
    assert waits.seconds()["batches"] == Waited(6.0, 0.0)


def test_a_try_that_goes_on_with_an_earlier_one_shows_it_and_counts_itself_alone(
    waits: Waits, clock: FakeClock
) -> None:
    with waits.on("batches", since_s=clock.now_s - 10):
        clock.now_s += 1
        assert waits.seconds()["batches"] == Waited(1.0, 11.0)


def test_a_wait_may_go_on_for_another_reason(waits: Waits, clock: FakeClock) -> None:
    wait = waits.begin("batches")
    clock.now_s += 2
    waits.move(wait, "chief_away")
    waits.move(wait, "chief_away")
    clock.now_s += 3
    assert waits.seconds() == {"batches": Waited(2.0, 0.0), "chief_away": Waited(3.0, 3.0)}
    waits.end(wait)
    assert not waits.is_on("chief_away")


def test_a_part_that_counts_itself_is_read(waits: Waits) -> None:
    waits.watch("batches", lambda: Waited(7.0, 0.5))
    assert waits.seconds() == {"batches": Waited(7.0, 0.5), "chief_away": Waited(0.0, 0.0)}


def test_an_error_ends_the_wait(waits: Waits) -> None:
    with pytest.raises(OSError, match="gone"), waits.on("batches"):
        raise OSError("gone")
    assert not waits.is_on("batches")


@pytest.mark.parametrize("reasons", [["Batches"], ["two words"], [""], ["a", "a"]])
def test_what_is_no_word_or_given_twice_is_refused(reasons: List[str]) -> None:
    with pytest.raises(ValueError, match="words of small letters, each once"):
        Waits(reasons)


def test_a_reason_that_was_not_announced_is_a_mistake(waits: Waits) -> None:
    with pytest.raises(KeyError):
        waits.begin("weather")


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "move"]), st.integers(0, 3), st.integers(0, 5))))
def test_totals_never_fall_and_are_the_time_in_which_somebody_waited(steps: Any) -> None:
    clock = FakeClock()
    waits = Waits(("a", "b"), clock)
    under_way: List[Any] = []
    expected = {"a": 0.0, "b": 0.0}
    before = waits.seconds()
    for what, which, passed in steps:
        for reason in expected:
            expected[reason] += passed * any(wait.reason == reason for wait in under_way)
        clock.now_s += passed
        if what == "begin":
            under_way.append(waits.begin("ab"[which % 2]))
        elif under_way and what == "end":
            waits.end(under_way.pop(which % len(under_way)))
        elif under_way:
            waits.move(under_way[which % len(under_way)], "ab"[passed % 2])
        now = waits.seconds()
        assert {reason: waited.total_s for reason, waited in now.items()} == expected
        assert all(now[reason].total_s >= before[reason].total_s for reason in expected)
        before = now


def test_readers_see_no_total_fall_while_threads_wait() -> None:
    waits = Waits(("a", "b"))
    done = threading.Event()

    def wait() -> None:
        while not done.is_set():
            one = waits.begin("a")
            waits.move(one, "b")
            waits.end(one)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    totals = [waits.seconds()]
    while len(totals) < 2000 or not all(totals[-1][reason].total_s for reason in "ab"):
        totals.append(waits.seconds())
    done.set()
    for thread in threads:
        thread.join()
    for reason in "ab":
        seen = [each[reason].total_s for each in totals]
        assert seen == sorted(seen)
        assert seen[-1] > 0
