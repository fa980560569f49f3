"""The run file's `[staleness]`: what is done about data that older policies made."""

from __future__ import annotations

from typing import Optional

from pydantic import Field
from typing_extensions import Annotated

from services.common.config.algorithms import Section
from services.common.config.values import Count


class StalenessSection(Section):
    """`[staleness]`: what is done about data that older policies made."""

    max_lag_updates: Optional[Annotated[Count, Field(ge=0, le=10**12)]] = None
    """Items whose policy is more updates behind are neither drawn nor trained on. Not given: no bound."""
    loss_half_life_updates: float = Field(0.0, ge=0, allow_inf_nan=False)
    """An item whose policy is this many updates behind has half the weight in the loss; 0: age does not count."""
    max_rows: Annotated[Count, Field(ge=2, le=10**6)] = 512
    """Rows of staleness.jsonl; when there are more, neighbours are added up to half as many."""
