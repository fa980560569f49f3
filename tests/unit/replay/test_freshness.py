from __future__ import annotations

import numpy as np
import pytest

from services.replay.freshness import MAX_EXPONENT, MIN_LEAF, Freshness


def test_the_leaf_halves_with_the_half_life_outside_of_the_priority() -> None:
    freshness = Freshness(100.0)
    leaves = freshness.leaves(np.array([1.0, 1.0, 3.0, 0.0]), np.array([200.0, 100.0, 100.0, 200.0]))
    np.testing.assert_allclose(leaves / leaves[0], [1.0, 0.5, 1.5, 0.0])


def test_a_rebase_comes_before_the_exponent_reaches_its_bound_and_changes_no_ratio() -> None:
    freshness = Freshness(10.0)
    updates = np.array([1000.0, 1030.0])
    for newest in range(0, 20_000, 137):
        freshness.make_room(float(newest))
        assert 0.0 <= newest / 10.0 - freshness.shift < MAX_EXPONENT
    before = freshness.leaves(np.ones(2), 18_000.0 + updates)
    doublings = freshness.make_room(20_700.0)
    assert doublings > 0
    after = freshness.leaves(np.ones(2), 18_000.0 + updates)
    np.testing.assert_array_equal(before * 2.0**-doublings, after)


def test_the_oldest_items_stay_drawable() -> None:
    freshness = Freshness(1.0)
    assert freshness.make_room(1e6) == 1_000_000
    assert freshness.leaves(np.array([1.0, 0.0]), np.array([0.0, 0.0])).tolist() == [MIN_LEAF, 0.0]


@pytest.mark.parametrize("half_life", [0.0, -1.0, float("inf"), float("nan")])
def test_a_half_life_out_of_range_is_refused(half_life: float) -> None:
    with pytest.raises(ValueError, match="finite and above 0"):
        Freshness(half_life)
