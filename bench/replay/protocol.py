"""The line protocol between the benchmark and a case: a JSON object a line asks for one call, one answers it."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Mapping, Protocol

from bench.replay.workload import Workload, workload


@dataclass(frozen=True)
class Timing:
    """One timed round."""

    count: int  # steps inserted, or batches drawn and given priorities
    seconds: float  # by time.perf_counter, as in every case


def time_round(operation: Callable[[], None], count: int, warm_up: int = 3) -> Timing:
    """Time an operation that is done `count` times: drawing a batch and giving it priorities, say.

    Args:
        operation: does it once.
        count: how often.
        warm_up: times before that: more than what is fetched ahead, which is from between the rounds.
    """
    for _ in range(warm_up):
        operation()
    began = time.perf_counter()
    for _ in range(count):
        operation()
    return Timing(count, time.perf_counter() - began)


def time_inserts(insert: Callable[[], None], batch: int, count: int) -> Timing:
    """Time inserts of `batch` steps each, of at least `count` steps together."""
    timing = time_round(insert, -(-count // batch))
    return Timing(timing.count * batch, timing.seconds)


class Case(Protocol):
    """One system under test, in a process of its own. Each method is a call of the line protocol."""

    def open(self, load: Workload) -> Dict[str, Any]:
        """Start what has to be started and fill the table; returns facts to print."""

    def insert(self, batch: int, count: int, variant: str) -> Timing:
        """Insert at least `count` steps in batches of `batch`."""

    def sample(self, batch: int, count: int, variant: str) -> Timing:
        """Draw `count` batches of `batch` items and give new priorities to each."""

    def close(self) -> None:
        """End what was started."""


def serve(case: Case) -> int:
    """Serve the calls of a case, then close it."""
    try:
        return serve_calls(
            {
                "open": lambda workload_name, capacity: case.open(workload(workload_name, capacity)),
                "insert": lambda **arguments: asdict(case.insert(**arguments)),
                "sample": lambda **arguments: asdict(case.sample(**arguments)),
            }
        )
    finally:
        case.close()


def serve_calls(calls: Mapping[str, Callable[..., Any]]) -> int:
    """Answer the benchmark's lines on stdin until it closes; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": calls[request.pop("call")](**request)}
        except Exception as error:  # noqa: BLE001 (the edge of the process: the benchmark prints it)
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0
