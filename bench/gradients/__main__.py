"""`make bench-gradients`: recorded gradients of the arm through each codec, into a table, JSON lines and the docs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Dict, List, Optional, Sequence

from rich.console import Console

from bench.gradients.cases import CALLS, PACKERS, WAYS, GradientCase, Way, all_cases
from bench.gradients.recording import Recording
from bench.gradients.report import Findings, print_tables, write_json_lines, write_section
from bench.replay import machine
from bench.replay.case_process import CaseFailed, CaseProcess
from bench.replay.rounds import alternate, count_for

OPEN_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 300.0
SEED = 1


@dataclass(frozen=True)
class Size:
    """One size of the networks, and how much of its training is recorded."""

    name: str
    num_parameters: int
    num_updates: int
    num_pushes: int


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    name: str
    sizes: Sequence[Size]
    num_rounds: int
    round_s: float  # aimed at


FULL = Plan(
    "full",
    [
        Size("143 k", 143_000, 800, 100),
        Size("1 M", 1_000_000, 400, 100),
        Size("10 M", 10_000_000, 140, 20),
    ],
    num_rounds=5,
    round_s=0.3,
)
QUICK = Plan("quick", [Size("143 k", 143_000, 400, 20)], num_rounds=5, round_s=0.1)


class Bench:
    """One run of the benchmark."""

    def __init__(
        self, plan: Plan, cases: Sequence[GradientCase], folder: Path, console: Console, log: IO[bytes]
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._console = console
        self._log = log
        self.findings = Findings(machine.describe(), plan.name)
        self._cases = []
        for case in cases:
            if case.missing:
                self._miss(f"{case.title}: {case.missing}")
            else:
                self._cases.append(case)

    def run(self) -> None:
        for size in self._plan.sizes:
            file = self._recorded(size)
            self.findings.recordings[size.name] = Recording(file).info
            processes: Dict[str, CaseProcess] = {}
            try:
                for case in self._cases:
                    if case.name == PACKERS and size is not self._plan.sizes[0]:
                        continue  # what packs best does not depend on the size
                    processes[case.name] = CaseProcess(case, self._log)
                    try:
                        processes[case.name].call("open", OPEN_TIMEOUT_S, file=str(file.resolve()))
                    except CaseFailed as error:
                        self._miss(f"{case.title}, {size.name}: {error}")
                        processes.pop(case.name).close()
                self._measure(size, processes)
            finally:
                for process in processes.values():
                    process.close()

    def _recorded(self, size: Size) -> Path:
        """The file of gradients, recorded if it is not there; training is the same for the same seed."""
        file = self._folder / f"{size.num_parameters}-{size.num_updates}-{size.num_pushes}-{SEED}.npy"
        if not file.with_suffix(".json").exists():
            self._console.print(f"{size.name}: TD3 trains on the arm for {size.num_updates} updates", markup=False)
            from bench.gradients.recorder import record

            record(file, size.num_parameters, num_updates=size.num_updates, num_pushes=size.num_pushes, seed=SEED)
        return file

    def _measure(self, size: Size, processes: Dict[str, CaseProcess]) -> None:
        ways = {way.name: way for way in WAYS if way.process in processes}
        for way in list(ways.values()):
            self._console.print(f"{size.name}: {way.title}", markup=False)
            try:
                self.findings.qualities[size.name, way.name] = processes[way.process].call(
                    "quality", CALL_TIMEOUT_S, variant=way.variant
                )
            except CaseFailed as error:
                self._miss(f"{way.title}, {size.name}: {error}")
                del ways[way.name]
        for call in CALLS:
            self._time(size, call, {name: way for name, way in ways.items() if call in way.calls}, processes)

    def _time(self, size: Size, call: str, ways: Dict[str, Way], processes: Dict[str, CaseProcess]) -> None:
        counts: Dict[str, int] = {}

        def measure(name: str) -> float:
            way = ways[name]
            count = counts.get(name, 1)
            timing = processes[way.process].call(call, CALL_TIMEOUT_S, variant=way.variant, count=count)
            return float(timing["count"] / timing["seconds"])

        def failed(name: str, why: str) -> None:
            self._miss(f"{ways[name].title}, {size.name}, {call}: {why}")

        roughly = alternate(list(ways), 1, measure, failed)
        counts.update({name: count_for(rates[0], self._plan.round_s, 2) for name, rates in roughly.by_case.items()})
        self.findings.timings[size.name, call] = alternate(list(counts), self._plan.num_rounds, measure, failed)

    def _miss(self, reason: str) -> None:
        what = reason.splitlines()[0]  # some libraries put a stack into their message; the log has it whole
        self._console.print(f"NOT MEASURED: {what}", markup=False)
        self.findings.not_measured.append(what)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gradients", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute: the smallest networks, short rounds")
    parser.add_argument(
        "--sizes", default="", help="of the full run, separated by commas, as in 143k,1M; all if not given"
    )
    parser.add_argument("--venvs", type=Path, default=Path(".cache/bench-venvs"), help="folder of the peers' venvs")
    parser.add_argument("--recordings", type=Path, default=Path(".cache/bench/gradients"), help="recorded gradients")
    parser.add_argument("--out", type=Path, default=Path(".cache/bench/gradients.jsonl"), help="JSON lines")
    parser.add_argument("--docs", type=Path, help="page of the docs whose generated section is replaced")
    flags = parser.parse_args(arguments)
    plan = QUICK if flags.quick else FULL
    if flags.sizes:
        names = [name.strip() for name in flags.sizes.split(",")]
        known = {size.name.replace(" ", ""): size for size in plan.sizes}
        if set(names) - set(known):
            parser.error(f"--sizes is {flags.sizes}; known are {','.join(known)}")
        plan = replace(plan, sizes=[known[name] for name in names])
    console = Console(width=200 if not sys.stdout.isatty() else None)
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    log_file = flags.out.with_suffix(".log")
    with log_file.open("wb") as log:
        bench = Bench(plan, all_cases(flags.venvs), flags.recordings, console, log)
        bench.run()
    write_json_lines(bench.findings, flags.out)
    if flags.docs:
        write_section(bench.findings, flags.docs)
    print_tables(bench.findings, console)
    console.print(f"written: {flags.out}; what the cases printed: {log_file}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
