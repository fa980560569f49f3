from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.learner.contributions import (
    AsynchronousContributions,
    Share,
    SynchronousContributions,
    average,
    mean_cosine,
    rate_scale,
)


def share(name: str = "a", items: int = 1, lag: int = 0, **gradients: Any) -> Share:
    return Share(name, items, {k: np.asarray(v, np.float32) for k, v in gradients.items()}, lag)


# One gradient of each


def test_a_step_waits_for_each_that_was_alive_when_its_base_was_opened() -> None:
    contributions = SynchronousContributions()
    contributions.open(5, 100, ["b", "a"])
    assert contributions.missing(["a", "b", "late"]) == ["a", "b"]
    contributions.add(share("b"))
    assert contributions.missing(["a", "b"]) == ["a"]
    assert contributions.missing(["b"]) == []  # the lease of a has ended
    contributions.add(share("late"))
    assert not contributions.has_room("late")
    assert contributions.check_valid() is None
    assert [s.contributor for s in contributions.take()] == ["b", "late"]
    assert contributions.check_valid() is None


def test_only_the_open_base_is_taken() -> None:
    contributions = SynchronousContributions()
    assert contributions.why_stale(0) != ""
    contributions.open(5, 100, ["a"])
    assert contributions.why_stale(5) == ""
    assert contributions.why_stale(4) == "the gradient is of version 4, and the chief takes gradients of 5"
    assert contributions.why_stale(6) != ""
    contributions.take()
    assert contributions.why_stale(5) == "the gradient is of version 5, and its step is taken"
    assert contributions.missing(["a"]) == []


def test_who_is_dropped_is_neither_waited_for_nor_counted() -> None:
    contributions = SynchronousContributions()
    contributions.open(5, 100, ["a", "b"])
    contributions.add(share("a"))
    contributions.drop("a")
    contributions.drop("b")
    assert contributions.missing(["a", "b"]) == []
    assert contributions.take() == []


# As they come


def test_a_step_for_each_so_many() -> None:
    contributions = AsynchronousContributions(accumulate=3, max_lag_updates=2)
    contributions.open(1, 10, ["a"])
    assert contributions.missing(["a"]) == []
    for number in range(2):
        assert contributions.has_room("a")
        contributions.add(share(f"c{number}"))
        assert contributions.take() == []
    contributions.add(share("c2"))
    assert not contributions.has_room("a")
    contributions.add(share("chief"))  # which has its place
    assert contributions.check_valid() is None
    assert [s.contributor for s in contributions.take()] == ["c0", "c1", "c2", "chief"]
    assert contributions.is_empty


def test_the_bound_of_the_lag_is_exact() -> None:
    contributions = AsynchronousContributions(accumulate=2, max_lag_updates=2)
    for update in range(4):
        contributions.open(10 + update, update, [])
    assert [contributions.why_stale(10 + u) == "" for u in range(4)] == [False, True, True, True]
    assert [contributions.lag(10 + u) for u in (1, 2, 3)] == [2, 1, 0]
    assert "more than gradients.max_lag_updates = 2 updates behind the newest, 13" in contributions.why_stale(10)
    contributions.take(even_few=True)
    # What comes while the step is being taken belongs to the step after.
    assert contributions.why_stale(11) != ""
    assert [contributions.lag(10 + u) for u in (2, 3)] == [2, 1]
    contributions.open(14, 4, [])
    assert [contributions.lag(10 + u) for u in (2, 3, 4)] == [2, 1, 0]
    assert contributions.check_valid() is None
    contributions.close()
    assert contributions.why_stale(14) != ""


def test_few_are_enough_when_no_more_will_come() -> None:
    contributions = AsynchronousContributions(accumulate=5, max_lag_updates=2)
    contributions.open(1, 0, [])
    contributions.add(share("a"))
    assert contributions.take() == []
    assert len(contributions.take(even_few=True)) == 1


# The mean


def test_a_single_gradient_comes_back_bit_for_bit() -> None:
    gradient = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    result = average([share("a", 7, w=gradient), share("b", 0)])
    np.testing.assert_array_equal(result["w"], gradient)
    assert result["w"].dtype == np.float32


def test_shares_count_by_their_items() -> None:
    result = average([share("a", 30, w=[1.0]), share("b", 10, w=[5.0])])
    np.testing.assert_allclose(result["w"], [2.0])


def test_a_delayed_policy_is_averaged_over_those_that_have_it() -> None:
    result = average([share("a", 1, q=[1.0], pi=[3.0]), share("b", 1, q=[2.0])])
    np.testing.assert_allclose(result["q"], [1.5])
    np.testing.assert_allclose(result["pi"], [3.0])


def test_late_ones_count_for_less_within_the_mean_and_shorten_the_step() -> None:
    shares = [share("a", 8, w=[1.0]), share("b", 8, lag=1, w=[4.0]), share("c", 0)]
    np.testing.assert_allclose(average(shares)["w"], [2.0])  # (1 + 4/2) / 1.5
    assert rate_scale(shares) == 0.75
    assert rate_scale([share("a", 8), share("b", 4)]) == 1.0
    assert rate_scale([share("a", 8, lag=3)]) == 0.25


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 4)), min_size=1, max_size=8), st.integers(0, 2**31))
def test_the_mean_is_that_of_the_equation(contributors: List[Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = [share(str(i), n, lag, w=rng.standard_normal(5)) for i, (n, lag) in enumerate(contributors)]
    weights = np.array([n / (1 + lag) for n, lag in contributors])
    expected = sum(w * s.gradients["w"].astype(np.float64) for w, s in zip(weights, shares)) / weights.sum()
    np.testing.assert_allclose(average(shares)["w"], expected, rtol=1e-4, atol=1e-6)


# How contributors agree


def test_the_mean_cosine_is_that_over_pairs() -> None:
    rng = np.random.default_rng(3)
    vectors = [rng.standard_normal(20) for _ in range(4)]
    shares = [share(str(i), 1, w=v[:12], b=v[12:]) for i, v in enumerate(vectors)]
    units = [v / np.linalg.norm(v) for v in vectors]
    pairs = [units[i] @ units[j] for i in range(4) for j in range(i)]
    assert mean_cosine(shares) == pytest.approx(np.mean(pairs), abs=1e-5)
    assert mean_cosine([shares[0], shares[0]]) == pytest.approx(1.0, abs=1e-5)


def test_there_is_no_cosine_without_two_gradients_that_are_not_zero() -> None:
    assert mean_cosine([share("a", 1, w=[1.0])]) is None
    assert mean_cosine([share("a", 1, w=[1.0]), share("b", 0)]) is None
    assert mean_cosine([share("a", 1, w=[1.0]), share("b", 1, w=[0.0])]) is None
    assert mean_cosine([share("a", 1, w=[1.0]), share("b", 1, v=[1.0])]) is None
