from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from services.common.errors import UserError
from services.common.run_folder import Evaluation, Progress, RunFolder

EVALUATION = Evaluation(version=3, updates=60, episodes=50, success_rate=0.5, mean_return=-1.0, mean_episode_steps=40.0)


def test_success_counts_before_return() -> None:
    assert EVALUATION.better_than(None)
    assert not EVALUATION.better_than(EVALUATION)
    assert replace(EVALUATION, success_rate=0.6, mean_return=-9.0).better_than(EVALUATION)
    assert replace(EVALUATION, mean_return=-0.5).better_than(EVALUATION)
    assert not replace(EVALUATION, success_rate=0.4, mean_return=9.0).better_than(EVALUATION)


def test_the_best_comes_back_and_a_better_one_takes_its_place(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "a")
    assert folder.load_best() is None
    for bias in (1.0, 2.0):
        data = safetensors.numpy.save({"policy.bias": np.full(2, bias, np.float32)})
        folder.save_best(data, replace(EVALUATION, success_rate=bias / 2))
    best: Any = folder.load_best()
    np.testing.assert_array_equal(best[0]["policy.bias"], [2, 2])
    assert best[1] == replace(EVALUATION, success_rate=1.0)
    assert [file.name for file in folder.path.iterdir()] == ["best.safetensors"]


def test_damaged_best_parameters_are_told(tmp_path: Path) -> None:
    (tmp_path / "best.safetensors").write_bytes(b"rubbish")
    with pytest.raises(UserError, match=r"best\.safetensors' are damaged: .*; move the file away: the next evaluation"):
        RunFolder(tmp_path).load_best()


def test_the_learning_curve_grows_and_outlives_a_line_cut_short(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.evaluations() == []
    folder.append_evaluation(EVALUATION)
    file = tmp_path / "evaluations.jsonl"
    whole = file.read_text()
    file.write_text(whole + whole[:20])
    assert folder.evaluations() == [EVALUATION]
    folder.append_evaluation(EVALUATION)  # lands behind the torn line
    folder.append_evaluation(replace(EVALUATION, version=5))
    assert [evaluation.version for evaluation in folder.evaluations()] == [3, 5]


@pytest.mark.parametrize(
    "rubbish", [b"\xff\xfe\x80", bytes(300), b"[" * 100_000, b"[1]", b'{"version": 1}', b'{"version": "\xff"}']
)
def test_the_learning_curve_passes_over_what_is_no_evaluation(rubbish: bytes, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_evaluation(EVALUATION)
    file = tmp_path / "evaluations.jsonl"
    file.write_bytes(file.read_bytes() + rubbish + b"\n" + file.read_bytes().replace(b": 3,", b': "\xff",'))
    folder.append_evaluation(replace(EVALUATION, version=5))
    assert [evaluation.version for evaluation in folder.evaluations()] == [3, 5]


def test_progress_is_nothing_until_it_is_said(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.load_progress() == Progress()
    progress = Progress(updates=5, training_seconds=1.5, env_steps=7, is_finished=True)
    folder.save_progress(progress)
    assert folder.load_progress() == progress
    (tmp_path / "progress.json").write_text("rubbish")
    assert folder.load_progress() == Progress()


def test_the_learning_curve_is_thinned_out_where_it_is_full_and_keeps_the_best_and_the_newest(tmp_path: Path) -> None:
    for life in range(10):
        folder = RunFolder(tmp_path, max_evaluations=16)  # a restart, which counts the lines
        for number in range(20):
            version = 20 * life + number + 1
            rate = 1.0 if version == 7 else 0.5
            folder.append_evaluation(
                replace(EVALUATION, version=version, updates=20 * version, success_rate=rate, mean_return=0.0)
            )
            curve = folder.evaluations()
            assert len(curve) <= 16
            assert curve[-1].version == version
            if version >= 7:
                assert 7 in {evaluation.version for evaluation in curve}
    versions = [evaluation.version for evaluation in curve]
    assert versions == sorted(set(versions))
    assert versions[0] == 1
