from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.learner.averaged_parameters import AveragedParameters


def _one(value: float) -> Any:
    return {"policy.bias": np.full(2, value, np.float32)}


def _value(average: Any) -> float:
    return float(average["policy.bias"][0])


def test_the_average_follows_its_equation() -> None:
    average = AveragedParameters(0.1, {})
    assert _value(average.take_in(_one(1.0), 0)) == 1.0  # the first is the average of itself
    expected = 1.0
    for updates, value in ((1, 2.0), (2, -1.0), (3, 0.5)):
        expected += 0.1 * (value - expected)
        assert _value(average.take_in(_one(value), updates)) == pytest.approx(expected, rel=1e-6)


def test_how_often_it_is_taken_in_does_not_matter_while_parameters_stand_still() -> None:
    often, seldom = AveragedParameters(0.05, {}), AveragedParameters(0.05, {})
    for average in (often, seldom):
        average.take_in(_one(1.0), 0)
    for updates in range(1, 21):
        by_each = often.take_in(_one(3.0), updates)
    assert _value(by_each) == pytest.approx(_value(seldom.take_in(_one(3.0), 20)), rel=1e-5)
    assert _value(seldom.take_in(_one(-9.0), 20)) == pytest.approx(_value(by_each), rel=1e-5)  # no update in between


def test_an_average_goes_on_where_it_was_saved() -> None:
    whole, first = AveragedParameters(0.1, {}), AveragedParameters(0.1, {})
    for average in (whole, first):
        average.take_in(_one(1.0), 100)
        average.take_in(_one(2.0), 110)
    second = AveragedParameters(0.1, first.state(), 110)
    np.testing.assert_array_equal(
        whole.take_in(_one(5.0), 130)["policy.bias"], second.take_in(_one(5.0), 130)["policy.bias"]
    )


def test_what_was_handed_out_does_not_change() -> None:
    average = AveragedParameters(0.5, {})
    parameters = _one(1.0)
    given = average.take_in(parameters, 0)
    parameters["policy.bias"] += 7
    average.take_in(_one(3.0), 10)
    assert _value(given) == 1.0


def test_other_networks_begin_a_new_average() -> None:
    average = AveragedParameters(0.5, {"policy.bias": np.ones(5, np.float32)}, 10)
    assert _value(average.take_in(_one(4.0), 20)) == 4.0


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="lies in"):
        AveragedParameters(rate, {})
