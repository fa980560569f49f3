"""Priority rules: from the size of a TD error and the draws so far to p, from which the leaf is derived."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from typing_extensions import Protocol

from services.replay.priorities import MAX_PRIORITY, MIN_PRIORITY

Floats = npt.NDArray[np.float64]

RULES = ("td_error", "td_error_visits")
MEAN_WINDOW = 10_000  # TD errors that the running mean looks back on
OUTLIER = 100.0  # times the mean: beyond it a TD error counts as this much, so that one moves the mean by 1 % at most
DRIFT = 1.1  # the leaves are derived anew when the mean has left theirs by this factor


class PriorityRule(Protocol):
    """Turns what the ring stores of an item into its p."""

    uses_visits: bool  # p falls with each draw

    def priority(self, magnitude: Floats, times_sampled: npt.NDArray[np.int64]) -> Floats:
        """Form p <float64>[N], within [MIN_PRIORITY, MAX_PRIORITY].

        Args:
            magnitude: <float64>[N], |TD error| + EPSILON, clamped; what the column `priority` of the ring holds.
            times_sampled: <int64>[N], draws so far.
        """

    def observe(self, magnitude: Floats) -> bool:
        """Take note of fresh magnitudes <float64>[N]; True: p of every item has changed."""

    def begin(self, magnitude: Floats) -> None:
        """Begin with the magnitudes <float64>[N] of all items that are there."""


class TdErrorRule:
    """p = |TD error| + EPSILON (Schaul 2016, the proportional variant)."""

    uses_visits = False

    def priority(self, magnitude: Floats, times_sampled: npt.NDArray[np.int64]) -> Floats:  # noqa: ARG002
        """The magnitude itself."""
        return magnitude

    def observe(self, magnitude: Floats) -> bool:  # noqa: ARG002
        """Nothing depends on other items."""
        return False

    def begin(self, magnitude: Floats) -> None:
        """Nothing depends on other items."""


class TdErrorVisitsRule:
    """p = td_weight * |TD error| / mean|TD error| + (1 - td_weight) / sqrt(N + 1), with N draws so far.

    The mean is a running one: over a fixed scale the visits would swamp TD errors that are small everywhere. All leaves
    are derived with the same mean, which follows the running mean in steps of DRIFT.
    """

    uses_visits = True

    def __init__(self, td_weight: float) -> None:
        if not 0.0 <= td_weight <= 1.0:
            raise ValueError(f"td_weight is {td_weight}; it must lie in [0, 1] (1: the TD error alone)")
        self.td_weight = td_weight
        self.running_mean = 0.0
        self.mean = 1.0  # that the leaves are derived with
        self._seen = 0

    def priority(self, magnitude: Floats, times_sampled: npt.NDArray[np.int64]) -> Floats:
        """Weigh the two parts."""
        error = magnitude * (self.td_weight / self.mean)
        p: Floats = np.clip(error + (1.0 - self.td_weight) / np.sqrt(times_sampled + 1.0), MIN_PRIORITY, MAX_PRIORITY)
        return p

    def observe(self, magnitude: Floats) -> bool:
        """Move the running mean; True when the leaves' mean has followed it."""
        if len(magnitude) == 0:
            return False
        if self._seen > 0:
            magnitude = np.minimum(magnitude, OUTLIER * self.running_mean)
        fresh = len(magnitude)
        kept = min(self._seen, max(0, MEAN_WINDOW - fresh))
        self.running_mean = (self.running_mean * kept + float(magnitude.sum())) / (kept + fresh)
        self._seen = min(MEAN_WINDOW, self._seen + fresh)
        if abs(math.log(self.running_mean / self.mean)) < math.log(DRIFT):
            return False
        self.mean = self.running_mean
        return True

    def begin(self, magnitude: Floats) -> None:
        """Take the mean of all items for the running one."""
        self._seen = min(MEAN_WINDOW, len(magnitude))
        self.running_mean = float(magnitude.mean()) if len(magnitude) > 0 else 0.0
        self.mean = self.running_mean or 1.0


def make_rule(name: str, td_weight: float) -> PriorityRule:
    """The rule of that name.

    Raises:
        ValueError: there is none, or the weight is out of range.
    """
    if name == "td_error":
        return TdErrorRule()
    if name == "td_error_visits":
        return TdErrorVisitsRule(td_weight)
    raise ValueError(f"priority_rule is {name!r}; it must be one of {', '.join(RULES)}")
