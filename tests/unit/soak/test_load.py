from __future__ import annotations

import numpy as np
import pytest

from tests.soak.load import MIN_JAIN, MIN_SHARE, jain_index, unfair


def test_equal_shares_are_fair() -> None:
    assert unfair(np.full(256, 20.0)) == []
    assert unfair(20.0 + np.arange(256.0) % 3) == []


def test_one_who_gets_little_is_named_though_the_index_is_high() -> None:
    inserted = np.full(256, 20.0)
    inserted[7] = 20.0 * MIN_SHARE - 1
    assert jain_index(inserted) > 0.99
    (fault,) = unfair(inserted)
    assert "0.45 of the mean share" in fault


def test_two_classes_of_actors_are_unfair_though_nobody_falls_below_the_least_share() -> None:
    inserted = np.repeat([12.0, 24.0], 128)
    assert inserted.min() / inserted.mean() > MIN_SHARE
    (fault,) = unfair(inserted)
    assert "Jain's index is 0.900" in fault
    assert jain_index(inserted) < MIN_JAIN


def test_where_nobody_gets_anything_it_is_unfair() -> None:
    assert len(unfair(np.zeros(4))) == 2


@pytest.mark.parametrize("count", [1, 5, 64])
def test_the_index_is_1_for_equals_and_1_of_n_for_a_single_one(count: int) -> None:
    assert jain_index(np.full(count, 3.0)) == pytest.approx(1.0)
    assert jain_index(np.eye(count)[0]) == pytest.approx(1.0 / count)
