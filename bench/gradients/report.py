"""What a run found, and how it is told: JSON lines for programs, tables for people, a section of the docs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from rich.console import Console
from rich.table import Table

from bench.gradients.cases import CALLS, WAYS, Way
from bench.gradients.recording import RecordingInfo
from bench.gradients.targets import break_even_mbit, verdicts
from bench.replay.report import Rows, verdict_rows
from bench.replay.rounds import Rates
from bench.replay.targets import Verdict

BEGIN, END = "<!-- bench-gradients: begin -->", "<!-- bench-gradients: end -->"
HEAD = [
    "bytes / float32",
    "error of one push",
    "error of the sum",
    "encode (ms)",
    "decode (ms)",
    "step (ms)",
    "pays below (Mbit/s)",
]


@dataclass
class Findings:
    """All that one run measured, and what it could not."""

    machine: Dict[str, Any]
    mode: str  # "full" or "quick"
    recordings: Dict[str, RecordingInfo] = field(default_factory=dict)  # by size
    qualities: Dict[Tuple[str, str], Dict[str, float]] = field(default_factory=dict)  # of a size and a way
    timings: Dict[Tuple[str, str], Rates] = field(default_factory=dict)  # of a size and a call
    not_measured: List[str] = field(default_factory=list)

    def verdicts(self) -> List[Verdict]:
        """Every target with what was measured for it."""
        return [v for size in self.recordings for v in verdicts(size, self.qualities, self.timings)]

    def milliseconds(self, size: str, call: str, way: str) -> Optional[float]:
        """Median over the rounds of one push, or None."""
        rate = self.timings.get((size, call), Rates()).median(way)
        return None if rate is None else 1e3 / rate

    def break_even(self, size: str, way: str) -> Optional[float]:
        """Mbit/s, or None where there is nothing to save or something was not measured."""
        quality, raw = self.qualities.get((size, way)), 4.0 * self.recordings[size].num_parameters
        encode, decode = (self.milliseconds(size, call, way) for call in ("encode", "decode"))
        if quality is None or encode is None or decode is None or quality["bytes_a_push"] >= raw:
            return None
        return break_even_mbit(quality["bytes_a_push"], raw, encode / 1e3, decode / 1e3)


def write_json_lines(findings: Findings, file: Path) -> None:
    """Write the machine, each way at each size, and the targets, one object a line."""
    lines: List[Dict[str, Any]] = [{"kind": "machine", "mode": findings.mode, **findings.machine}]
    for size, info in findings.recordings.items():
        lines.append({"kind": "recording", "size": size, **asdict(info)})
        lines += [_way_line(findings, size, way) for way in WAYS if (size, way.name) in findings.qualities]
    lines += [
        {"kind": "target", "text": v.text, "value": v.value, "bound": v.bound, "verdict": v.word}
        for v in findings.verdicts()
    ]
    lines += [{"kind": "not measured", "what": what} for what in findings.not_measured]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _way_line(findings: Findings, size: str, way: Way) -> Dict[str, Any]:
    return {
        "kind": "way",
        "size": size,
        "way": way.name,
        **findings.qualities[size, way.name],
        **{f"{call}_ms": findings.milliseconds(size, call, way.name) for call in way.calls},
        **{f"{call}_rounds": findings.timings.get((size, call), Rates()).by_case.get(way.name) for call in way.calls},
        "break_even_mbit": findings.break_even(size, way.name),
    }


def rows_of(findings: Findings, size: str) -> Tuple[List[str], Rows]:
    """Head and rows of one size."""
    rows = []
    for way in WAYS:
        quality = findings.qualities.get((size, way.name))
        if quality is None:
            continue
        errors = [f"{quality[name]:.3%}" for name in ("single_error", "sum_error")]
        times = [_time(findings, size, call, way.name) for call in CALLS]
        pays = findings.break_even(size, way.name)
        rows.append(
            [way.title, f"{quality['bytes_ratio']:.3f}", *errors, *times, "-" if pays is None else f"{pays:,.0f}"]
        )
    return [f"{size} parameters", *HEAD], rows


def print_tables(findings: Findings, console: Console) -> None:
    for head, rows in _tables(findings):
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for what in findings.not_measured:
        console.print(f"NOT MEASURED: {what}", markup=False)


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


def _tables(findings: Findings) -> List[Tuple[List[str], Rows]]:
    return [*(rows_of(findings, size) for size in findings.recordings), verdict_rows(findings.verdicts())]


def _section(findings: Findings) -> str:
    machine = findings.machine
    recorded = "; ".join(
        f"{size}: {info.num_parameters:,} parameters, hidden layers of {info.hidden_size}, the last {info.num_pushes} "
        f"pushes of {info.num_updates} updates"
        for size, info in findings.recordings.items()
    )
    head_line = (
        f"A {findings.mode} run on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Python {machine['python']}; load before: {machine['load_before'][0]}. Recorded: {recorded}.\n"
    )
    parts = [head_line]
    for head, rows in _tables(findings):
        lines = [head, ["---"] * len(head), *rows]
        parts.append("".join("| " + " | ".join(line) + " |\n" for line in lines))
    if findings.not_measured:
        parts.append("".join(f"- NOT MEASURED: {what}\n" for what in findings.not_measured))
    return "\n".join(parts) + "\n"


def _time(findings: Findings, size: str, call: str, way: str) -> str:
    median = findings.milliseconds(size, call, way)
    if median is None:
        return "-"
    return f"{median:.3g} (±{findings.timings[size, call].spread(way) / 2:.0%})"
