from __future__ import annotations

import sys
from pathlib import Path

from services.cli.plan import ALLOCATION, child_environ, plan_children
from services.cli.ports import Endpoints
from services.common.config.load import load
from services.common.lifecycle import LIFELINE_VARIABLE

METRICS = {"replay": 1, "learner": 2, "evaluator": 3, "actor-0": 4, "actor-1": 5, "helper-0": 6, "helper-1": 7}
ENDPOINTS = Endpoints("127.0.0.1:71", "127.0.0.1:72", METRICS)


def plan(*flags):
    return plan_children(load(None, flags).config, Path("runs/a/config.toml"), ENDPOINTS, {}, 9)


def test_who_is_started_and_in_which_order():
    assert [spec.name for spec in plan()] == ["replay", "learner", "evaluator", "actor-0", "actor-1"]
    assert [spec.name for spec in plan("--evaluator.enabled", "false", "--actor.count", "1")] == [
        "replay",
        "learner",
        "actor-0",
    ]


def test_every_command_is_one_that_its_config_takes():
    for spec in plan():
        assert spec.command[:2] == (sys.executable, "-m")
        loaded = load(None, spec.command[4:])
        assert loaded.config.replay.addresses == ("127.0.0.1:71",)
        assert loaded.config.learner.address == "127.0.0.1:72"
        assert getattr(loaded.config, spec.role).metrics_port == ENDPOINTS.metrics[spec.name]


def test_helpers_are_learners_of_the_chief_with_names_of_their_own():
    specs = plan("--helper.count", "2", "--learner.torch_threads", "3")
    assert [spec.name for spec in specs][:4] == ["replay", "learner", "helper-0", "helper-1"]
    for spec in specs[2:4]:
        assert spec.role == "helper"
        assert spec.command[2] == specs[1].command[2] == "services.learner"
        helper = load(None, spec.command[4:]).config.helper
        assert (helper.chief, helper.name, helper.metrics_port) == ("127.0.0.1:72", spec.name, METRICS[spec.name])
        assert spec.environ["OMP_NUM_THREADS"] == "3"


def test_a_chief_of_the_run_file_is_for_learners_that_are_started_by_hand():
    flags = ("--helper.chief", "127.0.0.1:99", "--helper.count", "1")
    by_name = {spec.name: load(None, spec.command[4:]).config.helper.chief for spec in plan(*flags)}
    assert (by_name["learner"], by_name["helper-0"]) == ("", "127.0.0.1:72")


def test_quarantine_dumps_go_to_the_run_unless_another_folder_was_chosen():
    assert load(None, plan()[0].command[4:]).config.replay.dump_dir == "runs/a/quarantine"
    assert "--replay.dump_dir" not in plan("--replay.dump_dir", "/elsewhere")[0].command


def test_actors_have_an_index_and_a_name():
    actors = [load(None, spec.command[4:]).config.actor for spec in plan() if spec.role == "actor"]
    assert [(actor.index, actor.name) for actor in actors] == [(0, "actor-0"), (1, "actor-1")]


def test_overrides_of_the_run_file_are_not_inherited():
    environ = child_environ({"SHOAL_RUN__SEED": "5", "PATH": "/bin", "OMP_NUM_THREADS": "3"}, 9, threads=1)
    assert "SHOAL_RUN__SEED" not in environ
    assert environ["PATH"] == "/bin"
    assert environ["OMP_NUM_THREADS"] == "3"
    assert environ[LIFELINE_VARIABLE] == "9"
    assert {name: environ[name] for name in ALLOCATION} == ALLOCATION


def test_the_learner_has_the_threads_that_it_asks_for():
    threads = {spec.role: spec.environ["OMP_NUM_THREADS"] for spec in plan("--learner.torch_threads", "2")}
    assert threads == {"replay": "1", "learner": "2", "evaluator": "1", "actor": "1"}


def test_actors_have_the_threads_that_they_ask_for():
    threads = {spec.role: spec.environ["OMP_NUM_THREADS"] for spec in plan("--actor.torch_threads", "3")}
    assert threads == {"replay": "1", "learner": "1", "evaluator": "1", "actor": "3"}
