"""`make soak`: full speed with small rings, and whether memory, descriptors, threads and latencies stay what they are.

Two parts, each with processes of its own:

1. A replay with a ring on disk, a writer and a sampler at full speed. In the end its latencies are compared with those
   of a replay that has just begun, in windows that alternate: what neighbours on the machine do meets both alike.
2. A whole run (replay, learner, one actor, evaluator) with a ring that is overwritten again and again.

The exit code is 1 if anything grew, or if the ring was overwritten less than --wraps times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, List

import numpy as np

from bench.replay.shoal_server import ShoalServer
from bench.replay.workload import Workload
from tests.e2e.launcher import Launcher
from tests.soak.readings import Series
from tests.soak.traffic import Traffic, Window, quantile, run_at_full_speed

ROOT = Path(__file__).resolve().parents[2]
CAPACITY = 4096  # rows of the replay alone
RUN_CAPACITY = 640  # of the whole run
P50_BOUND, P99_BOUND = 1.10, 1.5  # of a replay that ran for long, over one that has just begun
READINGS = 60  # of each process
START_S = 120.0


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of full speed, both parts together")
    parser.add_argument("--hours", type=float, default=0.0, help="the same in hours")
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--wraps", type=int, default=50, help="how often the ring must have been overwritten")
    parser.add_argument("--only", choices=("replay", "run"), help="one part alone")
    options = parser.parse_args(arguments)
    seconds = 40.0 if options.quick else 3600 * options.hours or 60 * options.minutes
    faults: List[str] = []
    with tempfile.TemporaryDirectory(prefix="shoal-soak-") as folder:
        if options.only != "run":
            faults += soak_replay(Path(folder), seconds / 2, options.wraps)
        if options.only != "replay":
            faults += soak_run(Path(folder), seconds / 2, options.wraps)
    print("\n".join(faults) if faults else "nothing grew")
    return 1 if faults else 0


def soak_replay(folder: Path, seconds: float, wraps: int) -> List[str]:
    """The replay alone; returns what is wrong with it."""
    load = Workload("soak", (16,), "float32", CAPACITY, 1024)
    old = ShoalServer(load, flags=("--replay.data_dir", str(folder / "old")))
    traffic = Traffic(old.address, "old")
    try:
        traffic.fill(CAPACITY)
        over = threading.Event()
        threads = run_at_full_speed(traffic, over)
        series = {"replay": Series()}
        _read_until(series, {"replay": old.pid}, seconds, over)
        over.set()
        for thread in threads:
            thread.join(60)
        info = traffic.info()
        steps = info.steps
        wrapped = (steps.overwritten + steps.resident) / CAPACITY
        print(f"the replay alone, {seconds:.0f} s: the ring of {CAPACITY} rows was written {wrapped:.0f} times")
        faults = _judge(series)
        if wrapped < wraps:
            faults.append(f"the ring was written {wrapped:.0f} times, and not {wraps}")
        return faults + _compare(folder, load, traffic, max(0.5, seconds / 60))
    finally:
        traffic.close()
        old.stop()


def _compare(folder: Path, load: Workload, old: Traffic, window_s: float) -> List[str]:
    """Alternate windows of the old replay and of a fresh one."""
    server = ShoalServer(load, flags=("--replay.data_dir", str(folder / "fresh")))
    fresh = Traffic(server.address, "fresh")
    windows: Dict[str, List[Window]] = {"old": [], "fresh": []}
    try:
        fresh.fill(CAPACITY)
        Window().run(fresh, window_s)
        Window().run(old, window_s)
        for number in range(12):
            order = [("old", old), ("fresh", fresh)]
            for name, traffic in order if number % 2 else order[::-1]:
                window = Window()
                window.run(traffic, window_s)
                windows[name].append(window)
    finally:
        fresh.close()
        server.stop()
    faults = []
    print(f"{'':<8}{'p50 fresh':>12}{'p50 old':>12}{'ratio':>8}{'p99 fresh':>12}{'p99 old':>12}{'ratio':>8}   (ms)")
    for name in ("insert", "sample"):
        line = f"{name:<8}"
        for share, bound in ((0.5, P50_BOUND), (0.99, P99_BOUND)):
            before, after = (1e3 * quantile(windows[which], name, share) for which in ("fresh", "old"))
            line += f"{before:12.2f}{after:12.2f}{after / before:8.2f}"
            noise = noise_of(windows, name, share)
            if noise > bound:
                line += f"  (not judged: alike windows differ by {noise:.2f})"
            elif after / before > bound:
                faults.append(
                    f"{name} p{100 * share:.0f} of the old replay is {after / before:.2f} times a fresh one's"
                )
        print(line)
    return faults


def noise_of(windows: Dict[str, List[Window]], name: str, share: float) -> float:
    """By which factor a quantile differs between every other window of the same replay: what the machine does to it."""
    factors = []
    for its in windows.values():
        one, other = quantile(its[::2], name, share), quantile(its[1::2], name, share)
        factors.append(max(one / other, other / one))
    return max(factors)


def soak_run(folder: Path, seconds: float, wraps: int) -> List[str]:
    """A whole run; returns what is wrong with it."""
    flags = {
        "run.folder": str(folder / "runs"),
        "run.name": "soak",
        "replay.capacity": str(RUN_CAPACITY),
        "replay.samples_per_insert": "0.0",
        "replay.min_size_to_sample": "256",
        "replay.addresses": '["127.0.0.1:0"]',
        "learner.address": "127.0.0.1:0",
        "learner.max_updates": "1000000000",
        "learner.checkpoint_period_s": "2",
        "learner.metrics_port": "0",
        "replay.metrics_port": "0",
        "evaluator.metrics_port": "0",
        "evaluator.episodes": "4",
        "evaluator.nice": "0",
        "actor.count": "1",
        "report.video": "false",
    }
    arguments = [
        str(ROOT / "configs" / "arm_reach.toml"),
        *(word for key in flags for word in (f"--{key}", flags[key])),
    ]
    launcher = Launcher(arguments, folder / "up.log")
    try:
        deadline_s = time.monotonic() + START_S
        while "updates" not in launcher.output() or len(launcher.children()) < 4:
            if time.monotonic() > deadline_s or launcher.process.poll() is not None:
                return [f"the run did not start:\n{launcher.output()[-3000:]}"]
            time.sleep(0.5)
        time.sleep(min(20.0, seconds / 2))
        pids = launcher.children()
        series = {name: Series() for name in pids}
        _read_until(series, pids, seconds, threading.Event())
        guards = next((folder / "runs").rglob("guards"))
        wrapped = int(np.fromfile(guards, np.int64)[0]) / RUN_CAPACITY
        print(f"a whole run, {seconds:.0f} s: the ring of {RUN_CAPACITY} rows was written {wrapped:.0f} times")
        faults = _judge(series)
        if wrapped < wraps:
            faults.append(f"the run's ring was written {wrapped:.0f} times, and not {wraps}")
        if launcher.children() != pids:
            faults.append(f"a process was started again:\n{launcher.output()[-3000:]}")
        return faults
    finally:
        launcher.stop()


def _read_until(series: Dict[str, Series], pids: Dict[str, int], seconds: float, over: threading.Event) -> None:
    for _ in range(READINGS):
        for name, pid in pids.items():
            series[name].read(pid)
        over.wait(seconds / READINGS)


def _judge(series: Dict[str, Series]) -> List[str]:
    print(f"{'MiB, and growth':<12}{'resident':>16}  {'proportional':>14}  {'heap':>14}  descriptors  threads")
    faults = []
    for name, its in sorted(series.items()):
        print(f"{name:<12}  {its.row()}")
        faults += [f"{name}: {fault}" for fault in its.faults()]
    return faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
