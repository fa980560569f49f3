"""Draws a dashboard's queries from a live run with matplotlib, on the dashboard's own grid: no screenshot of Grafana.

`make dashboards-picture` runs for some minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.e2e import panels
from tests.e2e.monitored import MonitoredRun
from tests.e2e.panels import Target
from tests.e2e.prometheus import Prometheus

SHOWN_S = 180  # how much of the run is drawn
STEP_S = 2
CELL = (0.58, 0.36)  # inches of a cell of the grid
COLUMNS = 24
BACKGROUND, PANEL, TEXT, FAINT = "#111217", "#181b1f", "#ccccdc", "#5a5e66"
COLORS = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#b877d9", "#5794f2", "#ffb357", "#56a64b", "#e0b400")
NAMED = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2"}
CAPTION = "The queries of the dashboard “{title}”, drawn by matplotlib from a live run: not a screenshot of Grafana."
Series = Tuple[str, List[float], List[float]]  # name, seconds before now, values


def written(value: float, unit: str, decimals: Any = None) -> str:
    """A number in its unit, briefly."""
    if not math.isfinite(value):
        return "-"
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    if unit == "s":
        return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"
    suffix = unit.partition("suffix:")[2]
    if decimals is not None:
        return f"{value:,.{decimals}f}{suffix}"
    for size, letter in ((1e6, " M"), (1e3, " k"), (1, "")):
        if abs(value) >= size:
            return f"{round(value / size, 2):g}{letter}{suffix}"
    return f"{value:.2g}{suffix}"


def displayed(panel: Mapping[str, Any], name: str) -> str:
    """A series' name, or what the panel says instead."""
    for override in panel["fieldConfig"].get("overrides") or []:
        if override["matcher"]["options"] == name:
            for change in override["properties"]:
                if change["id"] == "displayName":
                    return str(change["value"])
    return name


def series_of(
    prometheus: Prometheus, target: Target, panel: Mapping[str, Any], values: Mapping[str, str]
) -> List[Series]:
    """What a target's query gives."""
    expr = panels.substituted(target.expr, values)
    now = time.time()
    found = prometheus.now(expr) if target.is_instant else prometheus.over(expr, SHOWN_S, STEP_S)
    drawn: List[Series] = []
    for each in found:
        name = target.named(each["metric"])
        points = each.get("values") or [each["value"]]
        drawn.append(
            (displayed(panel, name), [float(at) - now for at, _ in points], [float(value) for _, value in points])
        )
    return drawn


def draw_lines(axes: Axes, panel: Mapping[str, Any], series: Sequence[Series]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults.get("custom", {})
    if (custom.get("stacking") or {}).get("mode") == "normal":
        times = sorted({at for _, seconds, _ in series for at in map(round, seconds)})
        rows = []
        for _, seconds, numbers in series:
            known = {round(at): number for at, number in zip(seconds, numbers) if math.isfinite(number)}
            rows.append([known.get(at, 0.0) for at in times])
        axes.stackplot(times, rows, labels=[name for name, _, _ in series], colors=COLORS, alpha=0.7)
    else:
        dashed = {
            override["matcher"]["options"]
            for override in panel["fieldConfig"].get("overrides") or []
            if any(change["id"] == "custom.lineStyle" for change in override["properties"])
        }
        for index, (name, seconds, numbers) in enumerate(series):
            style = "--" if name in dashed else "-"
            axes.plot(seconds, numbers, style, color=COLORS[index % len(COLORS)], label=name, linewidth=1.2)
    if (custom.get("scaleDistribution") or {}).get("type") == "log":
        axes.set_yscale("log")
    elif defaults.get("min") is not None:
        axes.set_ylim(bottom=defaults["min"], top=defaults.get("max") and defaults["max"] * 1.04)
    axes.set_xlim(-SHOWN_S, 0)
    unit = defaults.get("unit", "short")
    axes.yaxis.set_major_formatter(lambda value, _: written(value, unit))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 60:.0f} min")
    axes.xaxis.set_major_locator(mpl.ticker.MultipleLocator(60))
    axes.grid(color=FAINT, linewidth=0.3)
    look: Dict[str, Any] = {"fontsize": 6, "frameon": False, "labelcolor": TEXT, "borderaxespad": 0.2}
    if panel["options"]["legend"]["placement"] == "right":
        lines, names = axes.get_legend_handles_labels()
        last = {name: numbers[-1] for name, _, numbers in series}
        ranked = sorted(zip(lines, names), key=lambda pair: -last[pair[1]])
        axes.legend(*zip(*ranked), loc="upper left", bbox_to_anchor=(1.0, 1.05), **look)
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.13), ncol=4, **look)


def color_of(panel: Mapping[str, Any], value: float) -> str:
    """By the panel's limits."""
    color = "green"
    for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return NAMED[color]


def draw_bars(axes: Axes, panel: Mapping[str, Any], series: Sequence[Series]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    values = [numbers[-1] for _, _, numbers in series]
    places = list(range(len(series)))[::-1]
    axes.barh(places, values, color=[color_of(panel, value) for value in values], height=0.55)
    top = defaults.get("max") or max([*values, 1e-9]) * 1.2
    axes.set_xlim(0, top)
    axes.set_ylim(-0.6, max(len(series), 3) - 0.3)
    axes.set_yticks([])
    axes.set_xticks([])
    for place, (name, _, numbers) in zip(places, series):
        axes.text(0, place + 0.32, f"{name}  {written(numbers[-1], defaults['unit'])}", color=TEXT, fontsize=6.5)


def draw_number(axes: Axes, panel: Mapping[str, Any], series: Sequence[Series]) -> None:
    axes.axis("off")
    defaults = panel["fieldConfig"]["defaults"]
    if not series:
        axes.text(0.5, 0.5, defaults.get("noValue", ""), color=FAINT, fontsize=9, ha="center", va="center")
    for index, (name, _, numbers) in enumerate(series):
        value = next((number for number in reversed(numbers) if math.isfinite(number)), math.nan)
        height = 1 - (index + 0.5) / len(series)
        text = written(value, defaults["unit"], defaults.get("decimals"))
        axes.text(0.5, height, text, color=color_of(panel, value), fontsize=15, ha="center", va="center")
        if len(series) > 1:
            axes.text(0.5, height - 0.2, name, color=TEXT, fontsize=7, ha="center", va="center")


def draw_note(axes: Axes, panel: Mapping[str, Any]) -> None:
    axes.axis("off")
    plain = panel["options"]["content"].replace("**", "").replace("`", "")
    width = int(panel["gridPos"]["w"] * 8.5)
    lines = [line for part in plain.splitlines() for line in textwrap.wrap(part, width)]
    axes.text(0, 0.98, "\n".join(lines), color=TEXT, fontsize=7, va="top", linespacing=1.3)


def draw_heat(axes: Axes, panel: Mapping[str, Any], series: Sequence[Series]) -> None:
    by_bound = {float(name): dict(zip(map(round, seconds), numbers)) for name, seconds, numbers in series}
    times = sorted({at for numbers in by_bound.values() for at in numbers})
    below = [0.0] * len(times)
    rows = []
    for bound in sorted(by_bound):
        cumulative = [by_bound[bound].get(at, math.nan) for at in times]
        counts = [each - less for each, less in zip(cumulative, below)]
        rows.append([math.sqrt(count) if count > 0 else math.nan for count in counts])
        below = cumulative
    axes.pcolormesh(times, range(len(rows)), rows, cmap="Oranges", shading="nearest")
    names = [f"{bound:g}" for bound in sorted(by_bound)]
    axes.set_yticks(range(0, len(rows), 2), [written(float(name), "short") for name in names[::2]])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 60:.0f} min")
    axes.xaxis.set_major_locator(mpl.ticker.MultipleLocator(60))


def draw_table(axes: Axes, panel: Mapping[str, Any], columns: Sequence[Sequence[Series]]) -> None:
    """Columns are given one by one; the first one sorts."""
    axes.axis("off")
    renamed = next(each for each in panel["transformations"] if each["id"] == "organize")["options"]["renameByName"]
    units = {each["matcher"]["options"]: each["properties"][0]["value"] for each in panel["fieldConfig"]["overrides"]}
    values = [{name: numbers[-1] for name, _, numbers in column} for column in columns]
    rows = sorted(values[0], key=lambda name: -values[0][name])
    for x, title in enumerate(("actor", *renamed.values())):
        axes.text(x / 6, 0.95, title, color=FAINT, fontsize=7, weight="bold", transform=axes.transAxes)
        for y, name in enumerate(rows):
            unit = units.get(title, panel["fieldConfig"]["defaults"]["unit"])
            text = written(values[x - 1].get(name, math.nan), unit) if x else name
            axes.text(x / 6, 0.85 - 0.1 * y, text, color=TEXT, fontsize=8, transform=axes.transAxes)


DRAWN_BY = {"timeseries": draw_lines, "bargauge": draw_bars, "stat": draw_number, "heatmap": draw_heat}


def frame(figure: Figure, panel: Mapping[str, Any], height: int) -> Axes:
    """A panel's background and title at its place, and the axes inside of it."""
    at = panel["gridPos"]
    side, top = at["x"] / COLUMNS, 1 - (at["y"] + 0.8) / height
    x, y = side + 0.003, top - (at["h"] - 0.1) / height
    width, tall = at["w"] / COLUMNS - 0.006, (at["h"] - 0.2) / height
    figure.add_artist(Rectangle((x, y), width, tall, color=PANEL, zorder=-1))
    figure.text(x + 0.006, y + tall - 0.7 / height, panel["title"], color=TEXT, fontsize=8)
    is_timed = panel["type"] in ("timeseries", "heatmap")
    left, low = (0.03, 1.6 / height) if is_timed else (0.008, 0.3 / height)
    right = 0.17 if panel["options"].get("legend", {}).get("placement") == "right" else 0.008
    axes = figure.add_axes((x + left, y + low, width - left - right, tall - low - 1.1 / height), facecolor=PANEL)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def draw(dashboard: Mapping[str, Any], prometheus: Prometheus, file: Path) -> None:
    """Draw all panels into a PNG."""
    values = {name: offered[0] for name, offered in panels.choices(dashboard, prometheus).items()}
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"]) + 1
    figure = plt.figure(figsize=(COLUMNS * CELL[0], height * CELL[1]), facecolor=BACKGROUND)
    plt.rcParams.update({"xtick.color": TEXT, "ytick.color": TEXT, "xtick.labelsize": 6, "ytick.labelsize": 6})
    targets = list(panels.targets(dashboard))
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            line = 1 - (panel["gridPos"]["y"] + 1.5) / height
            figure.text(0.005, line, panel["title"], color=TEXT, fontsize=11, weight="bold")
            continue
        axes = frame(figure, panel, height)
        if panel["type"] == "text":
            draw_note(axes, panel)
            continue
        own = [target for target in targets if target.panel == panel["title"]]
        columns = [series_of(prometheus, target, panel, values) for target in own]
        if panel["type"] == "table":
            draw_table(axes, panel, columns)
        else:
            DRAWN_BY[panel["type"]](axes, panel, [each for column in columns for each in column])
    caption = CAPTION.format(title=dashboard["title"])
    figure.text(0.005, 1 - 0.6 / height, caption, color=TEXT, fontsize=8)
    figure.savefig(file, dpi=80, facecolor=BACKGROUND)
    plt.close(figure)


def main(words: Sequence[str]) -> int:
    """Run, watch, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="+", metavar="UID=FILE", help="a dashboard, and the PNG to write")
    parser.add_argument("--run-file", default="arm_joint.toml", help="of configs/")
    options = parser.parse_args(words)
    found: Dict[str, Any] = {dashboard["uid"]: dashboard for dashboard in panels.dashboards()}
    with tempfile.TemporaryDirectory() as folder:
        run = MonitoredRun(Path(folder), file=options.run_file, num_helpers=0)
        try:
            run.wait_for("shoal_learner_evaluated_success_ratio")
            time.sleep(SHOWN_S)
            assert run.prometheus is not None
            for uid, file in (picture.split("=") for picture in options.pictures):
                draw(found[uid], run.prometheus, Path(file))
        finally:
            run.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
