"""`make bench-lockstep`: `shoal up` and the lockstep trainer take turns, seed by seed; a table of what came of them."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from rich.console import Console
from rich.table import Table

from bench.lockstep.outcome import Outcome, read_outcome, with_interval
from bench.replay import machine
from services.cli.plan import ALLOCATION

TIMEOUT_S = 1800.0
# Title, and the value of an outcome.
ROWS: Tuple[Tuple[str, Callable[[Outcome], Optional[float]]], ...] = (
    ("steps/s", lambda outcome: outcome.steps_per_s),
    ("updates/s", lambda outcome: outcome.updates_per_s),
    ("wall time to the bar (s)", lambda outcome: outcome.wall_s),
    ("steps to the bar", lambda outcome: outcome.steps),
    ("updates to the bar", lambda outcome: outcome.updates),
    ("best success", lambda outcome: outcome.best_success),
)


def run_asynchronously(file: Path, folder: Path, seed: int, flags: Sequence[str], threads: int) -> Path:  # noqa: ARG001
    """`shoal up`, with its evaluator and all, one thread a process; returns the evaluations."""
    name = f"async-{seed}"
    command = [sys.executable, "-m", "services.cli", "up", str(file), "--run.name", name, "--run.folder", str(folder)]
    command += ["--run.seed", str(seed), "--report.video", "false", "--report.episodes", "1", *flags]
    _call(command, folder / f"{name}.log", threads=1)
    return folder / name / "evaluations.jsonl"


def run_in_lockstep(file: Path, folder: Path, seed: int, flags: Sequence[str], threads: int) -> Path:
    """The trainer, with `threads` for numpy and torch and all cores for the simulator; returns the evaluations."""
    out = folder / f"lockstep-{seed}.jsonl"
    command = [sys.executable, "-m", "bench.lockstep.trainer", str(file), str(out), "--run.seed", str(seed)]
    command += ["--learner.torch_threads", str(threads), *flags]
    _call(command, folder / f"lockstep-{seed}.log", threads=threads)
    return out


def _call(command: List[str], log: Path, *, threads: int) -> None:
    environ = {**os.environ, **ALLOCATION, "OMP_NUM_THREADS": str(threads)}
    with log.open("wb") as stream:
        ended = subprocess.run(
            command, stdout=stream, stderr=subprocess.STDOUT, env=environ, timeout=TIMEOUT_S, check=False
        )
    if ended.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        raise RuntimeError(f"{' '.join(command[2:5])} ended with {ended.returncode}: {' / '.join(last)}")


def summary(outcomes: Dict[str, List[Outcome]], bar: float) -> Tuple[List[str], List[List[str]]]:
    """Head and rows: interquartile means with 95 % intervals, over the runs that reached the bar where it matters."""
    rows = [[title, *(_cell([value(o) for o in runs]) for runs in outcomes.values())] for title, value in ROWS]
    reached = [f"{sum(o.updates is not None for o in runs)} of {len(runs)}" for runs in outcomes.values()]
    return [f"interquartile mean [95 % interval]; bar {bar:.0%}", *outcomes], [
        ["runs that reached it", *reached],
        *rows,
    ]


def _cell(values: Sequence[Optional[float]]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, low, high = with_interval(known)
    return f"{mean:,.4g} [{low:,.4g}, {high:,.4g}]"


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.lockstep", description=__doc__)
    parser.add_argument("--file", type=Path, default=Path("configs/arm_reach.toml"), help="run file")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each kind")
    parser.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count() or 1,
        help="of numpy and torch in lockstep: all cores; one is faster where others use the machine",
    )
    parser.add_argument("--bar", type=float, default=0.9, help="success rate that counts as reached")
    parser.add_argument("--out", type=Path, default=Path(".cache/bench/lockstep.jsonl"), help="JSON lines")
    options, flags = parser.parse_known_args(arguments)
    ways = {"asynchronous": run_asynchronously, "lockstep": run_in_lockstep}
    outcomes: Dict[str, List[Outcome]] = {way: [] for way in ways}
    lines: List[Dict[str, Any]] = [{"kind": "machine", **machine.describe()}]
    console = Console(width=140 if not sys.stdout.isatty() else None)
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        for seed in range(1, options.seeds + 1):
            for way, run in ways.items():
                outcome = read_outcome(run(options.file, Path(folder), seed, flags, options.threads), options.bar)
                console.print(f"seed {seed}, {way}: {outcome}", markup=False)
                outcomes[way].append(outcome)
                lines.append({"kind": "run", "way": way, "seed": seed, **asdict(outcome)})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    head, rows = summary(outcomes, options.bar)
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"written: {options.out}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
