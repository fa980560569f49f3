"""Numbers: values that are not finite, scales of rewards and observations, metrics, speed."""

from __future__ import annotations

from typing import Iterator

import numpy as np

from services.actor.conformance.finding import Finding, fault, ok, warning
from services.actor.conformance.trace import Trace

SMALL, LARGE = 0.01, 10.0  # a scale beyond these is far from 1
EXTREME = 100.0


def check_values(trace: Trace) -> Iterator[Finding]:
    """All that can be said of the numbers alone."""
    yield _finite(trace)
    yield _reward(trace)
    yield _observations(trace)
    yield _metrics(trace)
    yield _speed(trace)


def _finite(trace: Trace) -> Finding:
    check = "finite values"
    if not trace.not_finite:
        return ok(check, f"no NaN and no infinity in {trace.calls * trace.num_lanes:,} steps")
    told = [
        f"{name} {count} times, first in call {call}, lane {lane}"
        for name, (call, lane, count) in trace.not_finite.items()
    ]
    return fault(
        check,
        f"NaN or infinity in {', '.join(told)}",
        "find what the simulator does there; such lanes are quarantined and not learned from",
    )


def _reward(trace: Trace) -> Finding:
    check, reward = "reward", trace.reward
    if not reward.count:
        return warning(check, "no reward was seen", "run more steps (--steps)")
    mean, deviation = float(reward.mean), float(reward.deviation)
    extreme = max(abs(reward.low), abs(reward.high))
    what = f"mean {mean:.3g}, deviation {deviation:.3g}, from {reward.low:.3g} to {reward.high:.3g}"
    scale = max(abs(mean), deviation)
    if reward.low == reward.high == 0.0:
        return warning(check, "always 0", "a reward that random actions never meet is hard to learn from")
    if scale > LARGE or extreme > EXTREME:
        return warning(check, what, f"scale it so that it is near 1 (divide by {max(scale, extreme / LARGE):.2g})")
    if scale < SMALL:
        return warning(check, what, f"scale it so that it is near 1 (multiply by {1 / max(scale, 1e-12):.2g})")
    return ok(check, what)


def _observations(trace: Trace) -> Finding:
    check = "observation scale"
    if not trace.features.count:
        return warning(check, "no finite observation was seen", "see the check of finite values")
    mean, deviation = np.atleast_1d(trace.features.mean), np.atleast_1d(trace.features.deviation)
    pixels = [spec.name for spec in trace.specs if spec.dtype == "uint8"]
    if len(pixels) == len(trace.specs):
        return ok(check, "uint8 tensors are scaled to 0 to 1 by shoal")
    size = np.maximum(np.abs(mean), deviation)
    constant = int((deviation < 1e-9).sum())
    what = f"of {len(size)} numbers the largest is {size.max():.3g} on average, {constant} never change"
    # Those of images are among them, and are 255 at most, which shoal divides by.
    if size.max() > LARGE and not pixels:
        return warning(check, what, "scale observations so that they are near 1: nothing else normalizes them")
    return ok(check, what)


def _metrics(trace: Trace) -> Finding:
    check = "metrics"
    if trace.sick_metrics:
        return warning(
            check,
            f"{', '.join(sorted(trace.sick_metrics))} held values that are no finite numbers",
            "report a finite number for every lane",
        )
    told = ", ".join(f"{name} {s.low:.3g} to {s.high:.3g}" for name, s in sorted(trace.metrics.items()))
    if "success" not in trace.metrics:
        return warning(
            check,
            f"{told or 'none'}: no success, so the best policy is chosen by its return",
            "report success, true at an episode's last step where the task was done",
        )
    return ok(check, told)


def _speed(trace: Trace) -> Finding:
    seconds = max(trace.step_seconds, 1e-9)
    each = 1e3 * trace.step_seconds / max(trace.calls, 1)
    return ok(
        "speed",
        f"{trace.calls * trace.num_lanes / seconds:,.0f} steps/s of {trace.num_lanes} lanes, {each:.3g} ms a call",
    )
