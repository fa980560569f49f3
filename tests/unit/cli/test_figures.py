from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli import figures


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0:00"), (42.9, "0:42"), (725, "12:05"), (11235, "3:07:15"), (187_200, "2 d 04 h")],
)
def test_durations(seconds, text):
    assert figures.duration(seconds) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(0, "0.0"), (12.34, "12.3"), (148.3, "148"), (5123, "5123"), (37_900, "37.9k"), (1_234_567, "1.2M")],
)
def test_rates(per_second, text):
    assert figures.rate(per_second) == text


def test_counts_are_grouped():
    assert figures.count(1_000_000) == "1 000 000"


def test_a_rising_curve():
    assert figures.sparkline([i / 8 for i in range(8)], 8, 0.0, 1.0) == figures.BARS


@given(st.lists(st.floats(-10, 10), max_size=300), st.integers(0, 60))
def test_curves_fit_their_width(values, width):
    line = figures.sparkline(values, width, 0.0, 1.0)
    assert len(line) == min(width, len(values))
    assert set(line) <= set(figures.BARS)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300), st.integers(1, 60))
def test_a_curve_of_equal_values_is_flat(values, width):
    assert len(set(figures.sparkline([values[0]] * len(values), width, 0.0, 1.0))) == 1


def test_equal_bounds_are_no_division_by_zero():
    assert figures.sparkline([2.0, 2.0], 4, 2.0, 2.0) == "▁▁"


@given(st.lists(st.integers(0, 10**12), max_size=40))
def test_bars_show_what_is_there_and_nothing_else(counts):
    line = figures.bars(counts)
    assert len(line) == len(counts)
    assert [bar == " " for bar in line] == [count == 0 for count in counts]
    if any(counts):
        assert line[counts.index(max(counts))] == figures.BARS[-1]
    ordered = [figures.BARS.find(line[place]) for place in sorted(range(len(counts)), key=counts.__getitem__)]
    assert ordered == sorted(ordered)
