"""Rounds alternate, and figures are made of them within rounds."""

from __future__ import annotations

from typing import Dict, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.replay.rounds import Rates, alternate, count_for, fastest


def test_cases_take_turns() -> None:
    asked: List[str] = []

    def measure(case: str) -> float:
        asked.append(case)
        return 1.0

    rates = alternate(["a", "b"], 3, measure, lambda case, why: pytest.fail(f"{case}: {why}"))
    assert asked == ["a", "b", "a", "b", "a", "b"]
    assert rates.by_case == {"a": [1.0] * 3, "b": [1.0] * 3}


def test_a_case_that_fails_is_left_out_with_its_rounds_and_the_others_go_on() -> None:
    failures: List[Tuple[str, str]] = []
    asked: Dict[str, int] = {"a": 0, "b": 0}

    def measure(case: str) -> float:
        asked[case] += 1
        if case == "a" and asked["a"] == 2:
            raise RuntimeError("its process ended")
        return 2.0

    rates = alternate(["a", "b"], 3, measure, lambda case, why: failures.append((case, why)))
    assert failures == [("a", "its process ended")]
    assert asked == {"a": 2, "b": 3}
    assert rates.by_case == {"b": [2.0] * 3}
    assert rates.median("a") is None
    assert rates.ratio("a", "b") is None


def test_a_ratio_is_taken_within_rounds() -> None:
    # The machine was ten times slower in the second round: medians of each alone would be 20 and 20.
    rates = Rates({"ours": [40.0, 4.0, 20.0], "theirs": [20.0, 2.0, 30.0]})
    assert rates.ratio("ours", "theirs") == 2.0
    assert rates.median("ours") == 20.0
    assert rates.spread("ours") == pytest.approx(36 / 20)


@given(
    st.lists(st.tuples(st.floats(1, 1e6), st.floats(0.01, 1.0)), min_size=1, max_size=9),
    st.sampled_from([0.25, 0.5, 2.0, 8.0]),
)
def test_load_that_meets_a_round_alike_leaves_the_ratio_alone(rounds: List[Tuple[float, float]], factor: float) -> None:
    theirs = [rate * load for rate, load in rounds]
    ours = [rate * factor * load for rate, load in rounds]
    assert Rates({"ours": ours, "theirs": theirs}).ratio("ours", "theirs") == pytest.approx(factor)


def test_the_count_of_a_round_follows_the_rate_but_not_below_the_least() -> None:
    assert count_for(1000.0, 0.5, 4) == 500
    assert count_for(1.0, 0.5, 4) == 4


def test_the_fastest_variant_is_chosen() -> None:
    assert fastest({"slow": 1.0, "fast": 3.0, "also fast": 3.0}) == "fast"
    with pytest.raises(ValueError, match="empty"):
        fastest({})
