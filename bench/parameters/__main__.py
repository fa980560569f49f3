"""`make bench-parameters`: from the publishing of a version to the swap at the actors, and what it costs the chief."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Dict, List, Optional, Sequence

from rich.console import Console

from bench.parameters.report import BEGIN, END, Measured, tables, to_markdown
from bench.replay import machine
from bench.replay.case_process import CaseProcess
from bench.replay.cases import CaseSpec

CALL_TIMEOUT_S = 120.0
CLIENTS_A_PROCESS = 16
WARM_UP = 3  # publishes before anything is measured: memory of the allocator, connections


def measure(num_readers: int, wire_dtype: str, *, publishes: int, idle_s: float, log: IO[bytes]) -> Measured:
    """One chief and `num_readers` readers."""
    with ExitStack() as stack:
        chief = _start(stack, "chief_case", log)
        facts = chief.call("open", CALL_TIMEOUT_S, wire_dtype=wire_dtype, num_actors=num_readers)
        processes = []
        for first in range(0, num_readers, CLIENTS_A_PROCESS):
            process = _start(stack, "readers_case", log)
            count = min(CLIENTS_A_PROCESS, num_readers - first)
            process.call("open", CALL_TIMEOUT_S, address=facts["address"], first=first, count=count)
            processes.append(process)
        for _ in range(WARM_UP):
            warm, _waited = _publish(chief, processes)
        before = chief.call("stats", CALL_TIMEOUT_S)
        latencies: List[float] = []
        publish_s: List[float] = []
        for _ in range(publishes):
            published, waited = _publish(chief, processes)
            latencies += waited
            publish_s.append(published["seconds"])
        after = chief.call("stats", CALL_TIMEOUT_S)
        idle = _idle(chief, processes, published["version"], idle_s)
    return Measured(
        num_readers=num_readers,
        wire_dtype=wire_dtype,
        parameters=facts["parameters"],
        latencies_s=latencies,
        publish_s=publish_s,
        readers_cpu_s=published["readers_cpu_s"] - warm["readers_cpu_s"],
        before=before,
        after=after,
        idle=idle,
    )


def _start(stack: ExitStack, module: str, log: IO[bytes]) -> CaseProcess:
    process = CaseProcess(CaseSpec(module, module, Path(sys.executable), f"bench.parameters.{module}"), log)
    stack.callback(process.close)
    return process


def _publish(chief: CaseProcess, processes: Sequence[CaseProcess]) -> Any:
    """Publish, hint all readers at once (the worst that Insert's answers can do), wait for every swap."""
    published = chief.call("publish", CALL_TIMEOUT_S)
    for process in processes:
        process.call("hint", CALL_TIMEOUT_S, version=published["version"])
    waited: List[float] = []
    published["readers_cpu_s"] = 0.0
    for process in processes:
        answer = process.call("wait", CALL_TIMEOUT_S, version=published["version"], within_s=CALL_TIMEOUT_S / 2)
        waited += [at_s - published["at_s"] for at_s in answer["at_s"]]
        published["readers_cpu_s"] += answer["cpu_s"]
    return published, waited


def _idle(chief: CaseProcess, processes: Sequence[CaseProcess], version: int, seconds: float) -> Dict[str, float]:
    """Nothing is published, and the readers keep hearing the same version."""
    began = chief.call("stats", CALL_TIMEOUT_S)
    while True:
        for process in processes:
            process.call("hint", CALL_TIMEOUT_S, version=version)
        ended = chief.call("stats", CALL_TIMEOUT_S)
        passed_s = ended["at_s"] - began["at_s"]
        if passed_s >= seconds:
            break
        time.sleep(min(0.5, seconds - passed_s))
    return {
        "cpu_share": (ended["cpu_s"] - began["cpu_s"]) / passed_s,
        "questions_per_s": (ended["questions"] - began["questions"]) / passed_s,
    }


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.parameters", description=__doc__)
    parser.add_argument("--readers", default="1,16,128", help="numbers of readers, with commas between")
    parser.add_argument("--wire-dtypes", default="float32,float16", help="of the set, with commas between")
    parser.add_argument("--publishes", type=int, default=30, help="that are timed, for each number of readers")
    parser.add_argument("--idle-s", type=float, default=20.0, help="without a publish, for the cost of polls")
    parser.add_argument("--quick", action="store_true", help="a third of it")
    parser.add_argument("--out", type=Path, default=Path(".cache/bench/parameters.jsonl"))
    parser.add_argument("--docs", type=Path, help="page whose generated section is replaced")
    options = parser.parse_args(arguments)
    publishes, idle_s = (10, 8.0) if options.quick else (options.publishes, options.idle_s)
    facts = machine.describe()
    console = Console()
    found: List[Measured] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with (options.out.parent / "parameters.log").open("wb") as log:
        for wire_dtype in options.wire_dtypes.split(","):
            for num_readers in (int(number) for number in options.readers.split(",")):
                console.print(f"{wire_dtype}, {num_readers} readers …")
                found.append(measure(num_readers, wire_dtype, publishes=publishes, idle_s=idle_s, log=log))
    for table in tables(found):
        console.print(table)
    lines = [{"kind": "machine", **facts}, *({"kind": "case", **one.summary()} for one in found)]
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if options.docs is not None:
        text = options.docs.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        section = to_markdown(facts, found, statistics.mean(len(one.publish_s) for one in found))
        options.docs.write_text(f"{before}{BEGIN}\n{section}{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
