"""`make load`: one replay against 64 and 256 light actors: shares, latencies, the sampler's draws, memory, a refusal.

Twice each: with room for all of them, and with a rate limiter that holds inserts back, where only fair turns are fair.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any, Dict, List

import numpy as np

from bench.replay.shoal_server import ShoalServer
from bench.replay.workload import Workload
from services.common.rpc import Refused
from tests.soak.readings import MIB, Series
from tests.soak.traffic import Traffic

CLIENTS_A_PROCESS = 64
CAPACITY = 100_000
MAX_GAP_S = 5.0  # between two draws of the sampler
MIN_SHARE = 0.5  # of the mean, that the actor with the fewest inserts has
MAX_GROWTH_BYTES = 160 * MIB  # with 256 actors: threads, connections, and the ring's own pages
HEADER = (
    f"{'actors':>6} {'limiter':>8} {'inserts/s':>10} {'share min..max':>15} {'Jain':>6} {'insert p50':>11} {'p99':>8} "
    f"{'draws/s':>8} {'draw p50':>9} {'p99':>8} {'longest gap':>12} {'MiB +':>6} {'threads':>8} {'fds':>5}"
)


@dataclass(frozen=True)
class Outcome:
    """What one load came to."""

    row: str
    faults: List[str]


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="make load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--actors", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two chunks of an actor, at least")
    options = parser.parse_args(arguments)
    print(HEADER)
    faults: List[str] = []
    for count in options.actors:
        for limited in (False, True):
            outcome = run(count, options.seconds, options.period, limited=limited)
            print(outcome.row, flush=True)
            faults += outcome.faults
    print("\n".join(faults) if faults else "fair, bounded, nobody starves, and one actor too many is told so")
    return 1 if faults else 0


def run(count: int, seconds: float, period_s: float, *, limited: bool) -> Outcome:
    """Load a fresh replay with `count` actors and a sampler."""
    load = Workload("load", (16,), "float32", CAPACITY, 1024)
    flags = ["--replay.max_peers", str(count + 1), "--replay.min_size_to_sample", "128"]
    flags += ["--replay.samples_per_insert", "2" if limited else "0"]
    flags += ["--actor.chunk_steps", "16", "--learner.batch_size", "64"]
    with tempfile.TemporaryDirectory(prefix="shoal-load-"):
        server = ShoalServer(load, flags=flags)
        try:
            return _load(server, count, seconds, period_s, limited=limited)
        finally:
            server.stop()


def _load(server: ShoalServer, count: int, seconds: float, period_s: float, *, limited: bool) -> Outcome:
    traffic = Traffic(server.address, "load")
    traffic.insert()
    traffic.insert()
    series, draws = Series(), Draws(traffic, pause_s=0.15 if limited else 0.01)
    series.read(server.pid)
    processes = [
        _start(server.address, first, min(CLIENTS_A_PROCESS, count - first), seconds, period_s)
        for first in range(0, count, CLIENTS_A_PROCESS)
    ]
    draws.start()
    while any(process.poll() is None for process in processes):
        series.read(server.pid)
        # Before all are there, and once some have gone, the limiter may well have nothing to give.
        are_running = all(process.poll() is None for process in processes)
        draws.counts_gaps = are_running and (draws.counts_gaps or len(traffic.info().actors) > count)
        time.sleep(0.5)
    draws.stop()
    results: List[Dict[str, Any]] = [one for process in processes for one in json.loads(process.communicate()[0])]
    refusal = ""
    try:
        Traffic(server.address, "one-too-many").insert()
    except Refused as error:
        refusal = str(error)
    traffic.close()
    return _outcome(results, draws, series, refusal, seconds, limited=limited)


def _outcome(
    results: List[Dict[str, Any]], draws: Draws, series: Series, refusal: str, seconds: float, *, limited: bool
) -> Outcome:
    inserted = np.array([result["inserted"] for result in results], np.float64)
    latency = np.concatenate([result["latency_s"] for result in results]) * 1e3
    drawn = np.array(draws.took_s) * 1e3
    growth = max(series.heap_bytes) - series.heap_bytes[0]
    jain = inserted.sum() ** 2 / (len(inserted) * (inserted**2).sum()) if inserted.any() else 0.0
    share = inserted / max(1.0, inserted.mean())
    row = (
        f"{len(results):6} {'on' if limited else 'off':>8} {inserted.sum() / seconds:10.0f} "
        f"{share.min():6.2f}..{share.max():<7.2f} {jain:6.3f} {np.median(latency):8.1f} ms {_p99(latency):5.0f} ms "
        f"{len(drawn) / seconds:8.1f} {np.median(drawn):6.1f} ms {_p99(drawn):5.0f} ms {draws.longest_gap_s:10.2f} s "
        f"{growth / MIB:6.1f} {max(series.threads):8} {max(series.descriptors):5}"
    )
    what = f"{len(results)} actors, limiter {'on' if limited else 'off'}"
    faults = [f"{what}: {one['name']} was refused: {one['refused']}" for one in results if one["refused"]][:3]
    if share.min() < MIN_SHARE:
        faults.append(f"{what}: an actor had {share.min():.2f} of the mean share of inserts")
    if draws.longest_gap_s > MAX_GAP_S:
        faults.append(f"{what}: the sampler got nothing for {draws.longest_gap_s:.1f} s")
    if growth > MAX_GROWTH_BYTES:
        faults.append(f"{what}: the heap grew by {growth / MIB:.0f} MiB")
    if "replay.max_peers" not in refusal:
        faults.append(f"{what}: one actor too many was not refused, but {refusal or 'let in'}")
    return Outcome(row, faults)


class Draws(threading.Thread):
    """Samples until it is stopped, and notes what each draw took."""

    def __init__(self, traffic: Traffic, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._traffic, self._pause_s = traffic, pause_s
        self._over = threading.Event()
        self.took_s: List[float] = []
        self.longest_gap_s = 0.0
        self.counts_gaps = False

    def run(self) -> None:
        last_s = time.monotonic()
        while not self._over.wait(self._pause_s):
            took_s = self._traffic.try_sample(1.0)
            if took_s is None:
                last_s = last_s if self.counts_gaps else time.monotonic()
                continue  # the gap grows
            self.took_s.append(took_s)
            now_s = time.monotonic()
            if self.counts_gaps:
                self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
            last_s = now_s

    def stop(self) -> None:
        self._over.set()
        self.join(30)


def _start(address: str, first: int, count: int, seconds: float, period_s: float) -> subprocess.Popen[str]:
    arguments = [str(word) for word in (address, first, count, seconds, period_s)]
    command = [sys.executable, "-m", "tests.soak.load_clients", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _p99(values: np.ndarray) -> float:
    return float(np.quantile(values, 0.99)) if len(values) else float("nan")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
