"""Tables and targets out of what the sections measured; JSON lines, and a section of the docs."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from bench.replay.rounds import Rates
from bench.replay.targets import Verdict

Rows = List[List[str]]
Table = Tuple[List[str], Rows]
BEGIN, END = "<!-- bench-actor: begin -->", "<!-- bench-actor: end -->"


@dataclass
class Findings:
    """All that one run measured, by section, and what it could not."""

    machine: Dict[str, Any]
    mode: str  # "full" or "quick"
    bare_loop: Dict[int, Dict[str, Any]] = field(default_factory=dict)  # by lanes
    sustained: Dict[str, Any] = field(default_factory=dict)
    overlap: Dict[str, Dict[str, Any]] = field(default_factory=dict)  # by case
    inference: List[Dict[str, Any]] = field(default_factory=list)
    wire: List[Dict[str, Any]] = field(default_factory=list)
    scaling: List[Dict[str, Any]] = field(default_factory=list)
    not_measured: List[str] = field(default_factory=list)


def verdicts(findings: Findings) -> List[Verdict]:
    """The targets beside what was measured."""
    found: List[Verdict] = []
    for lanes in (16, 64):
        rates = Rates(findings.bare_loop.get(lanes, {}).get("rates", {}))
        text = f"arm, {lanes} lanes: steps/s with services over the bare loop's"
        found.append(Verdict(text, rates.ratio("services", "bare"), 0.9))
    sustained = findings.sustained
    rate, dropped = sustained.get("steps_per_s"), sustained.get("dropped")
    found.append(Verdict("4,096 lanes: steps/s into one replay", rate, 100_000))
    drops = None if dropped is None else float(sum(dropped.values()))
    found.append(Verdict("4,096 lanes: steps dropped", drops, 0, at_least=False))
    for process in ("actor", "replay"):
        before, after = (sustained.get(f"heap_{when}", {}).get(process) for when in ("before", "after"))
        growth = after / before if before and after else None
        found.append(
            Verdict(f"4,096 lanes: heap of the {process} at the end, over its start", growth, 1.05, at_least=False)
        )
    lost = float(sum(row["dropped"] for row in findings.scaling)) if findings.scaling else None
    found.append(Verdict("many actors: steps dropped", lost, 0, at_least=False))
    return found


def tables(findings: Findings) -> List[Table]:
    """Head and rows of each section that was measured, and of the targets."""
    made: List[Table] = []
    if findings.bare_loop:
        made.append(_bare_table(findings.bare_loop))
    if findings.sustained:
        made.append(_sustained_table(findings.sustained))
    if findings.overlap:
        made.append(_overlap_table(findings.overlap))
    if findings.inference:
        made.append(_inference_table(findings.inference))
    if findings.wire:
        made.append(_wire_table(findings.wire))
    if findings.scaling:
        made.append(_scaling_table(findings.scaling))
    made.append(
        (
            ["target (set for a full run)", "bound", "measured", "verdict"],
            [
                [
                    v.text,
                    f"{'>=' if v.at_least else '<='} {v.bound:,g}",
                    "-" if v.value is None else f"{v.value:,.4g}",
                    v.word,
                ]
                for v in verdicts(findings)
            ],
        )
    )
    return made


def write_json_lines(findings: Findings, file: Path) -> None:
    """One object a line: the machine, each section with all of its rounds, the targets."""
    lines: List[Dict[str, Any]] = [{"kind": "machine", "mode": findings.mode, **findings.machine}]
    lines += [{"kind": "bare loop", "lanes": lanes, **row} for lanes, row in findings.bare_loop.items()]
    lines += [{"kind": "overlap", "case": case, **row} for case, row in findings.overlap.items()]
    lines += [{"kind": "sustained", **findings.sustained}] if findings.sustained else []
    for kind in ("inference", "wire", "scaling"):
        lines += [{"kind": kind, **row} for row in getattr(findings, kind)]
    lines += [{"kind": "target", **vars(v), "verdict": v.word} for v in verdicts(findings)]
    lines += [{"kind": "not measured", "what": what} for what in findings.not_measured]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_section(findings: Findings, page: Path) -> None:
    """Replace the generated section of a page of the docs.

    Raises:
        ValueError: the page lacks its markers.
    """
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} has no section between {BEGIN} and {END}")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{_section(findings)}{END}{after}", encoding="utf-8")


def _section(findings: Findings) -> str:
    machine = findings.machine
    head_line = (
        f"A {findings.mode} run on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Python {machine['python']}; load before: {machine['load_before'][0]}.\n"
    )
    parts = [head_line]
    for head, rows in tables(findings):
        parts.append("".join("| " + " | ".join(line) + " |\n" for line in [head, ["---"] * len(head), *rows]))
    parts += ["".join(f"- NOT MEASURED: {what}\n" for what in findings.not_measured)] if findings.not_measured else []
    return "\n".join(parts) + "\n"


def _bare_table(found: Dict[int, Dict[str, Any]]) -> Table:
    rows = []
    for lanes, row in found.items():
        rates = Rates(row["rates"])
        cpu = {name: statistics.median(values) for name, values in row["cpu_us"].items()}
        ratio = rates.ratio("services", "bare") or 0.0
        rows.append(
            [str(lanes), *(_rates(rates, name) for name in ("bare", "services")), f"{ratio:.2f}"]
            + [f"{cpu[name]:.1f}" for name in ("bare", "services")]
        )
    head = [
        "arm, lanes",
        "bare (steps/s)",
        "with services (steps/s)",
        "ratio",
        "CPU bare (µs/step)",
        "CPU with (µs/step)",
    ]
    return head, rows


def _sustained_table(row: Dict[str, Any]) -> Table:
    heaps = [
        f"{process} {row['heap_before'][process] / 2**20:.0f} -> {row['heap_after'][process] / 2**20:.0f} MiB"
        for process in ("actor", "replay")
    ]
    dropped = sum(row["dropped"].values())
    return (
        [
            "one actor, 4,096 lanes",
            "steps/s",
            "slowest tenth",
            "dropped",
            "CPU of the actor",
            "steps per CPU second",
            "heaps",
        ],
        [
            [
                f"{row['seconds']:g} s",
                _figure(row["steps_per_s"]),
                _figure(row["slowest_tenth"]),
                str(dropped),
                f"{row['actor_cpu_share']:.0%}",
                _figure(row["steps_per_cpu_s"]),
                ", ".join(heaps),
            ]
        ],
    )


def _overlap_table(found: Dict[str, Dict[str, Any]]) -> Table:
    rows = []
    for case, row in found.items():
        rates = Rates(row["rates"])
        rows.append([case, _rates(rates, "1"), _rates(rates, "2"), f"{rates.ratio('2', '1') or 0.0:.2f}"])
    return ["lane groups", "one (steps/s)", "two (steps/s)", "ratio"], rows


def _inference_table(found: Sequence[Dict[str, Any]]) -> Table:
    rows = []
    for row in found:
        took = Rates(row["took_us"])
        words = [f"{took.median(name):,.0f} (±{took.spread(name) / 2:.0%})" for name in ("numpy", "torch")]
        rows.append([f"2x{row['width']}", str(row["lanes"]), *words, f"{took.ratio('torch', 'numpy') or 0.0:.2f}"])
    return ["TD3", "lanes", "numpy (µs)", "torch (µs)", "torch / numpy"], rows


def _wire_table(found: Sequence[Dict[str, Any]]) -> Table:
    rows = [
        [
            row["case"],
            f"{row['bytes_per_step']:,.0f}",
            f"{row['pack_ms']:.2f}",
            f"{row['unpack_ms']:.2f}",
            _figure(statistics.median(row["steps_per_s"])),
        ]
        for row in found
    ]
    return ["chunks of 10 steps", "bytes a step", "pack (ms)", "unpack (ms)", "into a replay (steps/s)"], rows


def _scaling_table(found: Sequence[Dict[str, Any]]) -> Table:
    rows = [
        [
            str(row["actors"]),
            _figure(row["steps_per_s"]),
            str(row["dropped"]),
            f"{row['acknowledged_p99_ms']:.3g}",
            f"{row['replay_cpu_share']:.0%}",
        ]
        for row in found
    ]
    return ["actors", "steps/s in", "dropped", "acknowledged within, p99 (ms)", "CPU of the replay"], rows


def _rates(rates: Rates, case: str) -> str:
    median = rates.median(case)
    return "-" if median is None else f"{_figure(median)} (±{rates.spread(case) / 2:.0%})"


def _figure(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value / 1e3:.3g} k" if value >= 1e4 else f"{value:,.0f}"
