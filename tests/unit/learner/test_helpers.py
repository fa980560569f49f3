from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.learner.helpers import Answer, HelperFenced, Helpers, PushStatus, TooManyHelpers
from shoal.v1 import gradients_pb2
from tests.fakes import FakeClock


def make(clock: FakeClock, max_helpers: int = 2, lease_s: float = 5.0) -> Helpers:
    return Helpers(clock, lease_s=lease_s, max_helpers=max_helpers)


def names(helpers: Helpers) -> list:
    return [helper.name for helper in helpers.living()]


def test_a_lease_ends_by_itself_and_each_call_renews_it(clock: FakeClock) -> None:
    helpers = make(clock)
    one = helpers.admit("b", 1)
    helpers.admit("a", 2)
    assert names(helpers) == ["a", "b"]
    assert helpers.lease_left_s(one) == 5.0
    clock.now_s += 4
    helpers.admit("a", 2)
    clock.now_s += 1
    assert names(helpers) == ["a"]
    assert helpers.lease_left_s(one) == 0.0
    assert helpers.admit("b", 1) is one
    assert names(helpers) == ["a", "b"]


def test_a_helper_that_leaves_is_not_waited_for_but_another_life_of_it_cannot_be_sent_away(clock: FakeClock) -> None:
    helpers = make(clock)
    helpers.admit("a", 1)
    helpers.leave("a", 2)
    helpers.leave("nobody", 1)
    assert names(helpers) == ["a"]
    helpers.leave("a", 1)
    assert names(helpers) == []


def test_a_newer_life_fences_the_older_for_good(clock: FakeClock) -> None:
    helpers = make(clock)
    helpers.admit("a", 1).sequence = 7
    newer = helpers.admit("a", 2)
    assert newer.sequence == 0
    assert helpers.find("a") is newer
    with pytest.raises(HelperFenced, match="a newer life of a has taken over"):
        helpers.admit("a", 1)
    clock.now_s += 100  # the end of a lease does not unfence
    with pytest.raises(HelperFenced):
        helpers.admit("a", 1)
    helpers.admit("a", 3)
    for old in (1, 2):
        with pytest.raises(HelperFenced):
            helpers.admit("a", old)
    assert helpers.check_valid() is None


def test_a_further_helper_is_refused_until_a_lease_has_ended(clock: FakeClock) -> None:
    helpers = make(clock)
    helpers.admit("a", 1)
    clock.now_s += 1
    helpers.admit("b", 1)
    with pytest.raises(TooManyHelpers, match=r"2 helpers take part.*c is refused; raise gradients.max_helpers"):
        helpers.admit("c", 1)
    clock.now_s += 4
    helpers.admit("c", 1)  # in the place of the one whose lease ended
    assert names(helpers) == ["b", "c"]
    assert helpers.find("a") is None


def test_a_gradient_that_waits_keeps_its_helpers_record(clock: FakeClock) -> None:
    helpers = make(clock, max_helpers=1)
    record = helpers.admit("a", 1)
    record.sequence = 1
    clock.now_s += 100
    with pytest.raises(TooManyHelpers):
        helpers.admit("b", 1)
    record.answer = Answer(PushStatus.ACCEPTED)
    helpers.admit("b", 1)
    assert helpers.find("a") is None


def test_statuses_are_those_of_the_wire() -> None:
    wire = {name[len("PUSH_STATUS_") :]: number for name, number in gradients_pb2.PushStatus.items() if number}
    assert {status.name: status.value for status in PushStatus} == wire


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 3), st.sampled_from(["admit", "leave"]), st.floats(0, 3)),
        max_size=60,
    )
)
def test_whatever_comes_the_bound_holds_and_fenced_lives_stay_out(calls: list) -> None:
    clock = FakeClock()
    helpers = make(clock, max_helpers=3, lease_s=2.0)
    newest: dict = {}
    for name, incarnation, what, later_s in calls:
        clock.now_s += later_s
        if what == "leave":
            helpers.leave(name, incarnation)
        else:
            try:
                record = helpers.admit(name, incarnation)
            except HelperFenced:
                assert newest[name] != incarnation
            except TooManyHelpers:
                assert len(helpers.living()) == 3
                newest.pop(name, None)
            else:
                newest[name] = incarnation
                assert record.incarnation == incarnation
                assert record in helpers.living()
        assert helpers.check_valid() is None
