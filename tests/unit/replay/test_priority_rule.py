from __future__ import annotations

import numpy as np
import pytest

from services.replay.priority_rule import DRIFT, TdErrorRule, TdErrorVisitsRule, make_rule


def test_the_formula_with_visits_is_pinned() -> None:
    rule = TdErrorVisitsRule(0.75)
    rule.begin(np.array([1.0, 3.0]))
    magnitude, times = np.array([0.0, 4.0, 4.0, 1e10]), np.array([0, 0, 3, 8])
    expected = [0.25, 0.75 * 2 + 0.25, 0.75 * 2 + 0.25 / 2, 0.75 * 5e9 + 0.25 / 3]
    np.testing.assert_allclose(rule.priority(magnitude, times), expected)
    np.testing.assert_allclose(TdErrorVisitsRule(0.0).priority(magnitude, times), 1 / np.sqrt(times + 1))


def test_the_plain_rule_is_the_magnitude() -> None:
    magnitude = np.array([1e-6, 2.0])
    assert TdErrorRule().priority(magnitude, np.array([0, 99])).tolist() == [1e-6, 2.0]
    assert not TdErrorRule().observe(magnitude)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_visits_do_not_swamp_td_errors_whatever_their_scale(scale: float) -> None:
    rule = TdErrorVisitsRule(0.5)
    rng = np.random.default_rng(0)
    for _ in range(100):
        rule.observe(scale * rng.random(100))
    p = rule.priority(scale * np.array([0.1, 1.0]), np.zeros(2, np.int64))
    np.testing.assert_allclose(p, [0.6, 1.5], rtol=0.2)


def test_the_leaves_mean_follows_the_running_mean_in_steps() -> None:
    rule = TdErrorVisitsRule(1.0)
    assert rule.observe(np.full(10_000, 2.0))
    assert rule.mean == 2.0
    moves = [rule.observe(np.full(100, 4.0)) for _ in range(400)]
    assert 3 <= sum(moves) <= 9
    assert rule.running_mean == pytest.approx(4.0, rel=0.05)
    assert 1 / DRIFT <= rule.mean / rule.running_mean <= DRIFT
    assert not rule.observe(np.zeros(0))


def test_one_huge_td_error_moves_the_mean_by_a_hundredth() -> None:
    rule = TdErrorVisitsRule(0.5)
    rule.observe(np.full(10_000, 2.0))
    rule.observe(np.array([1e10]))
    assert 2.0 < rule.running_mean < 2.03


def test_p_stays_in_its_range() -> None:
    rule = TdErrorVisitsRule(1.0)
    rule.begin(np.full(5, 1e-10))
    assert rule.priority(np.array([1e-10 * 1e-9, 1e10]), np.zeros(2, np.int64)).tolist() == [1e-9, 1e10]


def test_rules_have_names() -> None:
    assert isinstance(make_rule("td_error", 2.0), TdErrorRule)
    assert isinstance(make_rule("td_error_visits", 0.3), TdErrorVisitsRule)
    with pytest.raises(ValueError, match="'rank'; it must be one of td_error, td_error_visits"):
        make_rule("rank", 0.3)
    with pytest.raises(ValueError, match=r"td_weight is 1\.5"):
        make_rule("td_error_visits", 1.5)
