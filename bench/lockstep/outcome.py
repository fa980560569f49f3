"""What a run came to, and the interquartile mean of several with its interval."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

RESAMPLES = 5000


@dataclass(frozen=True)
class Outcome:
    """One run: its pace, and where it first reached the bar; None: it never did."""

    steps_per_s: float
    updates_per_s: float
    wall_s: Optional[float]
    steps: Optional[int]
    updates: Optional[int]
    best_success: float


def read_outcome(file: Path, bar: float) -> Outcome:
    """Read a file of evaluations, one JSON object a line.

    Args:
        file: `evaluations.jsonl` of a run's folder, or what `bench.lockstep.trainer` wrote.
        bar: success rate that counts as reached.

    Raises:
        ValueError: it holds no evaluation.
    """
    lines: List[Dict[str, Any]] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if not lines:
        raise ValueError(f"{file} holds no evaluation")
    last = lines[-1]
    seconds = max(last["training_seconds"], 1e-9)
    reached = next((line for line in lines if line["success_rate"] >= bar), None)
    return Outcome(
        last["env_steps"] / seconds,
        last["updates"] / seconds,
        reached["training_seconds"] if reached else None,
        reached["env_steps"] if reached else None,
        reached["updates"] if reached else None,
        max(line["success_rate"] for line in lines),
    )


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean without the lowest and the highest quarter, rounded down (Agarwal et al. 2021)."""
    ordered = np.sort(np.asarray(values, np.float64))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def with_interval(values: Sequence[float], seed: int = 0) -> Tuple[float, float, float]:
    """Interquartile mean and the bounds of its 95 % percentile bootstrap interval.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("no run reached the bar")
    rng = np.random.default_rng(seed)
    drawn = rng.choice(np.asarray(values, np.float64), (RESAMPLES, len(values)))
    means = [interquartile_mean(row) for row in drawn]
    low, high = np.percentile(means, [2.5, 97.5])
    return interquartile_mean(values), float(low), float(high)
