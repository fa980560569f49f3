from __future__ import annotations

from typing import Any, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.rate_limiter import RateLimiter


def _limiter(**changes: Any) -> RateLimiter:
    values = {
        "samples_per_insert": 4.0,
        "error_buffer": 100.0,
        "min_size_to_sample": 50,
        "capacity": 1000,
        "max_insert_steps": 20,
        "max_sample_items": 64,
    }
    return RateLimiter(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"error_buffer": 79.0}, "20 steps x samples_per_insert 4 allows 80 samples.*at least 80"),
        ({"error_buffer": 63.0, "max_insert_steps": 1}, "takes 64 items; set error_buffer to at least 64"),
        ({"error_buffer": float("nan")}, "error_buffer is nan"),
        ({"min_size_to_sample": 1001}, "min_size_to_sample is 1001 items, but the table has only 1000 rows"),
        ({"min_size_to_sample": 0}, "must be at least 1"),
        ({"samples_per_insert": -1.0}, "samples_per_insert is -1"),
        ({"samples_per_insert": float("nan")}, "samples_per_insert is nan"),
    ],
)
def test_settings_that_could_deadlock_are_refused_with_the_arithmetic(changes: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        _limiter(**changes)


def test_filling_up_owes_nothing_and_the_crossing_owes_the_excess() -> None:
    limiter = _limiter()
    for size in (20, 40):
        assert limiter.can_insert(20, size - 20)
        limiter.insert(20, size - 20, size)
    assert (limiter.balance, limiter.can_sample(1, 40)) == (0.0, False)
    limiter.insert(20, 40, 60)
    assert limiter.balance == 40.0
    assert limiter.can_sample(64, 60)


def test_either_side_is_held_at_the_buffer() -> None:
    limiter = _limiter()
    limiter.insert(50, 0, 50)
    assert limiter.can_insert(25, 50)
    assert not limiter.can_insert(26, 50)
    assert "26 more steps" in limiter.why_no_insert(26)
    limiter.sample(64)
    assert not limiter.can_sample(37, 50)
    assert "37 more" in limiter.why_no_sample(37, 50)
    assert limiter.can_sample(36, 50)


def test_without_a_ratio_only_the_size_counts() -> None:
    limiter = _limiter(samples_per_insert=0.0, error_buffer=0.0)
    assert limiter.can_insert(10**9, 10**6)
    assert not limiter.can_sample(1, 49)
    assert limiter.can_sample(10**9, 50)
    assert "no limit" in limiter.explain(50)


def test_a_reset_owes_nothing() -> None:
    limiter = _limiter()
    limiter.insert(50, 0, 50)
    limiter.insert(20, 50, 70)
    limiter.sample(10)
    assert limiter.balance == 70.0
    limiter.reset()
    assert (limiter.balance, limiter.inserted, limiter.sampled) == (0.0, 70, 10)
    assert limiter.check_valid() is None
    limiter.insert(1, 70, 71)
    assert limiter.balance == 4.0


def test_explanations_hold_the_numbers() -> None:
    limiter = _limiter()
    assert "holds 3 items of the 50" in limiter.explain(3)
    limiter.insert(60, 0, 60)
    limiter.sample(8)
    assert "samples_per_insert 4 x 10 inserted - 8 sampled = 32 samples owed" in limiter.explain(60)


@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 64)), max_size=200),
    spi=st.sampled_from([0.1, 1.0, 4.0, 51.0]),
    lost=st.integers(0, 3),
)
def test_never_do_both_sides_wait(steps: List[Any], spi: float, lost: int) -> None:
    limiter = _limiter(samples_per_insert=spi, error_buffer=max(64.0, 20 * spi))
    size = 0
    for wants_insert, amount in steps:
        may_insert, may_sample = limiter.can_insert(20, size), limiter.can_sample(64, size)
        assert may_insert or may_sample
        if wants_insert and limiter.can_insert(min(amount, 20), size):
            after = size + max(0, min(amount, 20) - lost)
            limiter.insert(min(amount, 20), size, after)
            size = after
        elif not wants_insert and limiter.can_sample(amount, size):
            limiter.sample(amount)
        assert limiter.check_valid() is None
        assert abs(limiter.balance) <= limiter.error_buffer + 1e-9
