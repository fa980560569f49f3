"""What shoal's replay does under other traffic and with age: latencies beside writers and snapshots, laps, memory."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Dict, List

import numpy as np

from bench.replay.experience import ChunkStream, schema_of
from bench.replay.memory import resident_bytes
from bench.replay.protocol import serve_calls
from bench.replay.shoal_server import RUN_ID, ShoalServer
from bench.replay.workload import Workload, workload
from services.common.codec import encode_chunk, encode_schema
from services.common.peer import Peer
from services.common.rpc import connect
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc

CALL_TIMEOUT_S = 30.0
BATCH = 512
PACED_PER_S = 80.0  # batches that a learner on a CPU takes
CHUNK = 1000


class DirectWriter:
    """One actor whose calls are timed one by one, packing included."""

    def __init__(self, load: Workload, address: str, chunk_steps: int) -> None:
        self._stub = replay_pb2_grpc.ReplayServiceStub(connect(address))
        self._stream = ChunkStream(load, chunk_steps)
        self._schema = schema_of(load)
        self._peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, f"direct-of-{chunk_steps}")

    def insert(self, count: int) -> List[float]:
        """Insert `count` chunks; returns the seconds of each."""
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            request = replay_pb2.InsertRequest(
                peer=self._peer.to_proto(self._schema.digest),
                schema=encode_schema(self._schema),
                chunk=encode_chunk(self._stream.next()),
                max_wait_seconds=2.0,
            )
            response = self._stub.Insert(request, timeout=CALL_TIMEOUT_S)
            seconds.append(time.perf_counter() - began)
            if response.status != replay_pb2.INSERT_STATUS_APPLIED:
                raise RuntimeError(f"a chunk was not applied: {response.reason}")
        return seconds


class DirectSampler:
    """One learner that asks for one batch a call, with the priorities of the last."""

    def __init__(self, address: str, load: Workload) -> None:
        self._stub = replay_pb2_grpc.ReplayServiceStub(connect(address))
        self._peer = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "sampler").to_proto(schema_of(load).digest)
        self._td_error = np.random.default_rng(2).random(BATCH)

    def sample(self, seconds: float, calls_per_s: float = 0.0) -> List[float]:
        """Call for `seconds`, at `calls_per_s` or (0) one call after the other; returns the seconds of each."""
        taken: List[float] = []
        priorities = None
        end = time.perf_counter() + seconds
        due = time.perf_counter()
        while time.perf_counter() < end:
            if calls_per_s:
                due = max(due + 1.0 / calls_per_s, time.perf_counter() - 1.0 / calls_per_s)
                time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            request = replay_pb2.SampleRequest(
                peer=self._peer,
                num_batches=1,
                batch_size=BATCH,
                priorities=priorities,
                max_wait_seconds=2.0,
                transport=replay_pb2.TRANSPORT_GRPC,
            )
            response = self._stub.Sample(request, timeout=CALL_TIMEOUT_S)
            keys = np.frombuffer(response.items.keys, np.int64)
            taken.append(time.perf_counter() - began)
            priorities = replay_pb2.PriorityUpdates(
                table_id=response.table_id, keys=keys.tobytes(), td_error=self._td_error.tobytes()
            )
        return taken


@dataclass(frozen=True)
class _Crowd:
    """Processes that write while they are told to."""

    processes: List[subprocess.Popen]  # type: ignore[type-arg]

    @classmethod
    def start(cls, name: str, address: str, count: int, *flags: str) -> _Crowd:
        command = [sys.executable, "-m", "bench.replay.shoal_writers", address, *flags]
        return cls(
            [
                subprocess.Popen([*command, "--name", f"{name}-{number}"], stdin=subprocess.PIPE, text=True)
                for number in range(count)
            ]
        )

    def tell(self, word: str) -> None:
        for process in self.processes:
            assert process.stdin is not None  # noqa: S101 (it is a pipe)
            process.stdin.write(word + "\n")
            process.stdin.flush()

    def stop(self) -> None:
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.close()
        codes = [process.wait(20) for process in self.processes]
        if any(codes):
            raise RuntimeError(f"writers ended with the codes {codes}: what was measured beside them is void")


def beside(capacity: int, num_rounds: int, seconds: float) -> Dict[str, float]:
    """p50 and p99 of a sample call of 512 with priorities: quiet, beside two writers, beside 64 light clients.

    Each once at the pace of a learner and once without a pause (saturated); the rounds alternate. The writers send 20
    chunks of 1,000 steps a second each, the light clients one of 160.
    """
    load = workload("small", capacity)
    server = ShoalServer(load)
    DirectWriter(load, server.address, 4096).insert(-(-capacity // 4096))
    writers = _Crowd.start("writer", server.address, 2)
    light = _Crowd.start("light", server.address, 1, "--writers", "64", "--chunk-steps", "160", "--chunks-per-s", "1")
    sampler = DirectSampler(server.address, load)
    paces = {"paced": PACED_PER_S, "saturated": 0.0}
    crowds = {"quiet": None, "writers": writers, "light": light}
    taken: Dict[str, List[List[float]]] = {f"{pace}_{crowd}": [] for pace in paces for crowd in crowds}
    time.sleep(2.0)  # the crowds introduce themselves
    for _ in range(num_rounds):
        for crowd_name, crowd in crowds.items():
            if crowd is not None:
                crowd.tell("go")
            sampler.sample(0.3)
            for pace_name, pace in paces.items():
                taken[f"{pace_name}_{crowd_name}"].append(sampler.sample(seconds, pace))
            if crowd is not None:
                crowd.tell("rest")
    writers.stop()
    light.stop()
    server.stop()
    return _percentiles(taken)


def age(capacity: int, num_rounds: int, inserts: int) -> Dict[str, float]:
    """p50 and p99 of inserts of 1,000 steps into a ring that went round once and one that did 50 times; its memory.

    The rounds alternate between the two servers. The heap is that of the one that grew old.
    """
    load = workload("small", capacity)
    young, old = ShoalServer(load), ShoalServer(load)
    lap = -(-capacity // 4096)
    DirectWriter(load, young.address, 4096).insert(lap)
    elder = DirectWriter(load, old.address, 4096)
    elder.insert(lap + lap // 10)
    memory = {f"{kind}_1x_bytes": size for kind, size in resident_bytes(old.pid).items()}
    elder.insert(19 * lap)
    memory.update({f"{kind}_20x_bytes": size for kind, size in resident_bytes(old.pid).items()})
    elder.insert(30 * lap)
    memory.update({f"{kind}_50x_bytes": size for kind, size in resident_bytes(old.pid).items()})
    writers = {
        "insert_1x": DirectWriter(load, young.address, CHUNK),
        "insert_50x": DirectWriter(load, old.address, CHUNK),
    }
    taken: Dict[str, List[List[float]]] = {name: [] for name in writers}
    for _ in range(num_rounds):
        for name, writer in writers.items():
            writer.insert(5)
            taken[name].append(writer.insert(inserts))
    young.stop()
    old.stop()
    return {**_percentiles(taken), **memory}


def snapshot(capacity: int, num_rounds: int) -> Dict[str, float]:
    """p50 and p99 of inserts of 1,000 steps while snapshots of a full mapped ring are taken, and quiet.

    A round is one snapshot, and as many inserts before it as came while it lasted.
    """
    load = workload("small", capacity)
    taken: Dict[str, List[List[float]]] = {"insert_quiet": [], "insert_snapshot": []}
    with tempfile.TemporaryDirectory(prefix="shoal-bench-snapshot-") as data:
        server = ShoalServer(load, flags=("--replay.data_dir", f"{data}/rings"))
        DirectWriter(load, server.address, 4096).insert(-(-capacity // 4096))
        writer = DirectWriter(load, server.address, CHUNK)
        writer.insert(20)
        stub = replay_pb2_grpc.ReplayServiceStub(connect(server.address))
        peer = Peer(RUN_ID, experience_pb2.ROLE_OPERATOR, "operator").to_proto()
        count = 100
        for number in range(num_rounds):
            copy = f"{data}/copy-{number}"
            quiet = writer.insert(count)
            under_way = stub.Snapshot.future(replay_pb2.SnapshotRequest(peer=peer, folder=copy), timeout=60.0)
            beside: List[float] = []
            while not under_way.done():
                beside += writer.insert(1)
            under_way.result()
            shutil.rmtree(copy)
            if number:  # the first says how many there are in one
                taken["insert_quiet"].append(quiet)
                taken["insert_snapshot"].append(beside)
            count = len(beside)
        server.stop()
    return _percentiles(taken)


def _percentiles(taken: Dict[str, List[List[float]]]) -> Dict[str, float]:
    """Median over the rounds of each round's percentile: one hiccup of the machine spoils one round."""
    return {
        f"{name}_{label}_ms": statistics.median(float(np.percentile(seconds, q)) * 1e3 for seconds in rounds)
        for name, rounds in taken.items()
        for label, q in (("p50", 50), ("p99", 99))
    }


if __name__ == "__main__":
    sys.exit(serve_calls({"beside": beside, "age": age, "snapshot": snapshot}))
