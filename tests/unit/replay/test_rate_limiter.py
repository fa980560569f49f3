from __future__ import annotations

import math
from typing import Any, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.rate_limiter import RateLimiter, Stock


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


def _stock(num_items: int, *, worn: int = 0, draws: float = math.inf, full: bool = False) -> Stock:
    return Stock(num_items, num_items + worn, draws, full)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"error_buffer": 79.0}, "20 steps x samples_per_insert 4 allows 80 samples.*at least 80"),
        ({"error_buffer": 63.0, "max_insert_steps": 1}, "takes 64 items; set error_buffer to at least 64"),
        ({"error_buffer": float("nan")}, "error_buffer is nan"),
        ({"min_size_to_sample": 1001}, "min_size_to_sample is 1001 items, but the table has only 1000 rows"),
        (
            {"min_size_to_sample": 961, "max_open_steps": 40},
            "961 items, but the table has only 1000 rows, of which 40.*at most 960",
        ),
        ({"max_times_sampled": 3}, "max_times_sampled 3 is below samples_per_insert 4.*to at least 4, or .* at most 3"),
        (
            {"max_times_sampled": 4, "capacity": 31, "min_size_to_sample": 1},
            "takes 64 items, but a table with room for 31 steps.*only 60 draws.*by 1 rows",
        ),
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
        assert limiter.can_insert(20, _stock(size - 20))
        limiter.insert(20, _stock(size - 20), _stock(size))
    assert (limiter.balance, limiter.can_sample(1, _stock(40))) == (0.0, False)
    limiter.insert(20, _stock(40), _stock(60))
    assert limiter.balance == 40.0
    assert limiter.can_sample(64, _stock(60))


def test_either_side_is_held_at_the_buffer() -> None:
    limiter = _limiter()
    limiter.insert(50, _stock(0), _stock(50))
    assert limiter.can_insert(25, _stock(50))
    assert not limiter.can_insert(26, _stock(50))
    assert "26 more steps" in limiter.why_no_insert(26)
    limiter.sample(64)
    assert not limiter.can_sample(37, _stock(50))
    assert "37 more" in limiter.why_no_sample(37, _stock(50))
    assert limiter.can_sample(36, _stock(50))


def test_without_a_ratio_only_the_size_counts() -> None:
    limiter = _limiter(samples_per_insert=0.0, error_buffer=0.0)
    assert limiter.can_insert(10**9, _stock(10**6))
    assert not limiter.can_sample(1, _stock(49))
    assert limiter.can_sample(10**9, _stock(50))
    assert "no limit" in limiter.explain(_stock(50))


def test_a_restored_table_owes_nothing() -> None:
    limiter = _limiter()
    limiter.restore(70, 10)
    assert (limiter.balance, limiter.inserted, limiter.sampled) == (0.0, 70, 10)
    assert limiter.check_valid() is None
    limiter.insert(1, _stock(70), _stock(71))
    assert limiter.balance == 4.0
    fresh = _limiter()
    fresh.restore(70, 10)
    fresh.insert(20, _stock(45), _stock(65))  # it had not reached its size yet
    assert fresh.balance == 60.0


def test_what_samples_could_not_free_is_forgiven_beyond_the_buffer() -> None:
    limiter = _limiter(max_times_sampled=4)
    limiter.insert(50, _stock(0), _stock(50, draws=200))
    for _ in range(10):  # the items were drawn up: inserts go on whatever they owe
        assert limiter.can_insert(20, _stock(30, worn=50, draws=120))
        limiter.insert(20, _stock(30, worn=50, draws=120), _stock(50, worn=50, draws=200))
        assert limiter.check_valid() is None
    assert limiter.balance == limiter.error_buffer == 100.0
    assert not limiter.can_insert(1, _stock(50, draws=200))
    assert "800 inserted" not in limiter.explain(_stock(50, draws=200))
    assert "200 inserted - 0 sampled - 700 forgiven = 100" in limiter.explain(_stock(50, draws=200))


def test_a_drawn_up_table_frees_inserts_and_holds_samples() -> None:
    limiter = _limiter(max_times_sampled=4)
    limiter.insert(50, _stock(0), _stock(50, draws=200))
    limiter.insert(25, _stock(50, draws=200), _stock(75, draws=300))
    assert not limiter.can_insert(1, _stock(50, draws=64))
    assert limiter.can_insert(20, _stock(50, draws=63))
    assert not limiter.can_sample(64, _stock(50, draws=63))
    assert "stand 63 more draws by max_times_sampled, and 64" in limiter.why_no_sample(64, _stock(50, draws=63))
    assert limiter.can_sample(63, _stock(50, draws=63))
    assert "30 more were drawn max_times_sampled times" in limiter.why_no_sample(1, _stock(20, worn=30, draws=80))


def test_a_full_ring_of_fewer_items_than_the_minimum_is_drawn_from() -> None:
    limiter = _limiter(min_size_to_sample=700)
    half = _stock(500, full=True)  # every second row is a final observation
    assert not limiter.can_sample(64, _stock(500))
    assert limiter.can_sample(64, half)
    assert "fewer items than the 700 of min_size_to_sample" in limiter.explain(half)
    assert not limiter.can_sample(64, _stock(0, full=True))
    assert "full of rows that start no item" in limiter.why_no_sample(1, _stock(0, full=True))
    # Items that were drawn up make room for fresh ones: worth waiting for.
    assert not limiter.can_sample(64, _stock(300, worn=200, full=True))
    limiter.insert(20, _stock(499), half)
    assert limiter.balance == 0.0
    limiter.insert(20, half, half)
    assert limiter.balance == 80.0


def test_explanations_hold_the_numbers() -> None:
    limiter = _limiter()
    assert "holds 3 items of the 50" in limiter.explain(_stock(3))
    limiter.insert(60, _stock(0), _stock(60))
    limiter.sample(8)
    assert "samples_per_insert 4 x 10 inserted - 8 sampled = 32 samples owed" in limiter.explain(_stock(60))


@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 64)), max_size=200),
    spi=st.sampled_from([0.1, 1.0, 4.0, 51.0]),
    most=st.sampled_from([0, 51, 60]),
    lost=st.integers(0, 3),
    capacity=st.integers(60, 1000),
)
def test_never_do_both_sides_wait(steps: List[Any], spi: float, most: int, lost: int, capacity: int) -> None:
    limiter = _limiter(
        samples_per_insert=spi, error_buffer=max(64.0, 20 * spi), max_times_sampled=most, capacity=capacity
    )
    left: List[int] = []  # draws that each item stands, the oldest first

    def stock() -> Stock:
        fresh = [draws for draws in left if draws > 0]
        return Stock(len(fresh), len(left), sum(fresh) if most else math.inf, len(left) == capacity)

    for wants_insert, amount in steps:
        may_insert, may_sample = limiter.can_insert(20, stock()), limiter.can_sample(64, stock())
        assert may_insert or may_sample
        if wants_insert and limiter.can_insert(min(amount, 20), stock()):
            before = stock()
            left = (left + [most or 1] * max(0, min(amount, 20) - lost))[-capacity:]
            limiter.insert(min(amount, 20), before, stock())
        elif not wants_insert and limiter.can_sample(amount, stock()):
            limiter.sample(amount)
            for _ in range(amount if most else 0):
                left[left.index(max(left))] -= 1
        assert limiter.check_valid() is None
        assert abs(limiter.balance) <= limiter.error_buffer + 1e-9
