"""One actor of the Isaac class into one replay: steps a second over a minute, drops, memory."""

from __future__ import annotations

import statistics
import time
from typing import Any, Dict, List

from bench.actor.run import Run
from bench.replay.memory import resident_bytes

CAPACITY = 300_000  # rows; the ring is lapped before the measurement, so that its pages do not count as growth


def measure(
    lanes: int, seconds: float, chunk_steps: int, width: int, warm_up_steps: int, **flags: Any
) -> Dict[str, Any]:
    """Run the actor for `seconds` and look at it ten times.

    Args:
        lanes: of the actor.
        seconds: measured.
        chunk_steps: of each lane in a chunk.
        width: of the policy's two hidden layers.
        warm_up_steps: of all lanes before that; the replay's heap takes some millions to reach its size.
        flags: further keys of the run file.

    Returns:
        steps_per_s: over the whole time; slowest and median tenth beside it.
        dropped: steps, by reason.
        memory: resident bytes of the two processes' heaps at the beginning and the end.
    """
    with Run(capacity=CAPACITY, width=width, action_size=9) as run:
        actor = run.actor(
            "actor-0",
            env__factory="bench.actor.simulators:make",
            env__lanes=lanes,
            actor__chunk_steps=chunk_steps,
            actor__index=0,
            actor__count=1,
            **flags,
        )
        try:
            run.wait_for_steps(warm_up_steps)
            before, cpu = _heaps(run, actor), actor.cpu_s()
            began, first = time.perf_counter(), run.acknowledged()
            tenths: List[float] = [run.rate(seconds / 10) for _ in range(10)]
            spent, last = time.perf_counter() - began, run.acknowledged()
            after, cpu = _heaps(run, actor), actor.cpu_s() - cpu
            (known,) = run.info().actors
            return {
                "steps_per_s": (last - first) / spent,
                "slowest_tenth": min(tenths),
                "median_tenth": statistics.median(tenths),
                "dropped": dict(known.counters.dropped_steps),
                "buffered": known.counters.buffered_steps,
                "heap_before": before,
                "heap_after": after,
                "actor_cpu_share": cpu / spent,
                "steps_per_cpu_s": (last - first) / cpu,
            }
        finally:
            actor.stop()


def _heaps(run: Run, actor: Any) -> Dict[str, int]:
    return {
        "actor": resident_bytes(actor.pid)["heap"],
        "replay": resident_bytes(run.replay.pid)["heap"],
    }
