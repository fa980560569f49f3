from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.rates import RateMeter


def test_one_reading_has_no_rate():
    assert RateMeter().read(1.0, 500) == 0.0


def test_the_rate_is_that_of_the_window():
    meter = RateMeter(window_s=2.0)
    for second in range(10):
        meter.read(float(second), 100.0 * second)
    assert [meter.read(10.0 + second, 900.0) for second in range(4)][-1] == 0.0


def test_a_counter_that_began_anew_gives_no_negative_rate():
    meter = RateMeter()
    meter.read(0.0, 1000)
    assert meter.read(1.0, 10) == 0.0
    assert meter.read(2.0, 60) == pytest.approx(50.0)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_rates_are_never_negative(counts):
    meter = RateMeter()
    assert all(meter.read(0.5 * i, count) >= 0 for i, count in enumerate(counts))


@given(st.floats(0.1, 1e6), st.integers(3, 60))
def test_a_steady_counter_has_its_rate(per_second, readings):
    meter = RateMeter()
    rates = [meter.read(0.5 * i, per_second * 0.5 * i) for i in range(readings)]
    assert rates[1:] == pytest.approx([per_second] * (readings - 1))
