"""What a dashboard is made of, in words of its own: rows of panels, each with queries and an explanation."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple, Union

GREEN, ORANGE, RED, BLUE = "green", "orange", "red", "blue"
COLUMNS = 24  # of Grafana's grid


@dataclass(frozen=True)
class Query:
    """One PromQL expression; `$run` and the like are the dashboard's variables.

    Attributes:
        expr: the expression.
        legend: the name of a series, with labels as `{{label}}`.
    """

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """What all panels have. The explanation has three parts, so that no panel leaves its reader alone.

    Raises:
        ValueError: a width beyond the grid, limits out of order, an empty part of the explanation.
    """

    title: str
    shows: str  # what is seen, in plain words
    good: str  # how it looks while all is well
    otherwise: str  # what to do when it does not
    queries: Tuple[Query, ...]
    unit: str = "short"  # one of Grafana's ids
    width: int = 8  # columns of the grid
    height: int = 8  # rows of the grid
    base: str = GREEN  # color below the first limit
    limits: Tuple[Tuple[float, str], ...] = ()  # (from, color), ascending
    lowest: Optional[float] = 0.0  # ends of the scale; None: as the data have it
    highest: Optional[float] = None
    decimals: Optional[int] = None
    empty: str = ""  # said in place of a value where there is none
    alerts: Tuple[str, ...] = ()  # whose part of the runbook belongs to this panel
    more: Tuple[str, ...] = ()  # uids of dashboards that tell more
    words: Mapping[str, str] = field(default_factory=dict)  # a legend -> what is said instead

    def __post_init__(self) -> None:
        if not 0 < self.width <= COLUMNS:
            raise ValueError(f"{self.title}: a width of {self.width} is not in 1 to {COLUMNS}")
        if list(self.limits) != sorted(self.limits):
            raise ValueError(f"{self.title}: the limits must ascend")
        if not all(part.strip() for part in (self.title, self.shows, self.good, self.otherwise)):
            raise ValueError(f"{self.title!r}: say what it shows, what is good, and what to do otherwise")
        if not self.queries or len(self.queries) > len(string.ascii_uppercase):
            raise ValueError(f"{self.title}: one to {len(string.ascii_uppercase)} queries")

    @property
    def description(self) -> str:
        """As Grafana shows it beside the title, in Markdown."""
        return f"{self.shows}\n\n**Good:** {self.good}\n\n**Otherwise:** {self.otherwise}"


@dataclass(frozen=True)
class Lines(Panel):
    """Series over time.

    Attributes:
        axis: what the axis is called.
        stacked: whether series are added up.
        logarithmic: whether the axis is.
        dashed: legends whose line is a target or a bound, drawn dashed.
        steps: whether a value holds until the next one.
        ranked: whether the legend is a list beside the lines, the largest latest value first.
    """

    axis: str = ""
    stacked: bool = False
    logarithmic: bool = False
    dashed: Tuple[str, ...] = ()
    steps: bool = False
    ranked: bool = False


@dataclass(frozen=True)
class Number(Panel):
    """The latest value of each query, large."""

    height: int = 4
    width: int = 4
    with_names: bool = False


@dataclass(frozen=True)
class Bars(Panel):
    """The latest value of each series as a horizontal bar, the longest first."""


@dataclass(frozen=True)
class HeatMap(Panel):
    """The buckets of a histogram over time; the query's legend is `{{le}}`."""


@dataclass(frozen=True)
class Table(Panel):
    """Latest values side by side, a row for each value of a label.

    Attributes:
        key: the label.
        columns: a name for each query, in their order; the first one sorts the rows, the largest first.
        units: unit by column, where it is not the panel's.
    """

    key: str = ""
    columns: Tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.columns) != len(self.queries):
            raise ValueError(f"{self.title}: a column's name for each query")


@dataclass(frozen=True)
class Note:
    """Text in Markdown."""

    title: str
    text: str
    width: int = 8
    height: int = 8


@dataclass(frozen=True)
class Row:
    """Panels under a question that they answer together."""

    title: str
    panels: Tuple[Union[Panel, Note], ...]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard.

    Attributes:
        name: as in `$name`.
        label: as it is shown.
        metric: a selector whose values of `source` are the choices.
        source: a label.
        many: whether several, or all, may be chosen.
    """

    name: str
    label: str
    metric: str
    source: str
    many: bool = True


@dataclass(frozen=True)
class Dashboard:
    """One page."""

    uid: str
    title: str
    description: str
    variables: Tuple[Variable, ...]
    rows: Tuple[Row, ...]

    @property
    def panels(self) -> Tuple[Panel, ...]:
        """Those with queries."""
        return tuple(panel for row in self.rows for panel in row.panels if isinstance(panel, Panel))
