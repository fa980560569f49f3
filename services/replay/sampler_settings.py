"""The settings of a sampler, and which of them contradict each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

SELECTORS = ("prioritized", "uniform", "fifo")


@dataclass(frozen=True)
class SamplerSettings:
    """How items are chosen."""

    selector: str = "prioritized"
    priority_exponent: float = 0.6  # alpha
    priority_rule: str = "td_error"
    td_weight: float = 0.7  # of td_error_visits
    freshness_half_life_updates: float = 0.0  # 0: off
    max_times_sampled: int = 0  # 0: unlimited
    max_lag_updates: Optional[int] = None  # items of older policies are not drawn; None: no bound

    def __post_init__(self) -> None:
        if self.selector not in SELECTORS:
            raise ValueError(f"selector is {self.selector!r}; it must be one of {', '.join(SELECTORS)}")
        if not 0.0 <= self.priority_exponent <= 4.0:
            raise ValueError(
                f"priority_exponent is {self.priority_exponent}; it must lie in [0, 4] (0 draws uniformly)"
            )
        if self.max_times_sampled < 0:
            raise ValueError(f"max_times_sampled is {self.max_times_sampled}; it must be at least 0 (unlimited)")
        if self.max_lag_updates is not None and self.max_lag_updates < 0:
            raise ValueError(f"max_lag_updates is {self.max_lag_updates}; it must be at least 0, or not set (no bound)")
        if self.selector == "fifo" and self.max_times_sampled == 0:
            raise ValueError(
                "selector 'fifo' with max_times_sampled 0 would draw the oldest items for ever; set max_times_sampled "
                "to at least 1"
            )
        if self.selector != "prioritized" and self.priority_rule != "td_error":
            raise ValueError(
                f"priority_rule {self.priority_rule!r} has no effect on selector {self.selector!r}; set selector to "
                f"'prioritized' or priority_rule to 'td_error'"
            )
        if self.selector == "fifo" and self.freshness_half_life_updates:
            raise ValueError(
                "freshness_half_life_updates has no effect on selector 'fifo', which draws by age alone; set it to 0"
            )
