"""The staleness ledger as text: the parts of the lag, their course over training, and the actors."""

from __future__ import annotations

from typing import List, Sequence

from services.cli.figures import bars, count, sparkline
from services.common.staleness_log import PARTS, TOTAL, LedgerRow, quantile, thin_out

NAMES = {
    "acting": "acting",
    "in_flight": "in flight",
    "ring": "in the ring",
    "prefetch": "in the prefetch",
    TOTAL: "all of it",
}
CURVE_WIDTH, SHARE_WIDTH = 48, 24
MAX_ACTORS = 20  # lines of a table


def summed(rows: Sequence[LedgerRow]) -> LedgerRow:
    """All rows as one; there is at least one."""
    whole = LedgerRow(0, 0.0, None)
    for row in rows:
        whole.add(row)
    return whole


def mean_updates(row: LedgerRow, part: str) -> float:
    """Mean lag of a row's items in one part, or in all."""
    parts = PARTS if part == TOTAL else (part,)
    return sum(row.sum_updates[name] for name in parts) / max(1, row.items)


def mean_seconds(row: LedgerRow, part: str) -> float:
    """Mean age of a row's items in one part, or in all."""
    parts = PARTS if part == TOTAL else (part,)
    return sum(row.sum_seconds[name] for name in parts) / max(1, row.items)


def describe(run: str, rows: Sequence[LedgerRow]) -> List[str]:
    """The lines of a run's ledger, which has at least one row."""
    whole = summed(rows)
    bound = (
        f"{count(whole.bound)} updates" if whole.bound is not None else "none (staleness.max_lag_updates is not set)"
    )
    lines = [f"run {run}: {count(whole.items)} items trained on up to update {count(whole.updates)}; bound: {bound}"]
    if whole.refused:
        lines.append(f"{count(whole.refused)} items were beyond the bound when they were to be used, and had no weight")
    if whole.lost:
        lines.append(
            f"{count(whole.lost)} items were of versions that a crash of the learner took; they count as fresh"
        )
    return [*lines, "", *_parts(whole), "", *_course(rows), "", *_spread(whole), "", *_actors(whole)]


def _parts(whole: LedgerRow) -> List[str]:
    lines = [f"{'':17}{'lag, updates':^24}  {'age, s':>9}", f"{'':17}{'p50':>8}{'p95':>8}{'mean':>8}  {'mean':>9}"]
    total = mean_updates(whole, TOTAL)
    for part in (*PARTS, TOTAL):
        p50, p95, mean = whole.quantile(part, 0.5), whole.quantile(part, 0.95), mean_updates(whole, part)
        share = mean / total if total else 0.0
        bar = "█" * round(share * SHARE_WIDTH) if part != TOTAL else ""
        lines.append(
            f"{NAMES[part]:<17}{count(p50):>8}{count(p95):>8}{count(mean):>8}  "
            f"{mean_seconds(whole, part):>9.3g}  {f'{share:>4.0%} {bar}' if part != TOTAL else ''}".rstrip()
        )
    return lines


def _course(rows: Sequence[LedgerRow]) -> List[str]:
    copies = [LedgerRow.from_line(row.to_line()) for row in rows]
    stretches = thin_out(copies, CURVE_WIDTH)
    highest = max(mean_updates(row, TOTAL) for row in stretches)
    lines = [f"mean lag over training, up to update {count(rows[-1].updates)}; a full bar is {count(highest)} updates"]
    for part in (*PARTS, TOTAL):
        values = [mean_updates(row, part) for row in stretches]
        lines.append(f"{NAMES[part]:<17}{sparkline(values, CURVE_WIDTH, 0.0, highest)}")
    return lines


def _spread(whole: LedgerRow) -> List[str]:
    counts = whole.counts[TOTAL]
    last = max((place for place, number in enumerate(counts) if number), default=0)
    return [f"{'items by lag':<17}0 |{bars(counts[: last + 1])}| {count(whole.most)} updates"]


def _actors(whole: LedgerRow) -> List[str]:
    actors = sorted(whole.actors.items(), key=lambda entry: -quantile(entry[1].counts, 0.5, entry[1].most))
    width = max(17, *(len(name) + 1 for name, _ in actors))
    lines = [f"{'actor':<{width}}{'items':>12}{'p50':>8}{'p95':>8}{'largest':>9}"]
    for name, lag in actors[:MAX_ACTORS]:
        p50, p95 = (quantile(lag.counts, share, lag.most) for share in (0.5, 0.95))
        lines.append(f"{name:<{width}}{count(sum(lag.counts)):>12}{count(p50):>8}{count(p95):>8}{count(lag.most):>9}")
    if len(actors) > MAX_ACTORS:
        lines.append(f"and {len(actors) - MAX_ACTORS} more, which are fresher")
    return lines
