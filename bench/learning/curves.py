"""Learning curves and how two groups of them compare: area, interquartile mean, and a confidence interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Tuple

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 20_000
TRIMMED = 0.25  # of each end: the interquartile mean (Agarwal et al. 2021)


@dataclass(frozen=True)
class Comparison:
    """Areas of two groups, and their difference as a share of the reference's."""

    reference: float  # interquartile mean of the areas
    other: float
    difference: float  # (other - reference) / reference
    low: float  # ends of its confidence interval
    high: float


def area(updates: Sequence[float], success: Sequence[float], max_updates: float) -> float:
    """Mean success over training, by the trapezoid rule: 0 at the start, the last value held until the end.

    Args:
        updates: at which success was measured, rising.
        success: 0 to 1.
        max_updates: where the curve ends.
    """
    at = np.array([0.0, *updates, max_updates])
    values = np.array([0.0, *success, success[-1] if len(success) else 0.0])
    return float(np.sum(np.diff(at) * (values[1:] + values[:-1]) / 2) / max_updates)


def first_at(bar: float, at: Sequence[float], success: Sequence[float]) -> float:
    """Where success first reached `bar`, in updates or steps; infinity where it never did (censored)."""
    return next((place for place, value in zip(at, success) if value >= bar), float("inf"))


def interquartile_mean(values: npt.NDArray[np.float64], axis: int = -1) -> npt.NDArray[np.float64]:
    """Mean of the middle half."""
    mean: npt.NDArray[np.float64] = stats.trim_mean(values, TRIMMED, axis=axis)
    return mean


def compare(reference: Sequence[float], other: Sequence[float], rng: np.random.Generator) -> Comparison:
    """Compare areas of runs that differ in one thing, seeds alike in pairs.

    Args:
        reference: an area for each seed.
        other: likewise, of the same seeds.
        rng: draws the resamples.
    """
    pairs = (np.array(reference), np.array(other))

    def difference(
        first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], axis: int = -1
    ) -> npt.NDArray[np.float64]:
        base = interquartile_mean(first, axis)
        return (interquartile_mean(second, axis) - base) / base

    found = stats.bootstrap(
        pairs,
        difference,
        paired=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=rng,
    )
    low, high = found.confidence_interval
    return Comparison(
        reference=float(interquartile_mean(pairs[0])),
        other=float(interquartile_mean(pairs[1])),
        difference=float(difference(*pairs)),
        low=float(low),
        high=float(high),
    )


def verdict(comparison: Comparison, widest: float) -> Tuple[bool, str]:
    """Whether the interval covers 0 and is at most `widest` wide, and a sentence."""
    covers, width = comparison.low <= 0.0 <= comparison.high, comparison.high - comparison.low
    text = (
        f"difference {100 * comparison.difference:+.1f} %, {100 * CONFIDENCE:.0f} % interval "
        f"[{100 * comparison.low:+.1f} %, {100 * comparison.high:+.1f} %], {100 * width:.1f} % wide"
    )
    return covers and width <= widest, text
