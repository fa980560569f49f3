from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("scipy")
from bench.learning.curves import area, compare, first_at, interquartile_mean, verdict


def test_the_area_is_the_mean_success_over_training() -> None:
    assert area([], [], 100) == 0.0
    assert area([50], [1.0], 100) == pytest.approx(0.75)  # rises for half of it, then holds
    assert area([20, 100], [0.5, 0.5], 100) == pytest.approx(0.45)


def test_the_bar_is_reached_or_censored() -> None:
    assert first_at(0.9, [10, 20, 30], [0.5, 0.9, 0.8]) == 20
    assert math.isinf(first_at(0.9, [10], [0.5]))


def test_the_interquartile_mean_leaves_out_the_ends() -> None:
    assert interquartile_mean(np.array([-100.0, 1.0, 2.0, 3.0, 100.0])) == pytest.approx(2.0)


def test_arms_that_are_alike_pass_and_others_do_not() -> None:
    rng = np.random.default_rng(1)
    base = 0.8 + 0.01 * rng.standard_normal(5)
    alike = compare(base, base + 0.005 * rng.standard_normal(5), rng)
    assert verdict(alike, 0.15)[0]
    worse = compare(base, base - 0.1 + 0.005 * rng.standard_normal(5), rng)
    assert worse.high < 0.0
    assert worse.difference == pytest.approx(-0.125, abs=0.03)
    assert not verdict(worse, 0.15)[0]
    noisy = compare(base, base + 0.4 * np.array([-1, 1, -1, 1, 0]), rng)
    passed, sentence = verdict(noisy, 0.15)
    assert not passed
    assert "% wide" in sentence
