"""Numbers, times and small curves as short text."""

from __future__ import annotations

from typing import Optional, Sequence

BARS = "▁▂▃▄▅▆▇█"


def count(number: float) -> str:
    """A count with thin groups of three: `1 000 000`."""
    return f"{round(number):,}".replace(",", " ")


def rate(per_second: float) -> str:
    """Three figures or so: `0.4`, `12.3`, `148`, `5.1k`, `1.2M`."""
    for limit, factor, unit in ((100, 1, ".1f"), (10_000, 1, ".0f"), (1_000_000, 1_000, ".1f")):
        if per_second < limit:
            return f"{per_second / factor:{unit}}{'k' if factor > 1 else ''}"
    return f"{per_second / 1_000_000:.1f}M"


def duration(seconds: Optional[float]) -> str:
    """`0:42`, `12:05`, `3:07:15`, `2 d 04 h`; a dash for None."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole >= 86_400:
        return f"{whole // 86_400} d {whole % 86_400 // 3_600:02} h"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def sparkline(values: Sequence[float], width: int, low: float, high: float) -> str:
    """The whole history as at most `width` bars; where there are more values, a bar is the mean of its share."""
    if not values or width < 1:
        return ""
    bins = min(width, len(values))
    edges = [index * len(values) // bins for index in range(bins + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:])]
    span = high - low or 1.0
    return "".join(BARS[min(len(BARS) - 1, max(0, int((mean - low) / span * len(BARS))))] for mean in means)


def bars(counts: Sequence[int]) -> str:
    """One bar for each count, the highest for the largest; nothing at all for 0."""
    most = max(counts, default=0)
    return "".join(BARS[(len(BARS) - 1) * count // most] if count else " " for count in counts)
