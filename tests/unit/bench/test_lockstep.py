"""What a run came to is read from its evaluations; means and intervals are those of the literature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from bench.lockstep.__main__ import summary
from bench.lockstep.outcome import Outcome, interquartile_mean, read_outcome, with_interval


def _write(file: Path, success: List[float]) -> Path:
    lines: List[Dict[str, Any]] = [
        {"updates": 100 * i, "env_steps": 1000 * i, "training_seconds": 2.0 * i, "success_rate": rate}
        for i, rate in enumerate(success, start=1)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_the_first_evaluation_at_the_bar_counts(tmp_path: Path) -> None:
    outcome = read_outcome(_write(tmp_path / "a", [0.1, 0.9, 0.5, 0.95]), 0.9)
    assert outcome == Outcome(500.0, 50.0, wall_s=4.0, steps=2000, updates=200, best_success=0.95)


def test_a_run_that_never_reached_the_bar_is_censored(tmp_path: Path) -> None:
    outcome = read_outcome(_write(tmp_path / "a", [0.1, 0.89]), 0.9)
    assert (outcome.wall_s, outcome.steps, outcome.updates, outcome.best_success) == (None, None, None, 0.89)


def test_no_evaluation_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no evaluation"):
        read_outcome(_write(tmp_path / "a", []), 0.9)


@pytest.mark.parametrize(
    ("values", "mean"),
    [([3.0], 3.0), ([1.0, 2.0, 6.0], 3.0), ([100.0, 1.0, 2.0, 3.0, -100.0], 2.0), (list(range(8)), 3.5)],
)
def test_a_quarter_is_cut_from_each_end(values: List[float], mean: float) -> None:
    assert interquartile_mean(values) == pytest.approx(mean)


def test_the_interval_holds_the_mean_and_shrinks_with_more_runs() -> None:
    rng = np.random.default_rng(0)
    few, many = rng.normal(10, 1, 5).tolist(), rng.normal(10, 1, 80).tolist()
    for values in (few, many):
        mean, low, high = with_interval(values)
        assert low <= mean <= high
    assert with_interval(many)[2] - with_interval(many)[1] < with_interval(few)[2] - with_interval(few)[1]
    with pytest.raises(ValueError, match="no run reached"):
        with_interval([])


def test_the_table_counts_who_reached_the_bar() -> None:
    reached = Outcome(10.0, 1.0, 5.0, 50, 5, 0.95)
    censored = Outcome(10.0, 1.0, None, None, None, 0.5)
    head, rows = summary({"asynchronous": [reached, censored], "lockstep": [censored]}, 0.9)
    assert head[1:] == ["asynchronous", "lockstep"]
    assert rows[0][1:] == ["1 of 2", "0 of 1"]
    cells = {row[0]: row[1:] for row in rows}
    assert cells["steps to the bar"] == ["50 [50, 50]", "-"]
