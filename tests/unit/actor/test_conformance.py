"""The doctor finds each planted fault, and nothing where there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from services.actor.conformance.__main__ import main
from services.actor.conformance.finding import Finding, Level
from services.actor.conformance.record import compare
from services.actor.conformance.trial import Examination, Stage, Trial
from services.actor.conformance.trial_process import run_trial
from services.common.config.run import EnvSection, RunConfig

LANES = 6


def make_trial(folder: Path, *, steps: int = 150, file: str = "", is_repeat: bool = False) -> Trial:
    return Trial(
        file=file,
        flags=(),
        steps=steps,
        seconds=60.0,
        result=str(folder / "result.json"),
        record=str(folder / f"record-{is_repeat:d}.npz"),
        stage=str(folder / "stage"),
        is_repeat=is_repeat,
    )


def examine(folder: Path, fault: str, steps: int = 150, **options: Any) -> Dict[str, Finding]:
    """The findings of one trial in this process, by their check."""
    env = EnvSection(factory="tests.bad_envs:make", kwargs={"fault": fault, **options}, lanes=LANES)
    trial = make_trial(folder, steps=steps)
    found = list(Examination(trial, RunConfig(env=env), Stage(trial.stage)).run())
    assert all(finding.fix for finding in found if finding.level is not Level.OK)
    assert len({finding.check for finding in found}) == len(found) or "shapes" in found[1].check
    return {finding.check: finding for finding in found}


def troubles(findings: Dict[str, Finding]) -> List[str]:
    return [check for check, finding in findings.items() if finding.level is not Level.OK]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_a_sound_environment_has_nothing_to_look_at(tmp_path: Path, autoreset: str) -> None:
    findings = examine(tmp_path, "", autoreset=autoreset)
    assert troubles(findings) == []
    assert autoreset in findings["auto-reset"].what
    assert set(findings) >= {"build", "shapes and dtypes", "reset rows", "episodes", "time-outs", "failures", "buffers"}
    assert set(findings) >= {"finite values", "reward", "metrics", "speed", "seed", "actions", "beyond the bounds"}


# fault, options of the environment, check, level, words of the sentence, other checks that may complain too
PLANTED = [
    (
        "",
        {"declared": "next_step"},
        "auto-reset",
        "fault",
        "declared next_step, but .* ends show same_step",
        {"reset rows"},
    ),
    (
        "junk unmarked",
        {"declared": "same_step", "autoreset": "next_step"},
        "auto-reset",
        "fault",
        "declared same_step, but .* ends show next_step",
        {"reward"},
    ),
    (
        "untold",
        {},
        "auto-reset",
        "fault",
        "no method reset_lanes",
        {"reward", "time-outs", "failures", "final observations"},
    ),
    ("never resets", {}, "auto-reset", "fault", "followed by an end at once", {"final observations", "failures"}),
    ("junk unmarked", {"autoreset": "next_step"}, "reset rows", "fault", "rows after an end are valid", {"reward"}),
    ("marked at random", {}, "reset rows", "fault", "rows that follow no end", {"failures"}),
    ("final is the next episode's", {}, "final observations", "fault", "are those of the next episode", set()),
    ("no final", {}, "final observations", "fault", "no true next observation", set()),
    ("exchanged", {}, "final observations", "fault", "true_next_observation does not", set()),
    ("final of another lane", {}, "final observations", "warning", "ordinary moves away", set()),
    ("time-outs as terminations", {}, "time-outs", "warning", "ended at the same maximal length 12", set()),
    ("time-outs on failures", {}, "failures", "warning", "terminated and truncated at once", set()),
    ("failures as time-outs", {}, "failures", "warning", "truncated at . different lengths", set()),
    ("endless", {}, "episodes", "warning", "none ended within", {"auto-reset", "observation scale"}),
    ("NaN", {}, "finite values", "fault", "observation 'policy' 1 times, first in call 5, lane 1", set()),
    ("infinite reward", {}, "finite values", "fault", "reward 1 times, first in call 5, lane 2", set()),
    ("large rewards", {}, "reward", "warning", "mean -", set()),
    ("small rewards", {}, "reward", "warning", "mean -", set()),
    ("no reward", {}, "reward", "warning", "always 0", set()),
    ("unscaled", {}, "observation scale", "warning", "on average", set()),
    ("no metrics", {}, "metrics", "warning", "no success", set()),
    ("sick metrics", {}, "metrics", "warning", "distance held values", set()),
    ("writes to actions", {}, "buffers", "warning", "wrote to the array of the actions", set()),
    ("long flags", {}, "shapes and dtypes", "fault", "truncated is int64; it must be bool .in call 1", set()),
    ("uint8 flags", {}, "shapes and dtypes", "fault", "is uint8; it must be bool", set()),
    ("double observations", {}, "shapes and dtypes", "fault", "is float64 after step", set()),
    ("wrong shape", {}, "stepping", "fault", "ended in call 1", {"shapes and dtypes"}),
    ("unseeded", {}, "seed", "warning", "same seed begin differently", {"actions"}),
    ("one beginning", {}, "seed", "warning", "different seeds begin alike", set()),
    ("lanes alike", {}, "seed", "warning", "all lanes begin alike", {"final observations"}),
    ("deaf", {}, "actions", "warning", "lead to the same observations", {"auto-reset"}),
    (
        "raises",
        {},
        "crash",
        "fault",
        "step, call 4 raised RuntimeError: the gripper is lost",
        {"auto-reset", "episodes"},
    ),
    ("exits", {}, "crash", "fault", r"ended the process: sys.exit\(0\)", {"auto-reset", "episodes"}),
    ("cannot be built", {}, "build", "fault", "could not be built: RuntimeError: no device", set()),
]


@pytest.mark.parametrize(("fault", "options", "check", "level", "words", "others"), PLANTED)
def test_a_planted_fault_is_found(
    tmp_path: Path, fault: str, options: Any, check: str, level: str, words: str, others: Any
) -> None:
    findings = examine(tmp_path, fault, **options)
    finding = findings[check]
    assert finding.level.value == level, finding
    assert re.search(words, finding.what), finding.what
    assert set(troubles(findings)) - {check} <= others


def test_reused_buffers_are_told_and_are_no_fault(tmp_path: Path) -> None:
    findings = examine(tmp_path, "reused")
    assert troubles(findings) == []
    assert findings["buffers"].what.startswith("the next step writes to observation 'policy'")


def test_tensors_of_a_device_are_looked_at_as_arrays_are(tmp_path: Path) -> None:
    assert troubles(examine(tmp_path, "tensors")) == []


def test_actions_beyond_the_bounds_may_be_refused(tmp_path: Path) -> None:
    findings = examine(tmp_path, "refuses")
    assert troubles(findings) == []
    assert findings["beyond the bounds"].what == "actions are refused (ValueError); policies stay within"


def test_tails_that_are_dropped_are_counted(tmp_path: Path) -> None:
    findings = examine(tmp_path, "no final", allow_missing_final_obs="drop")
    assert troubles(findings) == []
    assert "are dropped, as allow_missing_final_obs asks" in findings["final observations"].what


def test_an_algorithm_that_cannot_act_here_is_said(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"env": {"factory": "CartPole-v1", "lanes": 2}, "algorithm": {"name": "td3"}})
    trial = make_trial(tmp_path, steps=60)
    found = {finding.check: finding for finding in Examination(trial, config, Stage(trial.stage)).run()}
    assert found["algorithm"].level is Level.FAULT
    assert found["auto-reset"].level is Level.OK


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_episodes_that_move_as_far_as_a_reset_are_told_by_how_they_begin(tmp_path: Path, autoreset: str) -> None:
    kwargs = {"autoreset": autoreset, "max_episode_steps": 100}
    config = RunConfig.model_validate({"env": {"factory": "Acrobot-v1", "lanes": 4, "kwargs": kwargs}})
    trial = make_trial(tmp_path, steps=320)
    found = {finding.check: finding for finding in Examination(trial, config, Stage(trial.stage)).run()}
    assert found["auto-reset"].level is Level.OK, found["auto-reset"]
    assert autoreset in found["auto-reset"].what


def run_file(folder: Path, fault: str, lanes: int = LANES) -> str:
    file = folder / "run.toml"
    kwargs = f'{{ fault = "{fault}" }}'
    file.write_text(f'[env]\nfactory = "tests.bad_envs:make"\nlanes = {lanes}\nkwargs = {kwargs}\n', encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("os exit", "it ended with exit code 0 in step, call 4"),
        ("segfault", "it ended by SIGSEGV in step, call 4"),
        ("hangs", "it did not return from step, call 4 for 8 s, and was ended"),
    ],
)
def test_a_process_that_ends_or_hangs_is_said(tmp_path: Path, fault: str, words: str) -> None:
    trial = make_trial(tmp_path, file=run_file(tmp_path, fault))
    outcome = run_trial(trial, tmp_path / "trial.json", stall_s=8.0)
    assert not outcome.is_complete
    assert [finding.what for finding in outcome.findings] == [words]
    assert outcome.findings[0].level is Level.FAULT


def test_the_report_is_json_and_names_the_first_difference(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = main([run_file(tmp_path, "unseeded"), "--steps", "30", "--json", "--env.lanes", "4"])
    report = json.loads(capfd.readouterr().out)
    assert code == 0
    assert (report["environment"], report["lanes"], report["calls"]) == ("tests.bad_envs:make", 4, 30)
    assert report["faults"] == 0
    found = {finding["check"]: finding for finding in report["findings"]}
    assert found["determinism"]["level"] == "warning"
    assert "differ in the first observation: observation 'policy'[0] of lane 0 is" in found["determinism"]["what"]


def test_a_fault_makes_the_exit_code_1_and_each_check_is_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main([run_file(tmp_path, "NaN"), "--steps", "40"])
    lines = capfd.readouterr().out.splitlines()
    assert code == 1
    assert lines[0] == "environment tests.bad_envs:make: 6 lanes, at most 40 calls of step or 60 s"
    assert [line[:93] for line in lines if line.startswith("fault")] == [
        "fault    finite values       NaN or infinity in observation 'policy' 1 times, first in call 5"
    ]
    assert "ok       determinism         two processes with the same seed did the same for 40 steps" in lines
    assert lines[-1].endswith("1 at fault, after 40 calls of step")


def test_a_run_file_that_is_not_there_is_the_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.toml"]) == 2
    assert capsys.readouterr().err.startswith("shoal doctor env: ")


@pytest.mark.parametrize("words", [["--steps", "0"], ["--seconds", "-1"], ["--seconds", "nan"], ["--steps", "many"]])
def test_numbers_out_of_range_are_refused(words: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run.toml", *words])
    assert ended.value.code == 2
    assert "is no" in capsys.readouterr().err


def test_the_first_difference_is_the_earliest_one() -> None:
    one = {"observation 'a'": np.zeros((4, 2, 3)), "reward": np.zeros((3, 2))}
    other = {name: column.copy() for name, column in one.items()}
    assert compare(one, other).level is Level.OK
    other["observation 'a'"][3, 1, 2] = 1.0
    assert "differ in step 3: observation 'a'[2] of lane 1 is 0.0 and 1.0" in compare(one, other).what
    other["reward"][0, 1] = 2.0
    assert "differ in step 1: reward of lane 1 is 0.0 and 2.0" in compare(one, other).what


def test_a_nan_in_both_is_no_difference() -> None:
    column = {"reward": np.full((2, 2), np.nan)}
    assert compare(column, {"reward": column["reward"].copy()}).level is Level.OK
