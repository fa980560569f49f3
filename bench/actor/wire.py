"""What a chunk takes on the wire by how it is packed: bytes, milliseconds of packing and unpacking, steps a second."""

from __future__ import annotations

import io
import threading
import time
from typing import Any, Dict, List

import numpy as np

from bench.actor.run import Run
from bench.actor.simulators import VectorSimulator
from services.actor.chunk_sender import ChunkSender
from services.actor.chunk_writer import ChunkWriter
from services.actor.lane_group import device_of
from services.actor.narrowed_env import narrowed
from services.agent.algorithm import Decision
from services.common.chunk import Chunk
from services.common.codec import decode_chunk, fill_chunk
from services.common.log import make_log
from services.common.packing import CODECS
from services.common.peer import Peer
from services.common.schema import Schema
from shoal.v1 import experience_pb2

# Name, kind of images, dtype of a vector, codec.
CASES = (
    ("vector of 23, float32", "", "float32", "none"),
    ("vector of 23, float16", "", "float16", "none"),
    *((f"{kind} image 64x64x3, {codec}", kind, "", codec) for kind in ("rendered", "noisy") for codec in CODECS),
)


def measure(rounds: int, round_s: float) -> List[Dict[str, Any]]:
    """A row for each case; chunks of 10 steps go to a replay process, one after the other."""
    return [_measure_one(*case, rounds, round_s) for case in CASES]


def _measure_one(name: str, images: str, dtype: str, codec: str, rounds: int, round_s: float) -> Dict[str, Any]:
    lanes = 32 if images else 256
    env = narrowed(VectorSimulator(lanes, 1, images=images), {"policy": dtype} if dtype == "float16" else {})
    schema = Schema(tuple(env.observation_spec), env.action_spec)
    chunk = _chunk(env, schema, lanes)
    message = experience_pb2.Chunk()
    fill_chunk(message, chunk, codec)
    row: Dict[str, Any] = {
        "case": name,
        "bytes_per_step": message.ByteSize() / chunk.num_valid,
        "pack_ms": _median_ms(lambda: fill_chunk(experience_pb2.Chunk(), chunk, codec), rounds),
        "unpack_ms": _median_ms(lambda: decode_chunk(message), rounds),
    }
    with Run(capacity=20_000 if images else 500_000) as run:
        row["steps_per_s"] = _send(run, schema, chunk, codec, rounds, round_s)
    return row


def _chunk(env: Any, schema: Schema, lanes: int) -> Chunk:
    if device_of(env) != "cpu":
        raise ValueError("the benchmark's simulator lies on the host")
    writer = ChunkWriter(schema, num_lanes=lanes, chunk_steps=10, autoreset=env.autoreset, clock=time.monotonic)
    rng = np.random.default_rng(0)
    observation = env.reset(1)
    while True:
        action = rng.uniform(-1, 1, (lanes, *schema.action.shape)).astype(np.float32)
        zeros = np.zeros(lanes, np.float32)
        writer.record_decision(observation, Decision(action, zeros, zeros), 1)
        step = env.step(action)
        chunk = writer.record_outcome(step, lambda rows: np.zeros(len(rows["policy"]), np.float32), newest_version=1)
        observation = step.observation
        if chunk is not None:
            return chunk


def _send(run: Run, schema: Schema, chunk: Chunk, codec: str, rounds: int, round_s: float) -> List[float]:
    stopping = threading.Event()
    sender = ChunkSender(
        run.replay_address,
        peer=Peer("bench", experience_pb2.ROLE_ACTOR, "actor-0"),
        schema=schema,
        buffer_chunks=4,
        drop_oldest=False,
        on_version=lambda _version: None,
        stopping=stopping,
        log=make_log(io.StringIO()),
        codec=codec,
    )
    thread = threading.Thread(target=sender.run)
    thread.start()
    rates, number = [], 0
    for _ in range(rounds + 1):
        began, before = time.perf_counter(), sender.acknowledged_steps
        while time.perf_counter() - began < round_s:
            chunk.first_step = 10 * number
            number += 1
            sender.put(chunk)
        rates.append((sender.acknowledged_steps - before) / (time.perf_counter() - began))
    sender.close()
    thread.join()
    return rates[1:]


def _median_ms(call: Any, rounds: int) -> float:
    took = []
    for _ in range(max(5, 3 * rounds)):
        began = time.perf_counter()
        call()
        took.append(1e3 * (time.perf_counter() - began))
    return float(np.median(took))
