"""Actors beside a sampler: insert at a steady pace while told `go`, rest while told `rest`, end when stdin closes."""

from __future__ import annotations

import argparse
import sys
import threading
import time

from bench.replay.experience import schema_of
from bench.replay.shoal_case import Inserter
from bench.replay.workload import workload
from services.common.lifecycle import Lifecycle


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--name", default="writer")
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--chunk-steps", type=int, default=1000)
    parser.add_argument("--chunks-per-s", type=float, default=20.0)
    flags = parser.parse_args()
    lifecycle, going = Lifecycle(), threading.Event()
    load = workload("small")

    def write(number: int) -> None:
        name = f"{flags.name}-{number}"
        inserter = Inserter(load, schema_of(load), flags.address, flags.chunk_steps, lifecycle, name)
        inserter.send(1)
        period_s = 1.0 / flags.chunks_per_s
        due = time.monotonic() + period_s * number / flags.writers  # they do not all send at once
        while not lifecycle.stopping.wait(max(0.0, due - time.monotonic())):
            if going.is_set():
                inserter.send(1)
            due = max(due + period_s, time.monotonic() - period_s)
        inserter.close()

    for number in range(flags.writers):
        lifecycle.spawn(f"writer-{number}", lambda number=number: write(number))  # type: ignore[misc]
    for line in sys.stdin:
        if line.strip() == "go":
            going.set()
        else:
            going.clear()
    lifecycle.stop("the benchmark is over")
    lifecycle.join()


if __name__ == "__main__":
    main()
