"""Where panels lie on Grafana's grid: each at the highest place that is free, and there as far left as it can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, List, Tuple, Union

from deploy.grafana.generator.panel import COLUMNS, Dashboard, Note, Panel, Row


@dataclass(frozen=True)
class Place:
    """A rectangle of cells; y grows downwards."""

    x: int
    y: int
    width: int
    height: int


def placed(dashboard: Dashboard) -> Iterator[Tuple[Union[Row, Panel, Note], Place]]:
    """Rows and their panels, in order, each with its place."""
    below = 0  # the first free line under all that was placed
    for row in dashboard.rows:
        yield row, Place(0, below, COLUMNS, 1)
        skyline: List[int] = [below + 1] * COLUMNS
        for panel in row.panels:
            y, x = min((max(skyline[x : x + panel.width]), x) for x in range(COLUMNS - panel.width + 1))
            yield panel, Place(x, y, panel.width, panel.height)
            skyline[x : x + panel.width] = [y + panel.height] * panel.width
        below = max(skyline)
