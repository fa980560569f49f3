from __future__ import annotations

import threading
import time
from typing import Callable, Optional

import pytest

from services.common.rpc import Unavailable
from tests.conftest import Eventually
from tests.fakes import FakeClock
from tests.soak.draws import MAX_GAP_S, Draws

Draw = Callable[[float], Optional[float]]


class Replay:
    """Answers draws as it is told, and lets the time of a fake clock go by."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.answers = True
        self.error: Optional[Exception] = None
        self.calls = 0

    def draw(self, max_wait_s: float) -> Optional[float]:
        assert 0.0 < max_wait_s < MAX_GAP_S, "a call that waits longer than the bound hides the gap"
        self.calls += 1
        if self.error is not None:
            raise self.error
        self.clock.now_s += 0.1
        return 0.1 if self.answers else None


@pytest.fixture
def replay(clock: FakeClock) -> Replay:
    return Replay(clock)


def _sampled(draws: Draws, replay: Replay, calls: int, eventually: Eventually) -> None:
    """Let the sampler make so many more calls."""
    until = replay.calls + calls
    eventually(lambda: replay.calls >= until or not draws.is_alive())


def test_a_sampler_that_is_served_has_no_fault(replay: Replay, clock: FakeClock, eventually: Eventually) -> None:
    draws = Draws(replay.draw, 0.001, clock)
    draws.begin()
    draws.start()
    _sampled(draws, replay, 50, eventually)
    draws.stop()
    assert draws.faults() == []
    assert 0.0 < draws.longest_gap_s < 1.0


@pytest.mark.parametrize("error", [None, Unavailable("resource exhausted: too many calls")])
def test_a_sampler_that_is_never_served_starves(
    replay: Replay, clock: FakeClock, eventually: Eventually, error: Optional[Exception]
) -> None:
    replay.answers, replay.error = False, error
    draws = Draws(replay.draw, 0.001, clock)
    draws.begin()
    draws.start()
    _sampled(draws, replay, 20, eventually)
    clock.now_s += 9.0
    draws.stop()
    assert any("got nothing for" in fault for fault in draws.faults())
    assert any("got 0 draws in" in fault for fault in draws.faults())
    assert draws.longest_gap_s >= 9.0
    assert (draws.unavailable > 0) == (error is not None)


def test_a_gap_that_no_draw_ends_counts(replay: Replay, clock: FakeClock, eventually: Eventually) -> None:
    draws = Draws(replay.draw, 0.001, clock)
    draws.begin()
    draws.start()
    _sampled(draws, replay, 100, eventually)
    replay.answers = False
    _sampled(draws, replay, 2, eventually)
    clock.now_s += MAX_GAP_S + 1.0
    draws.end()
    replay.answers = True
    draws.stop()
    (fault,) = draws.faults()
    assert "the sampler got nothing for" in fault


def test_gaps_before_the_beginning_and_after_the_end_do_not_count(
    replay: Replay, clock: FakeClock, eventually: Eventually
) -> None:
    replay.answers = False
    draws = Draws(replay.draw, 0.001, clock)
    draws.start()
    clock.now_s += 100.0
    replay.answers = True
    draws.begin()
    _sampled(draws, replay, 40, eventually)
    draws.end()
    clock.now_s += 100.0
    draws.stop()
    assert draws.faults() == []


def test_an_error_that_load_does_not_explain_is_told(replay: Replay, clock: FakeClock, eventually: Eventually) -> None:
    replay.error = AssertionError("keys of another table")
    draws = Draws(replay.draw, 0.001, clock)
    draws.begin()
    draws.start()
    eventually(lambda: not draws.is_alive())
    clock.now_s += 3.0
    draws.stop()
    assert "the sampler failed: AssertionError: keys of another table" in draws.faults()


def test_a_load_that_never_had_all_its_actors_says_nothing(replay: Replay, clock: FakeClock) -> None:
    draws = Draws(replay.draw, 0.001, clock)
    draws.start()
    draws.stop()
    (fault,) = draws.faults()
    assert "all actors were there for 0.0 s only" in fault


def test_a_call_that_does_not_end_is_told() -> None:
    begun, release = threading.Event(), threading.Event()

    def draw(max_wait_s: float) -> None:
        begun.set()
        release.wait(30.0)

    draws = Draws(draw, 0.001, time.monotonic)
    draws.start()
    assert begun.wait(10.0)
    draws.stop(timeout_s=0.05)
    assert "the sampler's last call does not end" in draws.faults()
    release.set()
    draws.join(5.0)
