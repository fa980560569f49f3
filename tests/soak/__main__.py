"""`make soak`: full speed with small rings, and whether memory, descriptors, threads and latencies stay what they are.

Three parts of the same length, each with processes of its own:

1. A replay with a ring on disk, a writer and a sampler at full speed, whose keys, counters, sequences and versions
   begin shortly before 2^32 and pass it.
2. The same at 2^53. In the end its latencies are compared with those of a replay that has just begun, in windows that
   alternate: what neighbours on the machine do meets both alike.
3. A whole run (replay, learner, one actor, evaluator) with a ring that is overwritten again and again.

The exit code is 1 if anything grew or was counted wrongly, if the ring was overwritten less than --wraps times, or,
without --quick, if the machine was too noisy for the latencies to be judged.
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
from tests.arguments import positive, positive_count
from tests.e2e.launcher import Launcher
from tests.soak.aged import BOUNDS, Age, age_before, faults_of, make_ring
from tests.soak.latencies import Verdict, Windows, is_settled, judge, measure
from tests.soak.readings import Series
from tests.soak.traffic import FullSpeed, Traffic

ROOT = Path(__file__).resolve().parents[2]
CAPACITY = 4096  # rows of the replay alone
RUN_CAPACITY = 640  # of the whole run
READINGS = 60  # of each process
ROUNDS, MAX_ROUNDS = 12, 36  # of windows: more while it is not clear that nothing is wrong
START_S = 120.0
PARTS = (*BOUNDS, "run")
LOAD = Workload("soak", (16,), "float32", CAPACITY, 1024)


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=positive, default=10.0, help="of full speed, all parts together")
    parser.add_argument("--hours", type=positive, default=0.0, help="the same in hours")
    parser.add_argument("--quick", action="store_true", help="about a minute and a half")
    parser.add_argument(
        "--wraps", type=positive_count, default=50, help="how often the ring must have been overwritten"
    )
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    options = parser.parse_args(arguments)
    seconds = 60.0 if options.quick else 3600 * options.hours or 60 * options.minutes
    whole = Verdict()
    for part in PARTS:
        if options.only not in (None, part):
            continue
        verdict = _soak(part, seconds / len(PARTS), options.wraps)
        whole.faults += verdict.faults
        whole.not_tested += verdict.not_tested
    return conclude(whole, is_quick=options.quick)


def _soak(part: str, seconds: float, wraps: int) -> Verdict:
    """One part; what ends it early is a fault, and the others go on."""
    with tempfile.TemporaryDirectory(prefix="shoal-soak-") as folder:
        try:
            if part == "run":
                return Verdict(faults=soak_run(Path(folder), seconds, wraps))
            return soak_replay(Path(folder), seconds, wraps, age_before(part, CAPACITY))
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
            return Verdict(faults=[f"the part {part} ended with {type(error).__name__}: {error}"])


def conclude(verdict: Verdict, *, is_quick: bool) -> int:
    """Print what it comes to, what could not be tested in the last line; returns the exit code."""
    print("\n".join(verdict.faults) if verdict.faults else "nothing grew, and every counter is right")
    if verdict.not_tested:
        print("NOT TESTED: " + "; ".join(verdict.not_tested))
    return 1 if verdict.faults or (verdict.not_tested and not is_quick) else 0


def soak_replay(folder: Path, seconds: float, wraps: int, age: Age) -> Verdict:
    """The replay alone, from a little before a bound of numbers."""
    make_ring(folder / "old", CAPACITY, age)
    old = ShoalServer(LOAD, flags=("--replay.data_dir", str(folder / "old")))
    traffic = Traffic(old.address, "old", age.first)
    try:
        faults = _at_full_speed(traffic, old.pid, seconds, wraps, f"the replay near {age.name}")
        if faults:
            return Verdict(faults=faults)
        faults = faults_of(age, traffic)
        verdict = Verdict()
        for fresh in ("fresh", "fresher") if age.name == list(BOUNDS)[-1] else ():
            verdict = compare(folder / fresh, traffic, max(0.5, seconds / 60))
            print("\n".join(verdict.rows))
            if not verdict.faults:  # some processes are faster for life than others alike: two must be so
                break
        return Verdict(faults=faults + verdict.faults, not_tested=verdict.not_tested)
    finally:
        traffic.close()
        old.stop()


def _at_full_speed(traffic: Traffic, pid: int, seconds: float, wraps: int, what: str) -> List[str]:
    traffic.fill(CAPACITY)
    began_s, before = time.monotonic(), traffic.info().steps.acknowledged
    speed = FullSpeed(traffic.insert, traffic.sample)
    series = {"replay": Series()}
    _read_until(series, {"replay": pid}, seconds, speed.over)
    ended_early = speed.over.is_set()
    faults = speed.stop()
    if ended_early:
        return [*faults, f"{what}: full speed ended after {time.monotonic() - began_s:.0f} of {seconds:.0f} s"]
    wrapped = (traffic.info().steps.acknowledged - before) / CAPACITY
    print(f"{what}, {seconds:.0f} s: the ring of {CAPACITY} rows was written {wrapped:.0f} times")
    faults += _judge(series)
    if wrapped < wraps:
        faults.append(f"{what}: the ring was written {wrapped:.0f} times, and not {wraps}")
    return faults


def compare(data_dir: Path, old: Traffic, window_s: float) -> Verdict:
    """Alternate windows of the old replay and of a fresh one, whose ring is to lie in `data_dir`."""
    server = ShoalServer(LOAD, flags=("--replay.data_dir", str(data_dir)))
    fresh = Traffic(server.address, "fresh")
    windows: Windows = {"old": [], "fresh": []}
    try:
        fresh.fill(CAPACITY)
        measure(fresh, window_s)
        measure(old, window_s)
        number = 0
        while number < ROUNDS or (number < MAX_ROUNDS and not is_settled(windows)):
            order = [("old", old), ("fresh", fresh)]
            for name, traffic in order if number % 2 else order[::-1]:
                windows[name].append(measure(traffic, window_s))
            number += 1
    finally:
        fresh.close()
        server.stop()
    return judge(windows)


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
        if over.wait(seconds / READINGS):
            return


def _judge(series: Dict[str, Series]) -> List[str]:
    print(f"{'MiB, and growth':<12}{'resident':>16}  {'proportional':>14}  {'heap':>14}  descriptors  threads")
    faults = []
    for name, its in sorted(series.items()):
        print(f"{name:<12}  {its.row()}")
        faults += [f"{name}: {fault}" for fault in its.faults()]
    return faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
