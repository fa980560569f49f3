"""Rounds that alternate between cases, and what is made of them: medians and ratios.

Load that comes and goes on a shared machine meets all cases of a round alike, so that a ratio is taken within each
round and its median published; a case's own figure is the median over the rounds.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional, Sequence

Measure = Callable[[str], float]  # name of a case -> operations a second in one round


@dataclass
class Rates:
    """Operations a second of several cases; the k-th of each were measured in the same round."""

    by_case: Dict[str, List[float]] = field(default_factory=dict)

    def median(self, case: str) -> Optional[float]:
        """The case's median over the rounds, or None if it has none."""
        rates = self.by_case.get(case)
        return statistics.median(rates) if rates else None

    def spread(self, case: str) -> float:
        """(largest - smallest) / median of a case that was measured."""
        rates = self.by_case[case]
        return (max(rates) - min(rates)) / statistics.median(rates)

    def ratio(self, case: str, other: str) -> Optional[float]:
        """Median over the rounds of case / other, or None where one of them was not measured."""
        pairs = list(zip(self.by_case.get(case, []), self.by_case.get(other, [])))
        return statistics.median(ours / theirs for ours, theirs in pairs) if pairs else None


def alternate(cases: Sequence[str], num_rounds: int, measure: Measure, on_failure: Callable[[str, str], None]) -> Rates:
    """Measure each case once a round: A B C, A B C, and so on.

    Args:
        cases: names.
        num_rounds: rounds.
        measure: one round of one case; raises RuntimeError where it cannot.
        on_failure: told the case and the reason; the case is left out from then on, with all of its rounds.
    """
    rates = Rates({case: [] for case in cases})
    for _ in range(num_rounds):
        for case in list(rates.by_case):
            try:
                rates.by_case[case].append(measure(case))
            except RuntimeError as error:
                del rates.by_case[case]
                on_failure(case, str(error))
    return rates


def count_for(rate: float, seconds: float, at_least: int) -> int:
    """How many operations take about `seconds` at `rate` a second."""
    return max(at_least, round(rate * seconds))


def fastest(rate_by_variant: Mapping[str, float]) -> str:
    """The variant of the highest rate; the first of equals.

    Raises:
        ValueError: there is none.
    """
    return max(rate_by_variant, key=lambda variant: rate_by_variant[variant])
