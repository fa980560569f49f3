from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.common.config.load import load
from services.common.config.run import RunConfig
from services.common.lifecycle import Lifecycle
from services.common.rpc import Stopped
from services.learner.helper import Helper
from tests.fakes import FakeLog


def config(*flags: str) -> RunConfig:
    usual = ("--run.name", "test", "--helper.chief", "127.0.0.1:1", "--replay.addresses", "127.0.0.1:2")
    return load(None, [*usual, *flags]).config


def test_a_learner_with_a_chief_is_a_helper_and_its_help_says_so() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "services.learner", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0
    assert "[--chief VALUE]" in ended.stdout


def test_only_a_helper_with_a_name_of_its_own_keeps_something(tmp_path: Path, log: FakeLog) -> None:
    named = Helper(config("--helper.name", "helper-3", "--run.folder", str(tmp_path)), Lifecycle(), log)
    assert named._file == tmp_path / "test" / "helpers" / "helper-3.safetensors"
    assert named._peer.name == "helper-3"
    nameless = Helper(config("--run.folder", str(tmp_path)), Lifecycle(), log)
    assert nameless._file is None
    assert nameless._peer.name.startswith("helper-")
    for helper in (named, nameless):
        helper.__exit__()
    assert not (tmp_path / "test").exists()


def test_two_helpers_draw_other_noise_and_one_of_the_same_name_the_same(log: FakeLog) -> None:
    seeds = []
    for flags in (("a",), ("b",), ("a",), ("a", "--run.seed", "7")):
        helper = Helper(config("--helper.name", *flags), Lifecycle(), log)
        seeds.append(helper._seed)
        helper.__exit__()
    assert seeds[0] == seeds[2]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_helper_that_is_stopped_while_it_waits_for_everybody_ends_in_time(tmp_path: Path, log: FakeLog) -> None:
    life = Lifecycle()
    life.stop("the test says so")
    with pytest.raises(Stopped), Helper(config("--run.folder", str(tmp_path)), life, log) as helper:
        helper.contribute()
