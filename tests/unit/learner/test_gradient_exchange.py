from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Callable, Iterator, List

import numpy as np
import pytest

from services.common.rpc import Stopped
from services.common.waits import Waits
from services.learner.contributions import AsynchronousContributions, Share, SynchronousContributions
from services.learner.gradient_exchange import GradientExchange
from services.learner.helpers import Answer, HelperFenced, Helpers, PushStatus
from tests.conftest import Eventually
from tests.fakes import FakeClock

ONE = {"w": np.ones(2, np.float32)}


def wanted() -> bool:
    return True


class Peers:
    """An exchange, and helpers that call it on threads."""

    def __init__(self, clock: FakeClock, *, asynchronous: bool = False) -> None:
        self.clock = clock
        contributions: Any = (
            AsynchronousContributions(accumulate=3, max_lag_updates=1) if asynchronous else SynchronousContributions()
        )
        self.waits = Waits(("gradients",), clock)
        self.exchange = GradientExchange(
            Helpers(clock, lease_s=5.0, max_helpers=4),
            contributions,
            answers_at_once=asynchronous,
            held=partial(self.waits.on, "gradients"),
        )
        self.threads = ThreadPoolExecutor(8)
        self.stopping = threading.Event()

    def push_now(self, name: str, sequence: int, base: int, incarnation: int = 1, timeout_s: float = 10.0) -> Answer:
        answer = self.exchange.begin(name, incarnation, sequence, base)
        if answer is None:
            answer = self.exchange.add(incarnation, sequence, base, Share(name, 4, ONE), timeout_s)
        if answer.status is PushStatus.PENDING and not answer.reason:
            answer = self.exchange.wait(name, incarnation, sequence, timeout_s, wanted)
        return answer

    def push(self, *arguments: Any, **more: Any) -> Future:
        return self.threads.submit(self.push_now, *arguments, **more)

    def collect(self) -> Future:
        return self.threads.submit(self.exchange.collect, self.stopping)


@pytest.fixture
def peers(clock: FakeClock) -> Iterator[Peers]:
    made = Peers(clock)
    yield made
    made.stopping.set()
    made.exchange.end("the test is over")
    made.threads.shutdown()


@pytest.fixture
def async_peers(clock: FakeClock) -> Iterator[Peers]:
    made = Peers(clock, asynchronous=True)
    yield made
    made.exchange.end("the test is over")
    made.threads.shutdown()


def contributors(shares: List[Share]) -> List[str]:
    return [share.contributor for share in shares]


def pending(peers: Peers, name: str, sequence: int) -> Callable[[], bool]:
    def look() -> bool:
        helper = peers.exchange._helpers.find(name)
        return helper is not None and helper.sequence == sequence and helper.num_waiting > 0

    return look


def test_a_step_waits_for_everybody_and_answers_when_the_next_base_is_there(
    peers: Peers, eventually: Eventually
) -> None:
    for name in "ab":
        assert peers.exchange.join(name, 1) == (0, False)
    assert peers.exchange.join("a", 1) == (0, True)
    peers.exchange.open(7, 100)
    step = peers.collect()
    eventually(lambda: peers.exchange.waiting_for)
    assert peers.exchange.waiting_for == (
        "waiting for the gradient of a (lease ends in 5.0 s), b (lease ends in 5.0 s)"
    )
    answers = [peers.push("a", 1, 7)]
    eventually(lambda: "of b" in peers.exchange.waiting_for)
    answers.append(peers.push("b", 1, 7))
    assert contributors(step.result(10)) == ["a", "b"]
    assert peers.exchange.waiting_for == ""
    assert not any(answer.done() for answer in answers)
    peers.exchange.open(8, 101)
    assert [answer.result(10).status for answer in answers] == [PushStatus.ACCEPTED] * 2
    assert peers.exchange.newest_version == 8


def test_a_step_goes_on_when_the_lease_of_the_missing_one_ends(peers: Peers, eventually: Eventually) -> None:
    peers.exchange.join("a", 1)
    peers.exchange.join("dead", 1)
    peers.exchange.open(7, 100)
    answer = peers.push("a", 1, 7)
    eventually(pending(peers, "a", 1))
    step = peers.collect()
    eventually(lambda: "dead" in peers.exchange.waiting_for)
    peers.clock.now_s += 6
    assert contributors(step.result(10)) == ["a"]
    peers.exchange.open(8, 101)
    assert answer.result(10).status is PushStatus.ACCEPTED
    # Who waited for an answer all the while has its lease renewed with it: the next step waits for a, not for dead.
    step = peers.collect()
    eventually(lambda: peers.exchange.waiting_for)
    assert peers.exchange.waiting_for == "waiting for the gradient of a (lease ends in 5.0 s)"


def test_a_helper_that_leaves_holds_nobody_up(peers: Peers, eventually: Eventually) -> None:
    peers.exchange.join("a", 1)
    peers.exchange.open(7, 100)
    step = peers.collect()
    eventually(lambda: peers.exchange.waiting_for)
    peers.exchange.leave("a", 1)
    assert step.result(10) == []


def test_who_joins_in_between_counts_from_the_next_base_on(peers: Peers, eventually: Eventually) -> None:
    peers.exchange.open(7, 100)
    assert peers.exchange.join("late", 1) == (7, False)
    assert peers.collect().result(10) == []
    peers.exchange.open(8, 101)
    step = peers.collect()
    eventually(lambda: "late" in peers.exchange.waiting_for)
    peers.push("late", 1, 8)
    assert contributors(step.result(10)) == ["late"]


def test_a_resend_joins_the_push_that_waits_and_later_gets_its_answer(peers: Peers, eventually: Eventually) -> None:
    peers.exchange.join("a", 1)
    peers.exchange.open(7, 100)
    first, again = peers.push("a", 1, 7), peers.push("a", 1, 7)
    eventually(lambda: peers.exchange._helpers.find("a").num_waiting == 2)  # type: ignore[union-attr]
    assert contributors(peers.collect().result(10)) == ["a"]
    peers.exchange.open(8, 101)
    assert first.result(10).status is again.result(10).status is PushStatus.ACCEPTED
    assert peers.push_now("a", 1, 7).status is PushStatus.ACCEPTED
    peers.push("a", 2, 8)
    eventually(pending(peers, "a", 2))
    assert peers.push_now("a", 1, 7).status is PushStatus.TOO_STALE
    assert contributors(peers.collect().result(10)) == ["a"]  # the second alone


def test_a_push_that_nobody_waits_for_any_more_frees_its_call_and_still_counts(
    peers: Peers, eventually: Eventually
) -> None:
    peers.exchange.join("a", 1)
    peers.exchange.open(7, 100)
    there = [True]
    assert peers.exchange.begin("a", 1, 1, 7) is None
    assert peers.exchange.add(1, 1, 7, Share("a", 4, ONE), 1.0).status is PushStatus.PENDING
    call = peers.threads.submit(peers.exchange.wait, "a", 1, 1, 30.0, lambda: there[0])
    eventually(pending(peers, "a", 1))
    there[0] = False
    peers.exchange.wake()
    assert call.result(10).status is PushStatus.PENDING
    assert contributors(peers.collect().result(10)) == ["a"]
    peers.exchange.open(8, 101)
    assert peers.push_now("a", 1, 7).status is PushStatus.ACCEPTED


def test_a_newer_life_fences_the_call_that_waits_and_takes_its_gradient_away(
    peers: Peers, eventually: Eventually
) -> None:
    peers.exchange.join("a", 1)
    peers.exchange.open(7, 100)
    old = peers.push("a", 1, 7)
    eventually(pending(peers, "a", 1))
    peers.exchange.join("a", 2)
    with pytest.raises(HelperFenced):
        old.result(10)
    with pytest.raises(HelperFenced):
        peers.push_now("a", 2, 7)
    assert peers.collect().result(10) == []
    peers.exchange.open(8, 101)
    step = peers.collect()
    eventually(lambda: "of a" in peers.exchange.waiting_for)
    peers.push("a", 1, 8, 2)
    assert contributors(step.result(10)) == ["a"]


def test_refused_content_is_remembered_and_the_step_goes_on_without_it(peers: Peers, eventually: Eventually) -> None:
    peers.exchange.join("a", 1)
    peers.exchange.open(7, 100)
    step = peers.collect()
    eventually(lambda: peers.exchange.waiting_for)
    refusal = Answer(PushStatus.NON_FINITE, "it holds NaN")
    assert peers.exchange.begin("a", 1, 1, 7) is None
    peers.exchange.refuse("a", 1, 1, refusal)
    assert step.result(10) == []
    assert peers.push_now("a", 1, 7) == refusal


def test_two_pushes_of_one_helper_at_once_are_a_fault(peers: Peers, eventually: Eventually) -> None:
    peers.exchange.join("a", 1)
    peers.exchange.open(7, 100)
    peers.push("a", 1, 7)
    eventually(pending(peers, "a", 1))
    with pytest.raises(ValueError, match="one at a time"):
        peers.exchange.begin("a", 1, 2, 7)
    with pytest.raises(ValueError, match="counted from 1"):
        peers.exchange.begin("a", 1, 0, 7)


def test_a_push_that_is_not_answered_in_time_is_told_why(peers: Peers) -> None:
    peers.exchange.join("a", 1)
    peers.exchange.join("b", 1)
    peers.exchange.open(7, 100)
    answer = peers.push_now("a", 1, 7, timeout_s=0.01)
    assert answer.status is PushStatus.PENDING
    assert answer.reason == "waiting for the gradient of b (lease ends in 5.0 s)"


def test_a_stop_ends_the_wait_of_the_loop_and_the_end_that_of_the_calls(peers: Peers, eventually: Eventually) -> None:
    peers.exchange.join("a", 1)
    peers.exchange.join("b", 1)
    peers.exchange.open(7, 100)
    step, call = peers.collect(), peers.push("a", 1, 7)
    eventually(pending(peers, "a", 1))
    peers.stopping.set()
    with pytest.raises(Stopped):
        step.result(10)
    peers.exchange.close("the chief stops")
    assert call.result(10) == Answer(PushStatus.TOO_STALE, "the chief stops")
    assert peers.push_now("b", 1, 7).status is PushStatus.TOO_STALE


def test_asynchronous_pushes_are_answered_at_once_while_there_is_room(
    async_peers: Peers, eventually: Eventually
) -> None:
    exchange = async_peers.exchange
    exchange.join("a", 1)
    exchange.open(7, 100)
    exchange.open(8, 101)
    assert [async_peers.push_now("a", n, 8).status for n in (1, 2)] == [PushStatus.ACCEPTED] * 2
    late = async_peers.push_now("a", 3, 7)
    assert (late.status, late.weight) == (PushStatus.SCALED, 0.5)
    full = async_peers.push_now("a", 4, 8, timeout_s=0.01)
    assert full.status is PushStatus.PENDING
    assert "gradients enough" in full.reason
    again = async_peers.push("a", 4, 8)
    exchange.put(Share("learner", 4, ONE))
    shares = exchange.collect(async_peers.stopping)
    assert [(share.contributor, share.lag) for share in shares] == [("a", 0), ("a", 0), ("a", 1), ("learner", 0)]
    exchange.open(9, 102)
    answer = again.result(10)
    assert answer.status is PushStatus.SCALED  # the step that it had no room in came before it
    assert exchange.collect(async_peers.stopping) == []
    assert contributors(exchange.collect(async_peers.stopping, even_few=True)) == ["a"]


def test_who_abstains_fills_no_place_of_an_asynchronous_step(async_peers: Peers) -> None:
    exchange = async_peers.exchange
    exchange.open(7, 100)
    assert exchange.begin("a", 1, 1, 7) is None
    assert exchange.add(1, 1, 7, Share("a", 0, {}), 1.0).status is PushStatus.ACCEPTED
    assert exchange.collect(async_peers.stopping, even_few=True) == []


class TirelessHelper:
    """Pushes gradients with a tag each, resends at random, gives calls up, and comes back as a new life."""

    def __init__(self, exchange: GradientExchange, number: int, done: threading.Event, *, any_base: bool) -> None:
        self.accepted: List[int] = []
        self._exchange = exchange
        self._name, self._number = "abc"[number], number
        self._done = done
        self._any_base = any_base
        self._rng = np.random.default_rng(number)
        self._used = 0

    def run(self) -> None:
        incarnation = 1
        while not self._done.is_set():
            incarnation += 1
            self._exchange.join(self._name, incarnation)
            for sequence in range(1, int(self._rng.integers(2, 12))):
                self._push(incarnation, sequence, self._next_base())

    def _next_base(self) -> int:
        while self._exchange.newest_version == self._used and not (self._any_base or self._done.wait(0.0005)):
            pass  # as the client does: one gradient a base
        self._used = self._exchange.newest_version
        return self._used

    def _push(self, incarnation: int, sequence: int, base: int) -> None:
        exchange, rng = self._exchange, self._rng
        tag = 1_000_000 * (self._number + 1) + 1000 * incarnation + sequence
        share = Share(self._name, 4, {"tag": np.array([tag], np.float32)})
        while not self._done.is_set():
            answer = exchange.begin(self._name, incarnation, sequence, base)
            answer = answer or exchange.add(incarnation, sequence, base, share, 0.001)
            if answer.status is PushStatus.PENDING and rng.random() < 0.7 and not answer.reason:
                wait_s = float(rng.choice([0.0, 0.001, 0.1]))
                answer = exchange.wait(self._name, incarnation, sequence, wait_s, wanted)
            if answer.status in (PushStatus.ACCEPTED, PushStatus.SCALED):
                self.accepted.append(tag)
            if answer.status is not PushStatus.PENDING:
                if rng.random() < 0.3:  # a resend of an answered push
                    assert exchange.begin(self._name, incarnation, sequence, base) == answer
                return


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_accepted_was_applied_exactly_once_whatever_is_resent_and_whoever_is_replaced(
    asynchronous: bool,
) -> None:
    """Helpers that resend at random, give up calls, and come back as new lives, against a loop that takes steps."""
    peers = Peers(FakeClock(), asynchronous=asynchronous)
    exchange, done = peers.exchange, threading.Event()
    applied: List[int] = []
    helpers = [TirelessHelper(exchange, number, done, any_base=asynchronous) for number in range(3)]
    running = [peers.threads.submit(helper.run) for helper in helpers]
    deadline = time.monotonic() + 30
    step = 0
    while len(applied) <= 100 and time.monotonic() < deadline:
        step += 1
        exchange.open(100 + step, step)
        if asynchronous:
            exchange.put(Share("learner", 4, {"tag": np.array([-1.0], np.float32)}))
        peers.clock.now_s += 0.01
        applied += [int(s.gradients["tag"][0]) for s in exchange.collect(peers.stopping) if s.contributor != "learner"]
    done.set()
    exchange.open(100 + step + 1, step + 1)
    for life in running:
        life.result(10)
    peers.threads.shutdown()
    assert exchange.check_valid() is None
    assert len(applied) == len(set(applied)) > 100
    # An answer that its helper did not live to hear is not in `accepted`; one that it heard is in both.
    accepted = {tag for helper in helpers for tag in helper.accepted}
    assert accepted
    assert accepted <= set(applied) | _waiting(exchange)


def _waiting(exchange: GradientExchange) -> set:
    """Tags of accepted gradients whose asynchronous step is still to come."""
    contributions: Any = exchange._contributions
    shares = contributions._shares.values() if isinstance(contributions._shares, dict) else contributions._shares
    return {int(share.gradients["tag"][0]) for share in shares}


def test_helpers_are_shown_with_what_waits_for_whom(peers: Peers, eventually: Eventually) -> None:
    peers.exchange.join("b", 1)
    peers.exchange.join("a", 3)
    peers.exchange.open(7, 100)
    peers.push("b", 1, 7)
    eventually(pending(peers, "b", 1))
    assert peers.exchange.waited_s == 0.0
    assert not any(view.is_awaited for view in peers.exchange.views())  # the loop computes its own gradient
    step = peers.collect()
    eventually(lambda: peers.exchange.waited_s > 0.05)
    awaited, pushed = peers.exchange.views()
    assert (awaited.name, awaited.incarnation, awaited.is_awaited, awaited.push_waits_s) == ("a", 3, True, 0.0)
    assert (pushed.name, pushed.sequence, pushed.is_awaited, pushed.lease_left_s) == ("b", 1, False, 5.0)
    assert pushed.push_waits_s > 0.05
    peers.exchange.leave("a", 3)
    step.result(10)
    gone, _ = peers.exchange.views()
    assert (gone.name, gone.lease_left_s, gone.is_awaited) == ("a", 0.0, False)


def test_a_pause_gives_back_what_waits_and_the_next_base_is_taken_as_ever(peers: Peers, eventually: Eventually) -> None:
    peers.exchange.join("a", 1)
    peers.exchange.open(7, 100)
    answer = peers.push("a", 1, 7)
    eventually(pending(peers, "a", 1))
    peers.exchange.close("the run is drained")
    assert answer.result(10) == Answer(PushStatus.TOO_STALE, "the run is drained")
    peers.exchange.open(8, 100)
    again = peers.push("a", 2, 8)
    eventually(pending(peers, "a", 2))
    assert contributors(peers.collect().result(10)) == ["a"]
    peers.exchange.open(9, 101)
    assert again.result(10).status is PushStatus.ACCEPTED


def test_the_loop_waits_for_gradients_only_while_one_is_missing(peers: Peers, eventually: Eventually) -> None:
    peers.exchange.join("a", 1)
    peers.exchange.open(10, 100)
    taking = peers.collect()
    eventually(lambda: peers.waits.is_on("gradients"))
    pushed = peers.push("a", 1, 10)
    assert contributors(taking.result(10)) == ["a"]
    assert not peers.waits.is_on("gradients")
    peers.exchange.open(11, 101)
    pushed.result(10)
    total_s = peers.waits.seconds()["gradients"].total_s
    peers.exchange.leave("a", 1)
    assert peers.collect().result(10) == []
    assert peers.waits.seconds()["gradients"].total_s == total_s
