"""The staleness ledger of a run, `staleness.jsonl`: a row a line, each a sum over some seconds of training.

Rows add up, so that a long run's file is kept small by adding neighbours: the learner writes it, commands read it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from services.common.files import cannot_write, with_a_descriptor, write_atomically

PARTS = ("acting", "in_flight", "ring", "prefetch")  # of an item's lag, in the order of its way
TOTAL = "total"
# Upper bounds of the buckets, inclusive, five to a factor of ten; a last bucket is for what lies above.
BOUNDS = (
    0,
    1,
    2,
    3,
    4,
    6,
    10,
    16,
    25,
    40,
    63,
    100,
    158,
    251,
    398,
    631,
    1000,
    1585,
    2512,
    3981,
    6310,
    10_000,
    15_849,
    25_119,
    39_811,
    63_096,
    100_000,
)
NUM_BUCKETS = len(BOUNDS) + 1
OTHERS = "others"  # actors beyond those that are told apart


@dataclass
class ActorLag:
    """The lag of one actor's items."""

    counts: List[int] = field(default_factory=lambda: [0] * NUM_BUCKETS)  # by bucket
    most: int = 0  # updates

    def add(self, other: ActorLag) -> None:
        """Count what `other` counts too."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts)]
        self.most = max(self.most, other.most)


@dataclass
class LedgerRow:
    """The items of a stretch of training, used once each: how far behind they were, and where they fell behind."""

    updates: int  # of the chief at its end
    wall_s: float  # seconds since 1970 at its end
    bound: Optional[int]  # staleness.max_lag_updates
    items: int = 0
    lost: int = 0  # of them, whose version was lost in a crash of the chief: they count as fresh
    refused: int = 0  # of them, that were beyond the bound when they were to be used, and had no weight
    counts: Dict[str, List[int]] = field(default_factory=lambda: {name: [0] * NUM_BUCKETS for name in (*PARTS, TOTAL)})
    sum_updates: Dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    sum_seconds: Dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    actors: Dict[str, ActorLag] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """The largest lag of an item."""
        return max((lag.most for lag in self.actors.values()), default=0)

    def quantile(self, name: str, share: float) -> float:
        """Of the lag in a part, or in all; see `quantile`."""
        return quantile(self.counts[name], share, self.most)

    def add(self, later: LedgerRow) -> None:
        """Take in the row behind this one."""
        self.updates, self.wall_s, self.bound = later.updates, later.wall_s, later.bound
        self.items += later.items
        self.lost += later.lost
        self.refused += later.refused
        for name in self.counts:
            self.counts[name] = [mine + its for mine, its in zip(self.counts[name], later.counts[name])]
        for name in PARTS:
            self.sum_updates[name] += later.sum_updates[name]
            self.sum_seconds[name] += later.sum_seconds[name]
        for actor, lag in later.actors.items():
            self.actors.setdefault(actor, ActorLag()).add(lag)

    def to_line(self) -> str:
        """One line of JSON, without its end."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> LedgerRow:
        """Read a line.

        Raises:
            ValueError: it is not a whole row.
        """
        try:
            facts: Dict[str, Any] = json.loads(line)
            actors = {str(name): ActorLag(**lag) for name, lag in facts.pop("actors").items()}
            row = cls(**facts, actors=actors)
            histograms = [row.counts[name] for name in (*PARTS, TOTAL)] + [lag.counts for lag in actors.values()]
            numbers = [
                row.updates,
                row.wall_s,
                row.items,
                row.lost,
                row.refused,
                *(lag.most for lag in actors.values()),
            ]
            numbers += [row.sum_updates[name] for name in PARTS] + [row.sum_seconds[name] for name in PARTS]
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"no row of the ledger: {error!r}") from None
        numbers += [count for counts in histograms for count in counts]
        if any(len(counts) != NUM_BUCKETS for counts in histograms) or not all(
            type(number) in (int, float) for number in numbers
        ):
            raise ValueError("no row of the ledger: a histogram or a number in it is none")
        return row


def quantile(counts: Sequence[int], share: float, most: float) -> float:
    """The lag that `share` of the counted items do not exceed, as far as the buckets tell: linear within one.

    Args:
        counts: by bucket.
        share: 0 to 1.
        most: the largest value that was counted, or a bound of it.
    """
    total = sum(counts)
    rank, below = share * total, 0
    for bucket, count in enumerate(counts):
        if count and below + count >= rank:
            low = BOUNDS[bucket - 1] if bucket else 0
            high = min(BOUNDS[bucket], most) if bucket < len(BOUNDS) else max(most, BOUNDS[-1])
            return min(most, low + (high - low) * (rank - below) / count)
        below += count
    return 0.0


def thin_out(rows: Sequence[LedgerRow], max_rows: int) -> List[LedgerRow]:
    """The same sums in at most `max_rows` rows, each of about as many items."""
    share = max(1.0, sum(row.items for row in rows) / max_rows)
    thinned: Dict[int, LedgerRow] = {}
    behind = 0
    for row in rows:
        place = min(max_rows - 1, int(behind / share))
        if place in thinned:
            thinned[place].add(row)
        else:
            thinned[place] = row
        behind += row.items
    return list(thinned.values())


def read_rows(file: Path) -> List[LedgerRow]:
    """The rows of a ledger, none if there is no file; lines that are not whole, after a crash, are passed over."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    rows: List[LedgerRow] = []
    for line in text.split("\n"):
        try:
            rows.append(LedgerRow.from_line(line))
        except ValueError:
            continue
    return rows


class StalenessLog:
    """The writing end: appends rows, and adds neighbours when there are too many."""

    def __init__(self, file: Path, max_rows: int) -> None:
        """Go on with `file`, which need not exist; a line that a crash has cut short is ended."""
        if max_rows < 2:
            raise ValueError(f"a ledger of {max_rows} rows cannot be thinned out; keep at least 2")
        self._file = file
        self._max_rows = max_rows
        self._num_rows = len(read_rows(file))
        self._is_torn = file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")

    def append(self, row: LedgerRow) -> None:
        """Add a row.

        Raises:
            UserError: the disk is full, or the folder cannot be written.
        """
        if self._num_rows >= self._max_rows:
            rows = thin_out(read_rows(self._file), self._max_rows // 2)
            write_atomically(self._file, "".join(kept.to_line() + "\n" for kept in rows).encode())
            self._num_rows, self._is_torn = len(rows), False
        try:
            with with_a_descriptor(lambda: self._file.open("a", encoding="utf-8")) as stream:
                stream.write("\n" * self._is_torn + row.to_line() + "\n")
        except OSError as error:
            raise cannot_write(self._file, error) from None
        self._num_rows += 1
        self._is_torn = False
