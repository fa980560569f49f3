"""What a run found, and how it is told: JSON lines for programs, tables for people, a section of the docs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from rich.console import Console
from rich.table import Table

from bench.replay.cases import COLUMNS, CaseSpec
from bench.replay.rounds import Rates
from bench.replay.targets import Key, Verdict, limit_verdicts, ratio_verdicts

Rows = List[List[str]]
BEGIN, END = "<!-- bench-replay: begin -->", "<!-- bench-replay: end -->"


@dataclass
class Findings:
    """All that one run measured, and what it could not."""

    machine: Dict[str, Any]
    mode: str  # "full" or "quick"
    capacities: Dict[str, int] = field(default_factory=dict)  # by workload
    rates: Dict[Key, Rates] = field(default_factory=dict)
    variants: Dict[Tuple[Key, str], str] = field(default_factory=dict)  # of a column and a case
    facts: Dict[Tuple[str, str], Dict[str, Any]] = field(default_factory=dict)  # of a workload and a case
    limits: Dict[str, float] = field(default_factory=dict)
    not_measured: List[str] = field(default_factory=list)

    def verdicts(self) -> List[Verdict]:
        """Every target with what was measured for it."""
        limits = dict(self.limits)
        stored = self.facts.get(("small", "shoal"), {}).get("bytes_per_transition")
        if stored is not None:
            limits["bytes_per_transition"] = stored
            limits["bytes_with_both_observations"] = stored + self.facts["small", "shoal"]["observation_bytes"]
        return ratio_verdicts(self.rates) + limit_verdicts(limits)


def write_json_lines(findings: Findings, file: Path) -> None:
    """Write the machine, each case of each column, the limits and the targets, one object a line."""
    lines: List[Dict[str, Any]] = [
        {"kind": "machine", "mode": findings.mode, "capacity": findings.capacities, **findings.machine}
    ]
    for key, rates in findings.rates.items():
        workload, operation, batch = key
        for case, by_round in rates.by_case.items():
            lines.append(
                {
                    "kind": "case",
                    "workload": workload,
                    "operation": operation,
                    "batch": batch,
                    "case": case,
                    "variant": findings.variants.get((key, case), ""),
                    "median": rates.median(case),
                    "rounds": by_round,
                    "filled": findings.facts.get((workload, case), {}).get("filled"),
                }
            )
    lines += [
        {"kind": "facts", "workload": workload, "case": case, **facts}
        for (workload, case), facts in findings.facts.items()
    ]
    lines.append({"kind": "limits", **findings.limits})
    lines += [
        {"kind": "target", "text": v.text, "value": v.value, "bound": v.bound, "verdict": v.word}
        for v in findings.verdicts()
    ]
    lines += [{"kind": "not measured", "what": what} for what in findings.not_measured]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def rate_rows(findings: Findings, workload: str, cases: Sequence[CaseSpec]) -> Tuple[List[str], Rows]:
    """Head and rows of a workload's table: medians, and in brackets the spread over the rounds."""
    columns = COLUMNS[workload]
    head = [workload, *(f"{column.title} ({column.unit})" for column in columns)]
    rows = []
    for case in cases:
        row = [case.title]
        for column in columns:
            rates = findings.rates.get((workload, column.operation, column.batch), Rates())
            median = rates.median(case.name)
            row.append("-" if median is None else f"{_figure(median)} (±{rates.spread(case.name) / 2:.0%})")
        rows.append(row)
    return head, rows


def limit_rows(limits: Dict[str, float]) -> Tuple[List[str], Rows]:
    """Head and rows of the sampler's latencies."""
    rows = [
        [
            f"{title}, {pace}",
            *(_milliseconds(limits.get(f"{pace}_{crowd}_{label}_ms")) for label in ("p50", "p99")),
        ]
        for pace in ("paced", "saturated")
        for crowd, title in (("quiet", "quiet"), ("writers", "two writers"), ("light", "64 light clients"))
    ]
    rows += [
        [
            f"insert 1,000 {when}",
            *(_milliseconds(limits.get(f"insert_{name}_{p}_ms")) for p in ("p50", "p99")),
        ]
        for name, when in (
            ("1x", "after 1x capacity"),
            ("50x", "after 50x capacity"),
            ("quiet", "into a mapped ring"),
            ("snapshot", "into one of which a snapshot is taken"),
        )
    ]
    return ["shoal", "p50 (ms)", "p99 (ms)"], rows


def memory_rows(findings: Findings) -> Tuple[List[str], Rows]:
    """Head and rows of what a transition takes, and of the replay's memory with age."""
    rows = [
        [f"bytes of a {workload} transition, {case}", f"{facts['bytes_per_transition']:,.0f}"]
        for (workload, case), facts in findings.facts.items()
        if "bytes_per_transition" in facts
    ]
    for laps in ("1x", "20x", "50x"):
        heap, mapped = findings.limits.get(f"heap_{laps}_bytes"), findings.limits.get(f"mapped_{laps}_bytes")
        if heap is not None and mapped is not None:
            sizes = f"{heap / 2**20:.1f} MiB heap, {mapped / 2**20:.1f} MiB mapped files"
            rows.append([f"shoal's replay after {laps} capacity", sizes])
    return ["memory", ""], rows


def verdict_rows(verdicts: Sequence[Verdict]) -> Tuple[List[str], Rows]:
    """Head and rows of the targets."""
    rows = [
        [v.text, f"{'>=' if v.at_least else '<='} {v.bound:g}", "-" if v.value is None else f"{v.value:.2f}", v.word]
        for v in verdicts
    ]
    return ["target (set for a full run)", "bound", "measured", "verdict"], rows


def tables(findings: Findings, cases: Sequence[CaseSpec]) -> List[Tuple[List[str], Rows]]:
    measured = [name for name in COLUMNS if any(key[0] == name for key in findings.rates)]
    return [
        *(rate_rows(findings, name, cases) for name in measured),
        limit_rows(findings.limits),
        memory_rows(findings),
        verdict_rows(findings.verdicts()),
    ]


def print_tables(findings: Findings, cases: Sequence[CaseSpec], console: Console) -> None:
    for head, rows in tables(findings, cases):
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for what in findings.not_measured:
        console.print(f"NOT MEASURED: {what}", markup=False)


def write_section(findings: Findings, cases: Sequence[CaseSpec], page: Path) -> None:
    """Replace the generated section of a page of the docs.

    Raises:
        ValueError: the page lacks its markers.
    """
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} has no section between {BEGIN} and {END}")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{_section(findings, cases)}{END}{after}", encoding="utf-8")


def _section(findings: Findings, cases: Sequence[CaseSpec]) -> str:
    machine = findings.machine
    capacities = ", ".join(f"{name} {capacity:,}" for name, capacity in findings.capacities.items())
    head_line = (
        f"A {findings.mode} run on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Python {machine['python']}; load before: {machine['load_before'][0]}. Capacities: {capacities}.\n"
    )
    parts = [head_line]
    for head, rows in tables(findings, cases):
        lines = [head, ["---"] * len(head), *rows]
        parts.append("".join("| " + " | ".join(line) + " |\n" for line in lines))
    if findings.not_measured:
        parts.append("".join(f"- NOT MEASURED: {what}\n" for what in findings.not_measured))
    return "\n".join(parts) + "\n"


def _figure(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    if value >= 1e4:
        return f"{value / 1e3:.3g} k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _milliseconds(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f}"
