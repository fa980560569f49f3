"""`make bench-learner`: updates a second fed by the service, against the same learner fed from memory."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from rich.console import Console
from rich.table import Table

from bench.replay import machine
from bench.replay.case_process import CaseProcess
from bench.replay.cases import CaseSpec
from bench.replay.rounds import Rates, alternate, count_for
from bench.replay.targets import Verdict

SOURCES = ("memory", "mapped", "grpc")
BATCHES = (512, 4096)
BAR = 0.95  # of the updates a second from memory
CALL_TIMEOUT_S = 180.0
BEGIN, END = "<!-- bench-learner: begin -->", "<!-- bench-learner: end -->"


def measure(
    process: CaseProcess, batch: int, *, rounds: int, round_s: float, console: Console
) -> Tuple[Rates, Dict[str, float]]:
    """Updates a second of each source round by round, and the learner's CPU milliseconds an update (medians)."""
    cpu_ms: Dict[str, List[float]] = {source: [] for source in SOURCES}

    def rate(source: str, count: int) -> float:
        timing = process.call("train", CALL_TIMEOUT_S, source=source, batch=batch, count=count)
        cpu_ms[source].append(1000 * timing["cpu_s"] / timing["count"])
        return float(timing["count"] / timing["seconds"])

    count = count_for(rate("memory", 8), round_s, 8)
    console.print(f"batches of {batch}: {rounds} rounds of {count} updates", markup=False)
    rates = alternate(
        SOURCES,
        rounds,
        lambda source: rate(source, count),
        lambda source, why: console.print(f"NOT MEASURED: {source}, batches of {batch}: {why}", markup=False),
    )
    return rates, {source: statistics.median(values) for source, values in cpu_ms.items() if values}


def verdicts(rates: Dict[int, Rates]) -> List[Verdict]:
    """Each way of the service against memory."""
    return [
        Verdict(f"batches of {batch:,}, {source} against memory", by_source.ratio(source, "memory"), BAR)
        for batch, by_source in rates.items()
        for source in SOURCES[1:]
    ]


def rows(rates: Dict[int, Rates], cpu_ms: Dict[int, Dict[str, float]]) -> List[List[str]]:
    """One row a batch size: medians, with half of the spread over the rounds."""
    found = []
    for batch, by_source in rates.items():
        row = [f"{batch:,}"]
        for source in SOURCES:
            median = by_source.median(source)
            row.append("-" if median is None else f"{median:.1f} (±{by_source.spread(source) / 2:.0%})")
        row += ["-" if v.value is None else f"{v.value:.1%} {v.word}" for v in verdicts({batch: by_source})]
        row.append(" / ".join(f"{cpu_ms[batch][source]:.1f}" for source in SOURCES if source in cpu_ms[batch]))
        found.append(row)
    return found


HEAD = ["batch", "from memory", "mapped", "gRPC", "mapped / memory", "gRPC / memory", "CPU ms an update"]


def to_markdown(
    facts: Dict[str, Any], opened: Dict[str, Any], rates: Dict[int, Rates], table_rows: List[List[str]]
) -> str:
    """The generated section of the page."""
    rounds = max(len(its) for by_source in rates.values() for its in by_source.by_case.values())
    lines = [HEAD, ["---"] * len(HEAD), *table_rows]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Python {facts['python']}, load "
        f"{facts['load_before'][0]} before; TD3 2x256 ({opened['parameters']:,} parameters), "
        f"{opened['torch_threads']} thread of torch, {opened['capacity']:,} rows; updates a second, medians of "
        f"{rounds} rounds.\n\n{table}"
    )


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.learner", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--round-s", type=float, default=3.0, help="seconds of a round, about")
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a small table, 5 short rounds")
    parser.add_argument("--out", type=Path, default=Path(".cache/bench/learner.jsonl"), help="JSON lines")
    parser.add_argument("--docs", type=Path, help="page of the docs whose generated section is replaced")
    options = parser.parse_args(arguments)
    rounds, round_s, capacity = (5, 1.0, 50_000) if options.quick else (options.rounds, options.round_s, 1_000_000)
    facts = machine.describe()
    console = Console(width=200 if not sys.stdout.isatty() else None)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rates: Dict[int, Rates] = {}
    cpu_ms: Dict[int, Dict[str, float]] = {}
    with options.out.with_suffix(".log").open("wb") as log:
        process = CaseProcess(CaseSpec("learner", "learner", Path(sys.executable), "bench.learner.learner_case"), log)
        try:
            console.print(f"the replay takes in {capacity:,} rows", markup=False)
            opened = process.call("open", CALL_TIMEOUT_S, capacity=capacity, torch_threads=options.torch_threads)
            for batch in BATCHES:
                rates[batch], cpu_ms[batch] = measure(process, batch, rounds=rounds, round_s=round_s, console=console)
        finally:
            process.close()
    table = Table(*HEAD)
    table_rows = rows(rates, cpu_ms)
    for row in table_rows:
        table.add_row(*row)
    console.print(table)
    lines: List[Dict[str, Any]] = [{"kind": "machine", **facts}, {"kind": "facts", **opened}]
    lines += [
        {"kind": "case", "batch": batch, "source": source, "cpu_ms": cpu_ms[batch].get(source), "rounds": its}
        for batch, by_source in rates.items()
        for source, its in by_source.by_case.items()
    ]
    lines += [{"kind": "target", "text": v.text, "value": v.value, "verdict": v.word} for v in verdicts(rates)]
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if options.docs is not None:
        before, _, rest = options.docs.read_text(encoding="utf-8").partition(BEGIN)
        section = to_markdown(facts, opened, rates, table_rows)
        options.docs.write_text(f"{before}{BEGIN}\n{section}{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
