"""`make bench-actor`: each section in a process of its own, into tables, JSON lines and the page of the docs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Callable, List, Optional

from rich.console import Console
from rich.table import Table

from bench.actor.measure import ask
from bench.actor.report import Findings, tables, write_json_lines, write_section
from bench.replay import machine

ARM, LIGHT = "services.actor.envs.arm:make_reach", "bench.actor.simulators:make"
SECTIONS = ("bare_loop", "sustained", "overlap", "inference", "wire", "scaling")
TIMEOUT_S = 900.0
# Name of a case, its environment, lanes, and what a step of it waits.
OVERLAPS = (
    ("arm, 64 lanes", ARM, 64, 0.0),
    ("simulator that waits 4 ms, 1,024 lanes", LIGHT, 1024, 0.004),
)


class Bench:
    """One run of the benchmark."""

    def __init__(self, *, is_quick: bool, console: Console) -> None:
        self._is_quick = is_quick
        self._console = console
        self.findings = Findings(machine.describe(), "quick" if is_quick else "full")

    def run(self, sections: List[str]) -> None:
        """Measure the sections in their order; one that fails is noted, and the others go on."""
        for section in sections:
            step: Callable[[], None] = getattr(self, f"_measure_{section}")
            step()

    def _ask(self, section: str, what: str, **arguments: Any) -> Optional[Any]:
        self._console.print(f"{section}: {what}", markup=False)
        try:
            return ask(section, arguments, TIMEOUT_S)
        except RuntimeError as error:
            self.findings.not_measured.append(f"{section}, {what}: {error}")
            self._console.print(f"NOT MEASURED: {section}, {what}: {error}", markup=False)
            return None

    def _measure_bare_loop(self) -> None:
        size = {"rounds": 5, "round_s": 0.5} if self._is_quick else {"rounds": 11, "round_s": 2.0}
        for lanes in (16, 64):
            found = self._ask("bare_loop", f"{lanes} lanes", factory=ARM, lanes=lanes, **size)
            if found is not None:
                self.findings.bare_loop[lanes] = found

    def _measure_sustained(self) -> None:
        seconds, warm_up_steps = (10.0, 1_000_000) if self._is_quick else (60.0, 4_000_000)
        size = {"lanes": 4096, "chunk_steps": 10, "width": 128}
        found = self._ask("sustained", f"{seconds:g} s", seconds=seconds, warm_up_steps=warm_up_steps, **size)
        if found is not None:
            self.findings.sustained = {"seconds": seconds, **found}

    def _measure_overlap(self) -> None:
        size = {"rounds": 2, "round_s": 1.0} if self._is_quick else {"rounds": 5, "round_s": 4.0}
        for case, factory, lanes, wait_s in OVERLAPS:
            found = self._ask("overlap", case, factory=factory, lanes=lanes, groups=[1, 2], wait_s=wait_s, **size)
            if found is not None:
                self.findings.overlap[case] = found

    def _measure_inference(self) -> None:
        rounds = 5 if self._is_quick else 11
        lanes = [1, 16, 64, 256, 4096]
        self.findings.inference = (
            self._ask("inference", "numpy, torch", lanes=lanes, widths=[128, 256], rounds=rounds) or []
        )

    def _measure_wire(self) -> None:
        size = {"rounds": 3, "round_s": 0.4} if self._is_quick else {"rounds": 7, "round_s": 1.0}
        self.findings.wire = self._ask("wire", "dtypes and codecs", **size) or []

    def _measure_scaling(self) -> None:
        counts, seconds = ([1, 2, 4], 2.0) if self._is_quick else ([1, 2, 4, 8, 16, 32], 8.0)
        self.findings.scaling = self._ask("scaling", "actors", counts=counts, seconds=seconds, lanes=64) or []


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.actor", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about two minutes: short rounds, few actors")
    parser.add_argument("--sections", default="", help=f"some of {','.join(SECTIONS)}; all if not given")
    parser.add_argument("--out", type=Path, default=Path(".cache/bench/actor.jsonl"), help="JSON lines")
    parser.add_argument("--docs", type=Path, help="page of the docs whose generated section is replaced")
    flags = parser.parse_args(arguments)
    chosen = [name for name in flags.sections.split(",") if name] or list(SECTIONS)
    unknown = set(chosen) - set(SECTIONS)
    if unknown:
        parser.error(f"there is no section {', '.join(sorted(unknown))}; known are {', '.join(SECTIONS)}")
    console = Console(width=160 if not sys.stdout.isatty() else None)
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(is_quick=flags.quick, console=console)
    bench.run(chosen)
    write_json_lines(bench.findings, flags.out)
    if flags.docs:
        write_section(bench.findings, flags.docs)
    for head, rows in tables(bench.findings):
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(f"written: {flags.out}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
