"""Reverb's server in a process of its own: prints its port, ends when stdin closes."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from bench.replay.workload import PRIORITY_EXPONENT

RING, SCRATCH = "ring", "scratch"  # sampled from; inserted into


def main(ring_size: int, scratch_size: int) -> None:
    reverb: Any = importlib.import_module("reverb")

    def table(name: str, size: int) -> Any:
        return reverb.Table(
            name,
            sampler=reverb.selectors.Prioritized(PRIORITY_EXPONENT),
            remover=reverb.selectors.Fifo(),
            max_size=size,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )

    server = reverb.Server([table(RING, ring_size), table(SCRATCH, scratch_size)], port=None)
    print(f"port {server.port}", flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
