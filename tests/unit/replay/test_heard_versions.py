from __future__ import annotations

from typing import List, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.heard_versions import HeardVersions


def test_versions_between_are_interpolated_and_those_above_count_as_the_newest() -> None:
    history = HeardVersions()
    assert history.updates_of(np.array([0, 7])).tolist() == [0.0, 0.0]
    assert not history.note(10, 200)
    history.note(20, 300)
    assert history.updates_of(np.array([5, 10, 15, 20, 99])).tolist() == [100.0, 200.0, 250.0, 300.0, 300.0]
    assert history.updates_of(np.array([19])).tolist() == [290.0]
    assert history.updates_of(np.zeros(0, np.int64)).tolist() == []


def test_an_older_version_changes_nothing_and_the_first_hearing_counts() -> None:
    history = HeardVersions()
    history.note(5, 50)
    history.note(5, 69)
    history.note(4, 90)
    assert (history.newest_version, history.newest_updates) == (5, 50)


def test_updates_that_a_crash_lost_count_as_the_newest() -> None:
    history = HeardVersions([(10, 200), (20, 400)])
    assert history.note(1021, 320)
    assert history.updates_of(np.array([10, 20, 1021])).tolist() == [200.0, 320.0, 320.0]
    assert history.pairs() == [(0, 0), (10, 200), (20, 320), (1021, 320)]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(-5, 50)), max_size=200), st.integers(4, 20))
def test_it_is_bounded_and_never_falls(moves: List[Tuple[int, int]], max_pairs: int) -> None:
    history = HeardVersions(max_pairs=max_pairs)
    version = updates = 0
    for up, more in moves:
        version, updates = version + up, max(0, updates + more)
        history.note(version, updates)
        pairs = history.pairs()
        assert len(pairs) <= max_pairs
        assert pairs[0] == (0, 0)
        assert pairs[-1] == (version, updates)
        assert all(a[0] < b[0] and a[1] <= b[1] for a, b in zip(pairs, pairs[1:]))
    assert (np.diff(history.updates_of(np.arange(version + 2))) >= 0.0).all()


def test_too_small_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        HeardVersions(max_pairs=3)


@given(
    moves=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 90)), max_size=12),
    updates=st.integers(-5, 1200),
)
def test_the_oldest_version_of_an_age_is_the_first_that_has_it(moves: List[Tuple[int, int]], updates: int) -> None:
    history = HeardVersions()
    version = done = 0
    for more_versions, more_updates in moves:
        version, done = version + more_versions, done + more_updates
        history.note(version, done)
    oldest = history.oldest_of(updates)
    known = history.updates_of(np.arange(version + 1))
    assert (known[:oldest] < updates + 1e-6).all()
    assert (known[oldest:] > updates - 1e-6).all()
    assert oldest <= version + 1


def test_another_history_begins_with_what_it_is_given() -> None:
    history = HeardVersions([(5, 50)])
    history.restart([(1, 2)])
    assert history.pairs() == [(0, 0), (1, 2)]
