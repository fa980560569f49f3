from __future__ import annotations

from typing import List

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.common.held_bytes import HeldBytes, Hold


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a budget of 0 bytes holds nothing"):
        HeldBytes(0)


def test_what_is_released_is_there_for_others_and_once() -> None:
    held = HeldBytes(10)
    first, second = held.hold(), held.hold()
    assert first.add(6)
    assert not second.add(5)
    assert second.add(4)
    first.release()
    first.release()
    assert held.num_bytes == 4
    assert not first.add(1), "a call that is over holds bytes that nobody will release"
    assert second.add(6)
    second.release()
    assert held.num_bytes == 0


class Holds(RuleBasedStateMachine):
    """Any calls in any order: the sum is that of the calls, and within the budget."""

    def __init__(self) -> None:
        super().__init__()
        self.held = HeldBytes(100)
        self.holds: List[Hold] = [self.held.hold() for _ in range(4)]

    @rule(place=st.integers(0, 3), num_bytes=st.integers(0, 120))
    def add(self, place: int, num_bytes: int) -> None:
        has_room = self.held.num_bytes + num_bytes <= 100 and not self.holds[place].is_over
        assert self.holds[place].add(num_bytes) == has_room

    @rule(place=st.integers(0, 3))
    def release(self, place: int) -> None:
        self.holds[place].release()

    @rule(place=st.integers(0, 3))
    def begin(self, place: int) -> None:
        if self.holds[place].is_over:
            self.holds[place] = self.held.hold()

    @invariant()
    def adds_up(self) -> None:
        assert self.held.num_bytes == sum(hold.num_bytes for hold in self.holds) <= 100


test_any_calls_in_any_order = Holds.TestCase
