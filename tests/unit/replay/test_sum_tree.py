from __future__ import annotations

from typing import List, Tuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.replay.sum_tree import MAX_LEAF, SumTree

LEAF = st.one_of(
    st.just(0.0), st.floats(0.0, 1e10), st.sampled_from([5e-324, 1e-320, 1e-10, 1.0, 1e10, 1e16, 1e100, MAX_LEAF])
)
WRITES = st.lists(st.lists(st.tuples(st.integers(0, 12), LEAF), min_size=1, max_size=20), min_size=1, max_size=8)


def _set(tree: SumTree, pairs: List[Tuple[int, float]]) -> None:
    tree.set(np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.float64))


@given(writes=WRITES)
def test_it_holds_what_was_set_last(writes: List[List[Tuple[int, float]]]) -> None:
    tree, expected = SumTree(13), np.zeros(13)
    for pairs in writes:
        _set(tree, pairs)
        for slot, leaf in pairs:
            expected[slot] = leaf
        assert tree.check_valid() is None
    np.testing.assert_array_equal(tree.leaves(np.arange(13)), expected)
    np.testing.assert_allclose(tree.total, expected.sum(), rtol=1e-12)


@given(writes=WRITES, seed=st.integers(0, 2**32))
def test_a_zero_leaf_is_never_drawn(writes: List[List[Tuple[int, float]]], seed: int) -> None:
    tree = SumTree(13)
    for pairs in writes:
        _set(tree, pairs)
    if tree.total == 0.0:
        with pytest.raises(ValueError, match="all zero"):
            tree.find(np.zeros(1))
        return
    edges = np.cumsum(tree.leaves(np.arange(13)))
    masses = np.concatenate(
        (
            edges,
            np.nextafter(edges, 0.0),
            np.nextafter(edges, np.inf),
            [0.0, tree.total, np.nextafter(tree.total, np.inf)],
        )
    )
    assert (tree.leaves(tree.find(masses)) > 0.0).all()
    assert (tree.leaves(tree.draw_stratified(np.random.default_rng(seed), 3, 64)) > 0.0).all()


@settings(max_examples=30)
@given(data=st.data(), capacity=st.integers(1, 300))
def test_random_batches_of_any_density(data: st.DataObject, capacity: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    tree, expected = SumTree(capacity), np.zeros(capacity)
    for _ in range(5):
        slots = rng.integers(0, capacity, data.draw(st.integers(0, 2 * capacity)))
        leaves = rng.random(len(slots)) * (rng.random(len(slots)) < 0.8)
        tree.set(slots, leaves)
        for slot, leaf in zip(slots, leaves):
            expected[slot] = leaf
        assert tree.check_valid() is None
        np.testing.assert_array_equal(tree.leaves(np.arange(capacity)), expected)


def test_find_follows_the_cumulated_leaves() -> None:
    tree = SumTree(5)
    tree.set(np.arange(5), np.array([1.0, 0.0, 2.0, 0.0, 4.0]))
    assert tree.find(np.array([0.0, 0.99, 1.0, 2.99, 3.0, 6.99])).tolist() == [0, 0, 2, 2, 4, 4]


@settings(max_examples=20, deadline=None)
@given(leaves=st.lists(LEAF, min_size=40, max_size=40), seed=st.integers(0, 2**32))
def test_below_the_searched_level_a_zero_leaf_is_never_drawn(leaves: List[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = SumTree(5000)
    tree.set(rng.choice(5000, 40, replace=False), np.array(leaves))
    if tree.total == 0.0:
        return
    edges = np.cumsum(tree.leaves(np.arange(5000)))
    masses = np.concatenate((edges, np.nextafter(edges, 0.0), [0.0, tree.total, np.nextafter(tree.total, np.inf)]))
    assert (tree.leaves(tree.find(masses)) > 0.0).all()


def test_below_the_searched_level_find_follows_the_cumulated_leaves() -> None:
    rng = np.random.default_rng(0)
    leaves = rng.integers(0, 4, 100_000)  # whole numbers: every sum is exact
    tree = SumTree(100_000)
    tree.set(np.arange(100_000), leaves.astype(np.float64))
    masses = rng.integers(0, leaves.sum(), (4, 5000))
    np.testing.assert_array_equal(
        tree.find(masses.astype(np.float64)), np.searchsorted(np.cumsum(leaves), masses, side="right")
    )


def test_a_mass_behind_the_cumulated_sums_finds_a_leaf() -> None:
    tree = SumTree(4096)
    small = np.arange(4, 4096, 4)
    tree.set(np.concatenate(([0], small)), np.concatenate(([1e16], np.ones(len(small)))))
    # Added one by one, ones vanish beside 1e16; added in pairs first, as the tree does, they count.
    assert tree.total > 1e16
    assert tree.find(np.array([[1e16 + 500.0]])).reshape(-1)[0] in small


def test_a_huge_leaf_that_came_and_went_leaves_no_trace() -> None:
    tree, slots = SumTree(1000), np.arange(1000)
    rng = np.random.default_rng(0)
    leaves = rng.random(1000)
    tree.set(slots, leaves)
    total = tree.total
    for slot in range(0, 1000, 7):
        tree.set(np.array([slot]), np.array([1e180]))
        tree.set(np.array([slot]), leaves[[slot]])
    assert tree.total == total
    assert tree.check_valid() is None


@pytest.mark.parametrize("bad", [-1.0, -1e-320, np.nan, np.inf, -np.inf, 1e201])
def test_a_bad_leaf_changes_nothing(bad: float) -> None:
    tree = SumTree(8)
    tree.set(np.arange(8), np.ones(8))
    with pytest.raises(ValueError, match="nothing was changed"):
        tree.set(np.array([0, 1]), np.array([5.0, bad]))
    with pytest.raises(ValueError, match="nothing was changed"):
        tree.set(np.array([0, 8]), np.array([5.0, 5.0]))
    assert tree.leaves(np.arange(8)).tolist() == [1.0] * 8


def test_draws_are_in_proportion_and_cover_each_stratum() -> None:
    rng = np.random.default_rng(3)
    leaves = rng.random(200) ** 3
    leaves[::5] = 0.0
    tree = SumTree(200)
    tree.set(np.arange(200), leaves)
    num_batches, batch_size = 2000, 64
    slots = tree.draw_stratified(rng, num_batches, batch_size)
    assert slots.shape == (num_batches, batch_size)
    edges = np.cumsum(leaves)
    low = (edges - leaves)[slots] / tree.total * batch_size
    assert (low <= np.arange(batch_size) + 1).all()
    assert (edges[slots] / tree.total * batch_size >= np.arange(batch_size)).all()
    expected = leaves / leaves.sum() * slots.size
    counts = np.bincount(slots.reshape(-1), minlength=200)
    drawable = expected > 0
    assert counts[~drawable].sum() == 0
    # Strata make the counts less spread than multinomial ones: one-sided, and no single slot far off.
    freedom = drawable.sum() - 1
    chi_square = ((counts - expected)[drawable] ** 2 / expected[drawable]).sum()
    assert chi_square < freedom + 4.0 * np.sqrt(2.0 * freedom)
    assert np.abs((counts - expected)[drawable] / np.sqrt(expected[drawable])).max() < 4.5


@pytest.mark.parametrize("exponent", [0, -1, -64, -5000])
def test_scaling_is_exact_and_keeps_what_is_above_zero(exponent: int) -> None:
    rng = np.random.default_rng(0)
    tree, leaves = SumTree(50), np.where(rng.random(50) < 0.3, 0.0, 10.0 ** rng.uniform(-10, 10, 50))
    tree.set(np.arange(50), leaves)
    tree.scale(exponent, 1e-20)
    expected = np.where(leaves > 0.0, np.maximum(np.ldexp(leaves, exponent), 1e-20), 0.0)
    np.testing.assert_array_equal(tree.leaves(np.arange(50)), expected)
    assert tree.check_valid() is None


def test_no_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        SumTree(0)


def test_check_valid_notices_damage() -> None:
    tree = SumTree(4)
    tree.set(np.arange(4), np.ones(4))
    tree._nodes[2] = 3.0
    assert "sum of its children" in str(tree.check_valid())
    tree._nodes[2] = np.nan
    assert "not finite" in str(tree.check_valid())
