from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
import safetensors.numpy

from services.actor.evaluator import report as report_module
from services.actor.evaluator.episodes import EpisodeStatistics
from services.actor.evaluator.report import HeldOutGoals, main, report, summarize, table_lines
from services.actor.seeds import HELD_OUT, SELECTION, TRAINING, env_seed
from services.common.config.load import load, to_toml
from services.common.errors import UserError
from services.common.run_folder import Evaluation, Progress, RunFolder
from tests.fakes import FakeEnv, FakePolicy

CHOSEN = Evaluation(12, 240, 50, 0.75, -2.5, 30.0, training_seconds=10.0, env_steps=4000)
PROGRESS = Progress(updates=1400, training_seconds=61.26, env_steps=12345, is_finished=True)


def _statistics(success: List[float]) -> EpisodeStatistics:
    n = len(success)
    return EpisodeStatistics(np.arange(n, dtype=float), np.full(n, 10), np.array(success, float))


@pytest.fixture
def envs(monkeypatch: pytest.MonkeyPatch) -> List[FakeEnv]:
    """The environments that a report builds; its policy acts with the parameter `policy.bias`."""
    built: List[FakeEnv] = []

    def build(factory: str, kwargs: Any, num_lanes: int, seed: int) -> FakeEnv:
        built.append(FakeEnv(num_lanes))
        return built[-1]

    monkeypatch.setattr(report_module, "build_env", build)
    monkeypatch.setattr(report_module, "policy_class", lambda name: lambda *_schema, **_lanes: FakePolicy())
    return built


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "reach")
    made.path.mkdir()
    config = load(None, ["--run.name", "reach", "--report.episodes", "7", "--report.video", "false"]).config
    made.config.write_text(to_toml(config), encoding="utf-8")
    data = safetensors.numpy.save({"policy.bias": np.full(1, 0.5, np.float32)})
    made.save_best(data, CHOSEN)
    made.append_evaluation(CHOSEN)
    made.save_progress(PROGRESS)
    return made


def test_the_summary_is_that_of_a_hand() -> None:
    config = load(None, ["--run.name", "reach", "--run.seed", "3"]).config
    result = summarize(config, CHOSEN, PROGRESS, _statistics([1, 0, 1, 1]))
    assert result == {
        "run": "reach",
        "success_rate": 0.75,
        "success_error": math.sqrt(0.75 * 0.25 / 4),
        "mean_return": 1.5,
        "mean_episode_steps": 10.0,
        "episodes": 4,
        "best_version": 12,
        "best_updates": 240,
        "updates": 1400,
        "env_steps": 12345,
        "wall_s": 61.3,
        "seed": 3,
    }


def test_an_environment_without_success_has_none() -> None:
    result = summarize(load(None).config, CHOSEN, PROGRESS, _statistics([-1, -1]))
    assert result["success_rate"] is None
    assert result["success_error"] is None
    json.dumps(result)
    assert any(
        line.split() == ["success", "on", "held-out", "goals", "not", "reported"] for line in table_lines(result)
    )


def test_the_table_shows_the_result() -> None:
    config = load(None, ["--run.name", "reach"]).config
    text = "\n".join(table_lines(summarize(config, CHOSEN, PROGRESS, _statistics([1, 0, 1, 1]))))
    for part in (
        "reach",
        "75.0% +- 21.7%",
        "1.50",
        "4, 10 steps on average",
        "12 (update 240 of 1,400)",
        "12,345",
        "61",
    ):
        assert part in text, part


def test_held_out_goals_are_those_of_nobody_else() -> None:
    goals = HeldOutGoals(1)
    held_out = {goals(number) for number in range(50)}
    assert len(held_out) == 50
    others = {env_seed(1, stream, f"round-{number}") for stream in (TRAINING, SELECTION) for number in range(50)}
    assert not held_out & others
    assert goals(0) == env_seed(1, HELD_OUT, "round-0")


def test_a_report_judges_the_best_and_writes_its_files(
    folder: RunFolder, envs: List[FakeEnv], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder.path)]) == 0
    result = json.loads(folder.result.read_text())
    assert result["episodes"] == 7
    assert result["success_rate"] == pytest.approx(3 / 7)  # lanes 1, 3 and 5 of FakeEnv succeed
    assert result["updates"] == PROGRESS.updates
    assert [env.is_closed for env in envs] == [True]
    assert envs[0].seeds == [HeldOutGoals(1)(0)]
    out = capsys.readouterr().out
    assert "reach" in out
    assert str(folder.result) in out


def test_flags_choose_episodes_and_seed(folder: RunFolder, envs: List[FakeEnv]) -> None:
    report(folder.path, episodes=3, seed=9, video=False)
    assert json.loads(folder.result.read_text())["episodes"] == 3
    assert envs[0].num_lanes == 3
    assert envs[0].seeds == [HeldOutGoals(9)(0)]


def test_many_episodes_take_several_rounds(
    folder: RunFolder, envs: List[FakeEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "MAX_LANES", 4)
    report(folder.path, episodes=10, seed=1, video=False)
    assert envs[0].num_lanes == 4
    assert envs[0].seeds == [HeldOutGoals(1)(number) for number in range(3)]


def test_the_learning_curve_is_drawn_where_it_can_be(folder: RunFolder, envs: List[FakeEnv]) -> None:
    pytest.importorskip("matplotlib")
    report(folder.path, episodes=2, seed=1, video=False)
    assert folder.learning_curve.read_bytes().startswith(b"\x89PNG")


def test_an_environment_that_cannot_be_drawn_is_told_and_no_error(
    folder: RunFolder, envs: List[FakeEnv], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder.path), "--video"]) == 0
    assert "no eval.mp4: this environment cannot be drawn" in capsys.readouterr().err
    assert [env.is_closed for env in envs] == [True, True]


def test_no_run_no_best_and_no_episodes_are_refused(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none")]) == 2
    assert "shoal eval: there is no run in" in capsys.readouterr().err
    assert main([str(folder.path), "--episodes", "0"]) == 2
    assert "--episodes is 0; at least 1 is needed" in capsys.readouterr().err
    for seed in ("-1", "2147483648"):
        assert main([str(folder.path), "--seed", seed]) == 2
        assert f"--seed is {seed}; a whole number from 0 to 2147483647 is needed" in capsys.readouterr().err
    (folder.path / "best.safetensors").write_bytes(b"rubbish")
    assert main([str(folder.path)]) == 2
    assert "are damaged: it is not a whole safetensors file" in capsys.readouterr().err
    (folder.path / "best.safetensors").unlink()
    with pytest.raises(UserError, match="has no best parameters yet"):
        report(folder.path, episodes=1, seed=None, video=False)
    assert not folder.result.exists()
