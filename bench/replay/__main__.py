"""`make bench-replay`: every case that can run, round by round, into a table, JSON lines and the page of the docs."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Dict, List, Optional, Sequence

from rich.console import Console

from bench.replay import machine
from bench.replay.case_process import CaseFailed, CaseProcess
from bench.replay.cases import COLUMNS, CaseSpec, Column, all_cases
from bench.replay.report import Findings, print_tables, write_json_lines, write_section
from bench.replay.rounds import alternate, count_for, fastest
from bench.replay.workload import Workload, workload

CALL_TIMEOUT_S = 60.0
OPEN_TIMEOUT_S = 180.0
LEAST_STORED_BYTES = 64 << 20  # below it the heap's growth says more of the allocator than of the table


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    name: str
    workloads: Sequence[Workload]
    num_rounds: int
    round_s: float  # aimed at
    budget_s: float  # no column begins after it
    limits: Dict[str, Dict[str, float]]  # arguments by call of shoal_limits


def plans(name: str) -> Plan:
    if name == "quick":
        return Plan(
            name,
            [workload("small", 50_000)],
            num_rounds=5,
            round_s=0.15,
            budget_s=100.0,
            limits={
                "beside": {"capacity": 50_000, "num_rounds": 3, "seconds": 0.8},
                "age": {"capacity": 50_000, "num_rounds": 5, "inserts": 40},
                "snapshot": {"capacity": 50_000, "num_rounds": 5},
            },
        )
    return Plan(
        name,
        [workload("small"), workload("large")],
        num_rounds=7,
        round_s=1.0,
        budget_s=720.0,
        limits={
            "beside": {"capacity": 1_000_000, "num_rounds": 7, "seconds": 1.5},
            "age": {"capacity": 200_000, "num_rounds": 10, "inserts": 100},
            "snapshot": {"capacity": 1_000_000, "num_rounds": 8},
        },
    )


class Bench:
    """One run of the benchmark."""

    def __init__(self, plan: Plan, cases: Sequence[CaseSpec], console: Console, log: IO[bytes]) -> None:
        self._plan = plan
        self._cases = cases
        self._console = console
        self._log = log
        self._deadline = time.monotonic() + plan.budget_s
        self.findings = Findings(machine.describe(), plan.name)

    def run(self, with_limits: bool) -> None:
        runnable = []
        for case in self._cases:
            if case.missing:
                self._miss(f"{case.title}: {case.missing}")
            else:
                runnable.append(case)
        if with_limits:
            self._measure_limits()
        for load in self._plan.workloads:
            self.findings.capacities[load.name] = load.capacity
            self._measure_workload(load, runnable)

    def _measure_workload(self, load: Workload, cases: Sequence[CaseSpec]) -> None:
        processes: Dict[str, CaseProcess] = {}
        try:
            for case in cases:
                self._console.print(f"{load.name}: {case.title} fills its table", markup=False)
                processes[case.name] = CaseProcess(case, self._log)
                try:
                    facts = processes[case.name].call(
                        "open", OPEN_TIMEOUT_S, workload_name=load.name, capacity=load.capacity
                    )
                except CaseFailed as error:
                    self._miss(f"{case.title}, {load.name}: {error}")
                    processes.pop(case.name).close()
                else:
                    stored = facts.get("stored_bytes", 0)
                    if stored >= LEAST_STORED_BYTES:
                        facts["bytes_per_transition"] = stored / facts["filled"]
                    self.findings.facts[load.name, case.name] = facts
            for column in COLUMNS[load.name]:
                if time.monotonic() > self._deadline:
                    self._miss(f"{load.name}, {column.title}: the time of the run was used up")
                else:
                    self._measure_column(load, column, [c for c in cases if c.name in processes], processes)
        finally:
            for process in processes.values():
                process.close()

    def _measure_column(
        self, load: Workload, column: Column, cases: Sequence[CaseSpec], processes: Dict[str, CaseProcess]
    ) -> None:
        self._console.print(f"{load.name}: {column.title}", markup=False)
        key = (load.name, column.operation, column.batch)
        counts: Dict[str, int] = {}
        for case in cases:
            try:
                rates = {v: self._calibrate(processes[case.name], column, v) for v in case.variants(column)}
            except CaseFailed as error:
                self._miss(f"{case.title}, {load.name}, {column.title}: {error}")
                continue
            best = fastest(rates)
            self.findings.variants[key, case.name] = best
            least = column.batch if column.operation == "insert" else 4
            counts[case.name] = count_for(rates[best], self._plan.round_s, least)

        def measure(name: str) -> float:
            return _rate(processes[name], column, counts[name], self.findings.variants[key, name])

        self.findings.rates[key] = alternate(
            list(counts), self._plan.num_rounds, measure, lambda name, why: self._miss(f"{name}, {column.title}: {why}")
        )

    def _calibrate(self, process: CaseProcess, column: Column, variant: str) -> float:
        """Operations a second, roughly: enough to choose a variant and the count of a round."""
        count = column.batch if column.operation == "insert" else 2
        rate = _rate(process, column, count, variant)
        enough = count_for(rate, self._plan.round_s / 3, count)
        return rate if enough == count else _rate(process, column, enough, variant)

    def _measure_limits(self) -> None:
        process = CaseProcess(
            CaseSpec("limits", "limits", Path(sys.executable), "bench.replay.shoal_limits"), self._log
        )
        try:
            for name, arguments in self._plan.limits.items():
                self._console.print(f"shoal alone: {name}", markup=False)
                try:
                    self.findings.limits.update(process.call(name, OPEN_TIMEOUT_S, **arguments))
                except CaseFailed as error:
                    self._miss(f"shoal alone, {name}: {error}")
        finally:
            process.close()

    def _miss(self, what: str) -> None:
        self._console.print(f"NOT MEASURED: {what}", markup=False)
        self.findings.not_measured.append(what)


def _rate(process: CaseProcess, column: Column, count: int, variant: str) -> float:
    timing = process.call(column.operation, CALL_TIMEOUT_S, batch=column.batch, count=count, variant=variant)
    return float(timing["count"] / timing["seconds"])


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute or two: a small table, short rounds")
    parser.add_argument("--cases", default="", help="names, separated by commas; all that can run if not given")
    parser.add_argument("--no-limits", action="store_true", help="leave out latencies beside writers, age and memory")
    parser.add_argument("--venvs", type=Path, default=Path(".cache/bench-venvs"), help="folder of the peers' venvs")
    parser.add_argument("--out", type=Path, default=Path(".cache/bench/replay.jsonl"), help="JSON lines")
    parser.add_argument("--docs", type=Path, help="page of the docs whose generated section is replaced")
    flags = parser.parse_args(arguments)
    cases = all_cases(flags.venvs)
    chosen = [name for name in flags.cases.split(",") if name]
    unknown = set(chosen) - {case.name for case in cases}
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}; known are {', '.join(c.name for c in cases)}")
    cases = [case for case in cases if not chosen or case.name in chosen]
    console = Console(width=200 if not sys.stdout.isatty() else None)
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    log_file = flags.out.with_suffix(".log")
    with log_file.open("wb") as log:
        bench = Bench(plans("quick" if flags.quick else "full"), cases, console, log)
        bench.run(with_limits=not flags.no_limits)
    write_json_lines(bench.findings, flags.out)
    if flags.docs:
        write_section(bench.findings, cases, flags.docs)
    print_tables(bench.findings, cases, console)
    console.print(f"written: {flags.out}; what the cases printed: {log_file}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
