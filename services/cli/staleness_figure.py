"""The staleness ledger as a picture, by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Sequence

from services.cli.staleness_view import NAMES, mean_updates, summed
from services.common.errors import UserError
from services.common.files import cannot_write
from services.common.staleness_log import PARTS, TOTAL, LedgerRow, quantile

COLOURS = {"acting": "#e9c46a", "in_flight": "#f4a261", "ring": "#1f6f8b", "prefetch": "#e76f51"}
MAX_ACTORS = 24  # that are drawn


def draw(file: Path, run: str, rows: Sequence[LedgerRow]) -> None:
    """Draw a ledger of at least one row: the parts over training, and the actors.

    Raises:
        UserError: matplotlib is not there, or the file cannot be written.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise UserError("a picture needs matplotlib, which is not installed: install shoal[report]") from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (over, by) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained", width_ratios=(2, 1))
    _draw_parts(over, rows)
    _draw_actors(by, summed(rows))
    figure.suptitle(f"{run}: how far behind the policy of trained items was")
    try:
        figure.savefig(file, dpi=120)
    except ValueError as error:
        raise UserError(f"cannot draw {str(file)!r}: {error}") from None
    except OSError as error:
        raise cannot_write(file, error) from None
    finally:
        plt.close(figure)


def _draw_parts(axes: Any, rows: Sequence[LedgerRow]) -> None:
    updates = [row.updates for row in rows]
    parts: List[List[float]] = [[mean_updates(row, part) for row in rows] for part in PARTS]
    axes.stackplot(updates, parts, labels=[NAMES[part] for part in PARTS], colors=[COLOURS[part] for part in PARTS])
    p95 = [row.quantile(TOTAL, 0.95) for row in rows]
    axes.plot(updates, p95, color="#333333", lw=1.2, ls=":", label="p95 of all of it")
    if rows[-1].bound is not None:
        axes.axhline(rows[-1].bound, color="#c1121f", lw=1.2, ls="--", label="bound")
    axes.set_xlabel("updates")
    axes.set_ylabel("lag, updates (mean, by part)")
    axes.margins(x=0)
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left", frameon=False)


def _draw_actors(axes: Any, whole: LedgerRow) -> None:
    actors = sorted(whole.actors.items(), key=lambda entry: quantile(entry[1].counts, 0.5, entry[1].most))[-MAX_ACTORS:]
    names = [name for name, _ in actors]
    for share, colour, label in ((0.95, "#9fc4d1", "p95"), (0.5, "#1f6f8b", "p50")):
        values = [quantile(lag.counts, share, lag.most) for _, lag in actors]
        axes.barh(names, values, color=colour, height=0.5, label=label)
    axes.plot([lag.most for _, lag in actors], names, "|", color="#e76f51", ms=12, label="largest")
    axes.set_xlabel("lag, updates")
    axes.margins(y=0.3 / max(1, len(actors)))
    axes.grid(alpha=0.25, axis="x")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
