"""`make load`: one replay against 64 and 256 light actors: shares, latencies, the sampler's draws, memory, a refusal.

Twice each: with room for all of them, and with a rate limiter that holds inserts back, where only fair turns are fair.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List

import numpy as np
import numpy.typing as npt

from bench.replay.shoal_server import ShoalServer
from bench.replay.workload import Workload
from services.common.rpc import Refused, Unavailable
from tests.arguments import positive, positive_count
from tests.soak.draws import Draws
from tests.soak.readings import MIB, Series
from tests.soak.traffic import Traffic

CLIENTS_A_PROCESS = 64
CAPACITY = 100_000
MIN_SHARE = 0.5  # of the mean, that the actor with the fewest inserts has
MIN_JAIN = 0.92  # of all actors' inserts: two halves of which one gets 1.8 times what the other does
MAX_GROWTH_BYTES = 160 * MIB  # with 256 actors: threads, connections, and the ring's own pages
HEADER = (
    f"{'actors':>6} {'limiter':>8} {'inserts/s':>10} {'share min..max':>15} {'Jain':>6} {'insert p50':>11} {'p99':>8} "
    f"{'draws/s':>8} {'draw p50':>9} {'p99':>8} {'longest gap':>12} {'lost':>4} {'MiB +':>6} {'threads':>8} {'fds':>5}"
)


@dataclass(frozen=True)
class Outcome:
    """What one load came to."""

    row: str
    faults: List[str]


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="make load", description=__doc__)
    parser.add_argument("--seconds", type=positive, default=20.0, help="of each load")
    parser.add_argument("--actors", type=positive_count, nargs="+", default=[64, 256])
    parser.add_argument("--period", type=positive, default=1.0, help="seconds between two chunks of an actor, at least")
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
    series, draws = Series(), Draws(traffic.try_sample, pause_s=0.15 if limited else 0.01)
    series.read(server.pid)
    processes = [
        _start(server.address, first, min(CLIENTS_A_PROCESS, count - first), seconds, period_s)
        for first in range(0, count, CLIENTS_A_PROCESS)
    ]
    draws.start()
    try:
        _watch(processes, server.pid, series, draws, lambda: len(traffic.info().actors) > count)
        results: List[Dict[str, Any]] = [one for process in processes for one in json.loads(process.communicate()[0])]
        refusal = _one_too_many(server.address)
    finally:
        draws.stop()
        for process in processes:
            process.kill()
            process.wait()
        traffic.close()
    return _outcome(results, draws, series, refusal, seconds, limited=limited)


def _watch(
    processes: List[subprocess.Popen[str]], pid: int, series: Series, draws: Draws, are_there: Callable[[], bool]
) -> None:
    """Read the replay's memory until the actors are done; gaps count while all of them are there and at work.

    Before that, and once some have gone, the limiter may well have nothing to give.
    """
    while any(process.poll() is None for process in processes):
        series.read(pid)
        are_running = all(process.poll() is None for process in processes)
        if draws.is_counting and not are_running:
            draws.end()
        elif are_running and not draws.is_counting:
            with contextlib.suppress(Unavailable):
                if are_there():
                    draws.begin()
        time.sleep(0.5)
    draws.end()


def _one_too_many(address: str) -> str:
    """What an actor beyond replay.max_peers is told; empty if it is let in."""
    traffic = Traffic(address, "one-too-many")
    try:
        traffic.insert()
    except Refused as error:
        return str(error)
    finally:
        traffic.close()
    return ""


def _outcome(
    results: List[Dict[str, Any]], draws: Draws, series: Series, refusal: str, seconds: float, *, limited: bool
) -> Outcome:
    inserted = np.array([result["inserted"] for result in results], np.float64)
    latency = np.concatenate([result["latency_s"] for result in results]) * 1e3
    drawn = np.array(draws.took_s) * 1e3
    growth = max(series.heap_bytes) - series.heap_bytes[0]
    share = inserted / max(1.0, inserted.mean())
    row = (
        f"{len(results):6} {'on' if limited else 'off':>8} {inserted.sum() / seconds:10.0f} "
        f"{share.min():6.2f}..{share.max():<7.2f} {jain_index(inserted):6.3f} {_median(latency):8.1f} ms "
        f"{_p99(latency):5.0f} ms {len(drawn) / seconds:8.1f} {_median(drawn):6.1f} ms {_p99(drawn):5.0f} ms "
        f"{draws.longest_gap_s:10.2f} s {draws.unavailable:4} {growth / MIB:6.1f} {max(series.threads):8} "
        f"{max(series.descriptors):5}"
    )
    faults = [f"{one['name']} was refused: {one['refused']}" for one in results if one["refused"]][:3]
    faults += [*unfair(inserted), *draws.faults()]
    if growth > MAX_GROWTH_BYTES:
        faults.append(f"the heap grew by {growth / MIB:.0f} MiB")
    if "replay.max_peers" not in refusal:
        faults.append(f"one actor too many was not refused, but {refusal or 'let in'}")
    what = f"{len(results)} actors, limiter {'on' if limited else 'off'}"
    return Outcome(row, [f"{what}: {fault}" for fault in faults])


def jain_index(inserted: npt.NDArray[np.float64]) -> float:
    """(sum x)^2 / (n sum x^2): 1 where all have the same, 1/n where one has everything, 0 where nobody has anything."""
    return float(inserted.sum() ** 2 / (len(inserted) * (inserted**2).sum())) if inserted.any() else 0.0


def unfair(inserted: npt.NDArray[np.float64]) -> List[str]:
    """What is wrong with the actors' shares, <float64>[actors], chunks that were inserted."""
    found = []
    least = float(inserted.min() / max(1.0, inserted.mean()))
    if least < MIN_SHARE:
        found.append(f"an actor had {least:.2f} of the mean share of inserts, and must have {MIN_SHARE}")
    if jain_index(inserted) < MIN_JAIN:
        found.append(f"shares differ: Jain's index is {jain_index(inserted):.3f}, and must be {MIN_JAIN}")
    return found


def _start(address: str, first: int, count: int, seconds: float, period_s: float) -> subprocess.Popen[str]:
    arguments = [str(word) for word in (address, first, count, seconds, period_s)]
    command = [sys.executable, "-m", "tests.soak.load_clients", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _median(values: npt.NDArray[np.float64]) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def _p99(values: npt.NDArray[np.float64]) -> float:
    return float(np.quantile(values, 0.99)) if len(values) else float("nan")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
