from __future__ import annotations

from services.cli.arguments import split_overrides


def test_overrides_are_parted_from_the_rest():
    words = ["up", "--run.seed", "2", "reach.toml", "--verbose", "--env.kwargs.a=1"]
    assert split_overrides(words) == (["up", "reach.toml", "--verbose"], ["--run.seed", "2", "--env.kwargs.a=1"])


def test_a_value_that_looks_like_a_flag_belongs_to_its_override():
    assert split_overrides(["--td3.noise_min", "-1", "x"]) == (["x"], ["--td3.noise_min", "-1"])


def test_an_override_without_a_value_stays_one():
    assert split_overrides(["up", "--run.seed"]) == (["up"], ["--run.seed"])


def test_a_dot_in_a_value_makes_no_override():
    assert split_overrides(["eval", "runs/a", "--out=a.b"]) == (["eval", "runs/a", "--out=a.b"], [])
