from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.batch import Stamps
from services.learner.staleness import LOST, PARTS, StalenessRules, split_lag


class FakeHistory:
    """version -> updates."""

    def __init__(self, known: Dict[int, int]) -> None:
        self._known = known

    def known_updates_of(self, versions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.array([self._known.get(int(version), LOST) for version in versions], np.int64)


def stamps_of(known: List[int], arrival: List[int], sampling: int, **changes: Any) -> Stamps:
    n = len(known)
    facts: Dict[str, Any] = {
        "actor_index": np.zeros(n, np.uint32),
        "actor_names": ("actor-0",),
        "known_version": np.array(known, np.int64),
        "arrival_version": np.array(arrival, np.int64),
        "sampling_version": sampling,
        "acting_s": np.full(n, 0.5, np.float32),
        "transit_s": np.full(n, 0.25, np.float32),
        "ring_s": np.full(n, 8.0, np.float32),
    }
    return Stamps(**{**facts, **changes})


EVERY_TEN = FakeHistory({version: 10 * version for version in range(1, 50)})


def test_the_lag_is_split_where_the_item_fell_behind() -> None:
    lag = split_lag(np.array([1]), stamps_of([3], [4], 9), EVERY_TEN, 94, 1.5)
    assert dict(zip(PARTS, lag.updates[:, 0].tolist())) == {"acting": 20, "in_flight": 10, "ring": 50, "prefetch": 4}
    assert lag.total_updates.tolist() == [84]
    assert dict(zip(PARTS, lag.seconds[:, 0].tolist())) == {
        "acting": 0.5,
        "in_flight": 0.25,
        "ring": 8.0,
        "prefetch": 1.5,
    }
    assert not lag.is_lost.any()


def test_an_item_of_a_lost_version_counts_as_fresh_and_is_marked() -> None:
    lag = split_lag(np.array([77, 1]), stamps_of([78, 1], [79, 1], 9), EVERY_TEN, 95, 0.0)
    assert lag.updates[:, 0].tolist() == [0, 0, 0, 0]
    assert lag.is_lost.tolist() == [True, False]
    assert lag.total_updates.tolist() == [0, 85]


def test_points_whose_version_was_lost_count_as_the_one_before() -> None:
    # The chief fell from version 5 back to a checkpoint of version 2, and went on with 30.
    history = FakeHistory({1: 10, 2: 20, 30: 20, 31: 30})
    lag = split_lag(np.array([2]), stamps_of([4], [5], 31), history, 35, 0.0)
    assert lag.updates[:, 0].tolist() == [0, 0, 10, 5]


@settings(deadline=None)
@given(
    known=st.dictionaries(st.integers(0, 30), st.integers(0, 500), max_size=30),
    points=st.lists(st.tuples(*[st.integers(0, 31)] * 3), min_size=1, max_size=20),
    sampling=st.integers(0, 31),
    updates=st.integers(0, 500),
)
def test_parts_are_never_negative_and_sum_to_the_whole(
    known: Dict[int, int], points: List[Any], sampling: int, updates: int
) -> None:
    history = FakeHistory(known)
    own, heard, arrived = (list(column) for column in zip(*points))
    lag = split_lag(np.array(own), stamps_of(heard, arrived, sampling), history, updates, 0.0)
    assert (lag.updates >= 0).all()
    whole = [max(0, updates - known[version]) if version in known else 0 for version in own]
    assert lag.total_updates.tolist() == whole
    assert lag.is_lost.tolist() == [version not in known for version in own]


def test_without_rules_the_weights_are_left_alone() -> None:
    weights = np.array([0.25, 0.5], np.float32)
    assert StalenessRules().weigh(weights, np.array([0, 10**9])) is weights


def test_an_item_that_is_a_half_life_behind_weighs_half() -> None:
    rules = StalenessRules(loss_half_life_updates=100.0)
    weighed = rules.weigh(np.array([1.0, 1.0, 0.5], np.float32), np.array([50, 150, 250]))
    assert weighed.tolist() == [1.0, 0.5, 0.125]
    assert weighed.dtype == np.float32


def test_weights_are_divided_by_the_largest() -> None:
    rules = StalenessRules(loss_half_life_updates=100.0)
    weighed = rules.weigh(np.array([0.25, 1.0], np.float32), np.array([0, 100]))
    assert weighed.tolist() == [0.5, 1.0]


def test_no_batch_is_so_old_that_its_weights_vanish() -> None:
    weighed = StalenessRules(loss_half_life_updates=1.0).weigh(np.ones(2, np.float32), np.array([10**6, 10**6 + 1]))
    assert weighed.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("half_life", [0.0, 100.0])
def test_items_beyond_the_bound_weigh_nothing(half_life: float) -> None:
    rules = StalenessRules(max_lag_updates=100, loss_half_life_updates=half_life)
    weighed = rules.weigh(np.array([1.0, 0.5, 1.0], np.float32), np.array([101, 100, 10**6]))
    assert weighed.tolist() == [0.0, 1.0, 0.0]
    assert rules.weigh(np.ones(1, np.float32), np.array([101])).tolist() == [0.0]
