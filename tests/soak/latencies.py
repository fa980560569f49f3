"""Latencies of a replay that ran for long beside those of one that has just begun, in windows that alternate.

What neighbours on the machine do meets both alike. Whether a difference can be told from what the machine does is
judged by the fresh replay alone: what an old one does in bursts is no excuse for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List

import numpy as np
import numpy.typing as npt

from tests.soak.traffic import FullSpeed, Traffic

P50_BOUND, P99_BOUND = 1.10, 1.5  # of a replay that ran for long, over one that has just begun
CALLS = ("insert", "sample")
RESAMPLES = 1000


@dataclass
class Window:
    """What the calls of one window took, seconds."""

    insert: List[float] = field(default_factory=list)
    sample: List[float] = field(default_factory=list)


Windows = Dict[str, List[Window]]  # of "old" and "fresh"


@dataclass
class Verdict:
    """What the comparison comes to."""

    rows: List[str] = field(default_factory=list)  # of a table
    faults: List[str] = field(default_factory=list)
    not_tested: List[str] = field(default_factory=list)


def measure(traffic: Traffic, seconds: float) -> Window:
    """One window at full speed, inserts and samples at once.

    Raises:
        RuntimeError: a call failed.
    """
    speed = FullSpeed(traffic.insert, traffic.sample)
    speed.over.wait(seconds)
    faults = speed.stop()
    if faults:
        raise RuntimeError("; ".join(faults))
    return Window(speed.inserts, speed.samples)


def judge(windows: Windows) -> Verdict:
    """Compare each quantile of each call."""
    verdict = Verdict([f"{'':<14}{'fresh':>12}{'old':>12}{'ratio':>8}{'noise':>8}   (ms)"])
    for name in CALLS:
        for share, bound in ((0.5, P50_BOUND), (0.99, P99_BOUND)):
            what = f"{name} p{100 * share:.0f}"
            fresh, old = (quantile(windows[which], name, share) for which in ("fresh", "old"))
            ratio, noise = old / fresh, noise_of(windows["fresh"], name, share)
            verdict.rows.append(f"{what:<14}{1e3 * fresh:12.2f}{1e3 * old:12.2f}{ratio:8.2f}{noise:8.2f}")
            # A difference that the machine's noise cannot make is one, however noisy it is.
            if ratio > bound * max(1.0, noise) or (noise <= bound and ratio > bound):
                verdict.faults.append(f"{what} of the old replay is {ratio:.2f} times a fresh one's, noise {noise:.2f}")
            elif not noise <= bound:  # nor is one known where nothing was called
                verdict.not_tested.append(f"{what}: alike windows of a fresh replay differ by {noise:.2f}")
    return verdict


def is_settled(windows: Windows) -> bool:
    """Whether nothing speaks against the old replay and everything could be judged: no more windows are needed."""
    verdict = judge(windows)
    return not verdict.faults and not verdict.not_tested


def noise_of(fresh: List[Window], name: str, share: float) -> float:
    """By which factor a quantile differs between windows of the same replay by chance: what the machine does to it.

    The factor that one of twenty pairs of random choices among the windows passes (bootstrap).
    """
    each = _of_each(fresh, name, share)
    picked = np.random.default_rng(0).integers(0, len(each), (2, RESAMPLES, len(each)))
    one, other = np.median(each[picked], axis=-1)
    return float(np.quantile(np.maximum(one / other, other / one), 0.95))


def quantile(windows: List[Window], name: str, share: float) -> float:
    """Median over the windows of a quantile of each, seconds: a neighbour's burst hits some windows, not most."""
    return float(np.median(_of_each(windows, name, share)))


def _of_each(windows: List[Window], name: str, share: float) -> npt.NDArray[np.float64]:
    """<float64>[windows], seconds."""
    calls: List[npt.NDArray[np.float64]] = [np.array(getattr(window, name)) for window in windows]
    return np.array([np.quantile(values, share) for values in calls if len(values)])
