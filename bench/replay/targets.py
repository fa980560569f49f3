"""What shoal's replay is to reach against its peers, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Optional, Tuple

from bench.replay.rounds import Rates

Key = Tuple[str, str, int]  # workload, operation, batch


@dataclass(frozen=True)
class Verdict:
    """One target beside what was measured; `value` None: not measured."""

    text: str
    value: Optional[float]
    bound: float
    at_least: bool = True

    @property
    def word(self) -> str:
        if self.value is None:
            return "NOT MEASURED"
        reached = self.value >= self.bound if self.at_least else self.value <= self.bound
        return "pass" if reached else "FAIL"


@dataclass(frozen=True)
class _RatioTarget:
    text: str
    key: Key
    case: str
    peer: str
    bound: float


_RATIOS = (
    _RatioTarget(
        "insert in chunks of 1,000 against Reverb's fastest writer", ("small", "insert", 1000), "shoal", "reverb", 30
    ),
    _RatioTarget(
        "insert in chunks of 4,096 against Reverb's fastest writer", ("small", "insert", 4096), "shoal", "reverb", 75
    ),
    _RatioTarget("sample 512 + priorities against Reverb's dataset", ("small", "sample", 512), "shoal", "reverb", 20),
    _RatioTarget(
        "mapped: sample 512 + priorities against cpprb in process", ("small", "sample", 512), "shoal-mapped", "cpprb", 1
    ),
    _RatioTarget(
        "mapped: sample 4,096 + priorities against cpprb in process",
        ("small", "sample", 4096),
        "shoal-mapped",
        "cpprb",
        1.5,
    ),
    _RatioTarget(
        "mapped, large: sample 512 + priorities against cpprb in process",
        ("large", "sample", 512),
        "shoal-mapped",
        "cpprb",
        1,
    ),
)


def ratio_verdicts(rates: Mapping[Key, Rates]) -> List[Verdict]:
    """The targets that are ratios of two cases in one column."""
    verdicts = []
    for target in _RATIOS:
        column = rates.get(target.key)
        value = column.ratio(target.case, target.peer) if column is not None else None
        verdicts.append(Verdict(target.text, value, target.bound))
    return verdicts


def limit_verdicts(limits: Mapping[str, float]) -> List[Verdict]:
    """The targets of shoal alone.

    Args:
        limits: what was measured, by name; a name that is missing was not measured.
    """

    def ratio(over: str, under: str) -> Optional[float]:
        return limits[over] / limits[under] if over in limits and under in limits else None

    def at_most(text: str, value: Optional[float], bound: float) -> Verdict:
        return Verdict(text, value, bound, at_least=False)

    return [
        at_most(
            "p99 of a paced sampler beside two writers of 20,000 steps/s, over quiet",
            ratio("paced_writers_p99_ms", "paced_quiet_p99_ms"),
            2.0,
        ),
        at_most("p50 of an insert after 50 x capacity, over 1 x", ratio("insert_50x_p50_ms", "insert_1x_p50_ms"), 1.10),
        at_most("p99 of an insert after 50 x capacity, over 1 x", ratio("insert_50x_p99_ms", "insert_1x_p99_ms"), 1.5),
        at_most(
            "p99 of an insert during a snapshot, over quiet",
            ratio("insert_snapshot_p99_ms", "insert_quiet_p99_ms"),
            2.0,
        ),
        at_most(
            "bytes of a small transition, over the same with both observations kept",
            ratio("bytes_per_transition", "bytes_with_both_observations"),
            0.85,
        ),
        at_most("heap of the replay after 20 x capacity, over 1 x", ratio("heap_20x_bytes", "heap_1x_bytes"), 1.05),
    ]
