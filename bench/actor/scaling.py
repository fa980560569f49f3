"""More and more actors of a light environment on one replay: steps a second, drops, acknowledgements."""

from __future__ import annotations

import time
import urllib.request
from typing import Any, Dict, List, Mapping

from bench.actor.run import Process, Run

SETTLE_S = 1.0
PACE_S = 0.02  # of a step: the light environment waits as a simulator of 50 Hz does, so that cores are shared fairly


def measure(counts: List[int], seconds: float, lanes: int) -> List[Dict[str, Any]]:
    """A row for each number of actors; they stay, and others join them."""
    rows: List[Dict[str, Any]] = []
    actors: Dict[str, Process] = {}
    with Run(capacity=500_000, width=64) as run:
        try:
            for count in counts:
                for index in range(len(actors), count):
                    actors[f"actor-{index}"] = run.actor(
                        f"actor-{index}",
                        env__factory="bench.actor.simulators:make",
                        env__kwargs=f"{{wait_s = {PACE_S}}}",
                        env__lanes=lanes,
                        actor__index=index,
                        actor__count=max(counts),
                    )
                for name in actors:
                    run.wait_for_steps(0, name)
                time.sleep(SETTLE_S)
                rows.append({"actors": count, **_look(run, actors, seconds)})
        finally:
            for actor in actors.values():
                actor.stop()
    return rows


def _look(run: Run, actors: Mapping[str, Process], seconds: float) -> Dict[str, Any]:
    ports = [actor.wait_for_word("metrics_port") for actor in actors.values()]
    before, cpu_s = _buckets(ports), run.replay.cpu_s()
    began = time.perf_counter()
    rate = run.rate(seconds)
    after, cpu_s = _buckets(ports), run.replay.cpu_s() - cpu_s
    spent = time.perf_counter() - began
    return {
        "steps_per_s": rate,
        "dropped": sum(sum(known.counters.dropped_steps.values()) for known in run.info().actors),
        "acknowledged_p99_ms": 1e3 * quantile({bound: after[bound] - before[bound] for bound in after}, 0.99),
        "replay_cpu_share": cpu_s / spent,
    }


def quantile(cumulative: Mapping[float, float], share: float) -> float:
    """The upper bound of the bucket that holds the quantile of a histogram: bound -> how many are at most that."""
    bounds = sorted(cumulative)
    total = cumulative[bounds[-1]]
    return next(bound for bound in bounds if cumulative[bound] >= share * total)


def _buckets(ports: List[str]) -> Dict[float, float]:
    """Acknowledgements by upper bound, of all actors together."""
    found: Dict[float, float] = {}
    for port in ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("shoal_actor_acknowledgement_seconds_bucket"):
                    bound = float(line.split('le="')[1].split('"')[0])
                    found[bound] = found.get(bound, 0.0) + float(line.rpartition(" ")[2])
    return found
