from __future__ import annotations

from typing import List, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.priorities import LargestPriority, UpdateOutcome, judge_updates, leaf_of, priority_of


def test_the_formula_is_pinned() -> None:
    p, clamped = priority_of(np.array([0.0, 0.5, 2.0, 1e10, 1e308]))
    assert p.tolist() == [1e-6, 0.5 + 1e-6, 2.0 + 1e-6, 1e10, 1e10]
    assert clamped.tolist() == [False, False, False, True, True]
    np.testing.assert_allclose(leaf_of(p, 0.6), p**0.6)  # (p + eps)^alpha, not p^alpha + eps
    assert leaf_of(p, 0.0).tolist() == [1.0] * 5


def test_each_item_is_judged_by_itself() -> None:
    keys = np.array([7, 7, 8, 9, 9, 9, 10, 11, 12, 13])
    td_error = np.array([1.0, 2.0, np.nan, 3.0, 4.0, np.inf, -1.0, 1e308, 1e-320, 0.0])
    is_item = np.array([True] * 9 + [False])
    applied, stale, rejected, superseded = UpdateOutcome
    assert judge_updates(keys, td_error, is_item).tolist() == [
        superseded,
        applied,
        rejected,
        superseded,
        applied,  # the bad one after it does not supersede it
        rejected,
        rejected,
        applied,
        applied,
        stale,
    ]


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(), st.booleans()), max_size=30))
def test_exactly_the_last_good_entry_of_a_key_is_applied(entries: List[Tuple[int, float, bool]]) -> None:
    resident = {key: flag for key, _, flag in entries}
    keys = np.array([e[0] for e in entries], np.int64)
    td_error = np.array([e[1] for e in entries], np.float64)
    outcome = judge_updates(keys, td_error, np.array([resident[int(k)] for k in keys], np.bool_))
    last = {}
    for place, (key, error, _) in enumerate(entries):
        if np.isfinite(error) and error >= 0 and resident[key]:
            last[key] = place
    assert sorted(last.values()) == np.flatnonzero(outcome == UpdateOutcome.APPLIED).tolist()


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 24), st.floats(0.0, 1e10)), max_size=6), max_size=12), st.integers(1, 30)
)
def test_the_largest_is_that_of_the_column(writes: List[List[Tuple[int, float]]], block_rows: int) -> None:
    column = np.zeros(25)
    largest = LargestPriority(column, block_rows)
    assert largest.value(default=3.0) == 3.0
    for pairs in writes:
        for slot, p in pairs:
            column[slot] = p
        largest.touch(np.array([pair[0] for pair in pairs], np.int64))
        assert largest.value(default=-1.0) == (column.max() if column.any() else -1.0)


def test_outcomes_are_those_of_the_wire() -> None:
    assert [int(outcome) for outcome in UpdateOutcome] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="5"):
        UpdateOutcome(5)
