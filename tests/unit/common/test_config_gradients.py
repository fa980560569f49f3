from __future__ import annotations

import pytest

from services.common.config.load import ConfigError, load


def test_lockstep_is_the_synchronous_mode_and_a_bound_of_zero_says_so() -> None:
    with pytest.raises(ConfigError, match="lockstep is mode = 'synchronous', or allow at least 1"):
        load(None, ["--gradients.mode", "asynchronous", "--gradients.max_lag_updates", "0"])
    assert load(None, ["--gradients.max_lag_updates", "0"]).config.gradients.mode == "synchronous"
    assert load(None, ["--gradients.mode", "asynchronous", "--gradients.max_lag_updates", "1"])


def test_a_helpers_chief_is_an_address_or_none() -> None:
    assert load(None, ["--helper.chief", "127.0.0.1:7402"]).config.helper.chief == "127.0.0.1:7402"
    assert load(None, ["--helper.chief", ""]).config.helper.chief == ""
    with pytest.raises(ConfigError, match="'learner' is no address"):
        load(None, ["--helper.chief", "learner"])


@pytest.mark.parametrize("name", ["..", ".", "a/b"])
def test_a_helpers_name_is_one_of_a_file(name: str) -> None:
    with pytest.raises(ConfigError, match=r"helper\.name"):
        load(None, ["--helper.name", name])


def test_no_more_helpers_are_planned_than_are_let_in() -> None:
    with pytest.raises(ConfigError, match=r"helper.count = 3 is more than gradients.max_helpers = 2"):
        load(None, ["--helper.count", "3", "--gradients.max_helpers", "2"])
