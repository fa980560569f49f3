"""The live view: a snapshot of the run drawn for the bottom of a terminal. Pure: no clock, no terminal, no calls."""

from __future__ import annotations

import io
from typing import List, Optional, Sequence, Tuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from services.cli import figures
from services.cli.palette import colour_of
from services.cli.snapshot import LearnerState, ProcessState, ReplayState, Snapshot

HINT = "Ctrl-C stops and keeps the run"
LABEL_WIDTH = 8
SILENCE_SHOWN_S = 2.0
PANEL_ROWS = 8  # lines of text in each upper panel, and its two edges
NARROW = 84  # below this width the replay's panel is left out: two of them would only be dots
PHASE_STYLES = {"training": "bold green", "finishing": "bold cyan", "stopping": "bold yellow", "starting": "bold blue"}
GOOD, BAD, DIM = "green", "bold red", "dim"
GOOD_SUCCESS = 0.5


def render(
    snapshot: Snapshot, width: int = 100, height: int = 20, hint: str = HINT, lines: Sequence[Text] = ()
) -> RenderableType:
    """Draw a run.

    Args:
        snapshot: what is known.
        width: columns of the terminal.
        height: lines that may be used; processes that do not fit are summed up in one line.
        hint: what keys do, at the upper right.
        lines: to show between the panels and the processes.
    """
    lines = lines[: max(0, height - 1 - PANEL_ROWS)]
    parts: List[RenderableType] = [_title(snapshot, hint), _upper(snapshot, width), *lines]
    rows = height - 1 - PANEL_ROWS - 2 - len(lines)
    if rows >= 2:
        parts.append(_processes(snapshot, rows))
    return Group(*parts)


def export_svg(snapshot: Snapshot, title: str, width: int = 100, height: int = 20) -> str:
    """The live view as a picture for a page, drawn by the same code."""
    console = Console(
        width=width, height=height, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(render(snapshot, width, height))
    return console.export_svg(title=title)


def status_line(snapshot: Snapshot) -> str:
    """The run in one line, for output that is no terminal."""
    learner, replay = snapshot.training.learner, snapshot.training.replay
    parts = [f"{figures.duration(snapshot.elapsed_s)} {_phase(snapshot)}"]
    if learner is not None:
        parts.append(
            f"updates {learner.updates}/{learner.max_updates} at {figures.rate(learner.updates_per_s)}/s, "
            f"ETA {figures.duration(learner.eta_s)}"
        )
        if learner.evaluated_version:
            parts.append(_score_text(learner))
        parts.append(f"lag p50 {learner.lag_p50_updates:.0f} p95 {learner.lag_p95_updates:.0f} updates")
        if learner.non_finite_updates:
            parts.append(f"{learner.non_finite_updates} updates stopped: not finite")
    if replay is not None:
        parts.append(f"replay {replay.rows}/{replay.capacity_rows} rows, {figures.rate(replay.steps_per_s)} steps/s in")
    parts += [f"{p.name}: {p.state}" for p in snapshot.processes if p.state not in {"running", "ended"}]
    parts += [f"{name} waits: {reason}" for name, reason in sorted(snapshot.waits.items())]
    if snapshot.training.problem:
        parts.append(snapshot.training.problem)
    return "; ".join(parts)


def _phase(snapshot: Snapshot) -> str:
    learner = snapshot.training.learner
    if snapshot.phase != "training" or learner is None:
        return snapshot.phase
    if learner.drain:
        return learner.drain
    return {"waiting": "waiting for data", "finished": "finishing"}.get(learner.run_state, "training")


def _title(snapshot: Snapshot, hint: str) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(justify="right", no_wrap=True)
    phase = _phase(snapshot)
    left = Text.assemble(
        (" shoal ", "bold reverse cyan"),
        " ",
        (snapshot.run, "bold"),
        "  ",
        (phase, PHASE_STYLES.get(phase, "bold blue")),
    )
    if snapshot.training.problem:
        left.append(f"  {snapshot.training.problem}", style=BAD)
    line.add_row(left, Text(f"{figures.duration(snapshot.elapsed_s)} · {hint} ", style=DIM))
    return line


def _upper(snapshot: Snapshot, width: int) -> RenderableType:
    inner = max(20, width // 2 - 4) if width >= NARROW else max(20, width - 4)
    learning = _panel("learning", _learning(snapshot.training.learner, inner), "yellow")
    if width < NARROW:
        return learning
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(learning, _panel("replay", _replay(snapshot.training.replay, inner), "magenta"))
    return grid


def _panel(title: str, content: RenderableType, colour: str) -> Panel:
    heading = f"[bold {colour}]{title}[/]"
    return Panel(content, title=heading, title_align="left", border_style=DIM, box=box.ROUNDED, height=PANEL_ROWS)


def _lines(rows: List[Tuple[str, RenderableType]]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style=DIM, min_width=LABEL_WIDTH, no_wrap=True)
    grid.add_column(overflow="ellipsis")
    for label, value in rows:
        grid.add_row(label, value)
    return grid


def _bar(done: float, total: float, note: str, inner: int, style: str) -> RenderableType:
    bar = Table.grid(padding=(0, 1))
    wide = max(6, inner - LABEL_WIDTH - len(note) - 2)
    bar.add_column(width=wide)
    bar.add_column(no_wrap=True)
    bar.add_row(
        ProgressBar(
            total=max(total, 1), completed=min(done, total), width=wide, complete_style=style, finished_style=GOOD
        ),
        Text(note, style="bold"),
    )
    return bar


def _learning(learner: Optional[LearnerState], inner: int) -> RenderableType:
    if learner is None:
        return Text("the learner has not answered yet", style=DIM)
    done = learner.updates / max(1, learner.max_updates)
    pace = Text.assemble(
        (figures.count(learner.updates), "bold"),
        (f" of {figures.count(learner.max_updates)}   ", DIM),
        (figures.rate(learner.updates_per_s), "bold"),
        ("/s   ETA ", DIM),
        (figures.duration(learner.eta_s), "bold"),
    )
    lag = Text.assemble(
        (str(learner.version), "bold"),
        ("   lag p50 ", DIM),
        (f"{learner.lag_p50_updates:.0f}", "bold"),
        (" p95 ", DIM),
        (f"{learner.lag_p95_updates:.0f}", "bold"),
        (" updates", DIM),
    )
    stopped: List[Tuple[str, RenderableType]] = []
    if learner.non_finite_updates:
        count = figures.count(learner.non_finite_updates)
        stopped.append(("", Text(f"{count} updates not finite", style="bold yellow")))
    if learner.silent_s > SILENCE_SHOWN_S:
        pace = Text(f"no answer for {learner.silent_s:.0f} s", style=BAD)
    return _lines(
        [
            ("updates", _bar(learner.updates, learner.max_updates, f"{done:4.0%}", inner, "yellow")),
            ("", pace),
            ("version", lag),
            *stopped,
            *_scores(learner, inner - LABEL_WIDTH - 2),
        ]
    )


def _scores(learner: LearnerState, width: int) -> List[Tuple[str, RenderableType]]:
    if not learner.evaluated_version:
        return [("success", Text("not evaluated yet", style=DIM))]
    returns = Text.assemble(
        (f"{learner.mean_return:.4g}", "bold"), ("   best ", DIM), (f"{learner.best_mean_return:.4g}", "bold")
    )
    if not learner.has_success:
        low, high = min(learner.scores, default=0.0), max(learner.scores, default=1.0)
        return [("return", returns), ("", Text(figures.sparkline(learner.scores, width, low, high), style=GOOD))]
    success = Text.assemble(
        (f"{learner.success_rate:.0%}", "bold green" if learner.success_rate >= GOOD_SUCCESS else "bold yellow"),
        ("   best ", DIM),
        (f"{learner.best_success_rate:.0%}", "bold"),
        (f" (version {learner.best_version})", DIM),
    )
    curve = figures.sparkline(learner.scores, width, 0.0, 1.0)
    return [("success", success), ("", Text(curve, style=GOOD)), ("return", returns)]


def _replay(replay: Optional[ReplayState], inner: int) -> RenderableType:
    if replay is None:
        return Text("the replay has not answered yet", style=DIM)
    fill = replay.rows / max(1, replay.capacity_rows)
    rows = Text.assemble((figures.count(replay.rows), "bold"))
    if not replay.quarantined_steps:  # which needs the room
        rows.append(f" of {figures.count(replay.capacity_rows)}", style=DIM)
    rows.append_text(_losses(replay))
    if replay.silent_s > SILENCE_SHOWN_S:
        rows = Text(f"no answer for {replay.silent_s:.0f} s", style=BAD)
    flow = Text.assemble(
        (figures.rate(replay.steps_per_s), "bold"),
        (" steps/s in   ", DIM),
        (figures.rate(replay.samples_per_s), "bold"),
        (" items/s out", DIM),
    )
    gates = Text.assemble(
        ("insert ", DIM),
        _gate(blocked=replay.insert_blocked),
        ("   sample ", DIM),
        _gate(blocked=replay.sample_blocked),
    )
    return _lines(
        [
            ("rows", _bar(replay.rows, replay.capacity_rows, f"{fill:4.0%}", inner, "magenta")),
            ("", rows),
            ("flow", flow),
            ("limiter", gates),
            ("", Text(replay.limiter or "no limit", style=DIM, no_wrap=False, overflow="ellipsis")),
        ]
    )


def _losses(replay: ReplayState) -> Text:
    """Steps that are trouble; overwriting the oldest is what a full ring is for."""
    text = Text()
    if replay.quarantined_steps:
        text.append(f"   {figures.count(replay.quarantined_steps)} quarantined", style="bold yellow")
    if replay.lost_tail_steps:
        text.append(f"   {figures.count(replay.lost_tail_steps)} lost", style=DIM)
    return text


def _gate(*, blocked: bool) -> Text:
    return Text("■ waits", style="yellow") if blocked else Text("● flows", style=GOOD)


def _processes(snapshot: Snapshot, rows: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, padding=(0, 1), header_style=DIM, show_edge=False)
    table.add_column(" process", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in ("steps/s", "steps", "version", "lag"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("waits for", ratio=1, no_wrap=True, overflow="ellipsis")
    processes = list(snapshot.processes)
    # Trouble is seen even where not all fit; the order stays that of the start.
    hidden = len(processes) - rows + 1 if len(processes) > rows else 0
    calm = [p for p in reversed(processes) if p.healthy and p.name not in snapshot.waits]
    left_out = {p.name for p in (calm + [p for p in reversed(processes) if p not in calm])[:hidden]}
    for process in processes:
        if process.name not in left_out:
            table.add_row(*_process_row(process, snapshot))
    if left_out:
        speed = sum(a.steps_per_s for name, a in snapshot.training.actors.items() if name in left_out)
        table.add_row(Text(f" + {len(left_out)} more", style=DIM), "", figures.rate(speed), "", "", "", "")
    return table


def _process_row(process: ProcessState, snapshot: Snapshot) -> List[RenderableType]:
    actor = snapshot.training.actors.get(process.name)
    reader = snapshot.training.readers.get(process.name)
    mark = ("● ", GOOD) if process.healthy else ("▲ ", BAD)
    state = Text(process.state, style="" if process.healthy else BAD)
    if process.restarts:
        state.append(f" ↻{process.restarts}", style="yellow")
    return [
        Text.assemble(" ", mark, (process.name, colour_of(process.name))),
        state,
        figures.rate(actor.steps_per_s) if actor else "",
        figures.count(actor.steps) if actor else "",
        str(actor.version) if actor else "",
        figures.count(reader.lag_updates) if reader is not None else "",
        Text(snapshot.waits.get(process.name, ""), style="yellow"),
    ]


def _score_text(learner: LearnerState) -> str:
    if learner.has_success:
        success = f"success {learner.success_rate:.0%} (best {learner.best_success_rate:.0%})"
        return f"{success}, return {learner.mean_return:.4g}"
    return f"return {learner.mean_return:.4g} (best {learner.best_mean_return:.4g})"
