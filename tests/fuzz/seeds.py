"""`python -m tests.fuzz.seeds`: writes whole inputs of each target to the corpus, which mutations begin with."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import safetensors.numpy

from services.common.chunk import TERMINATED, TRUNCATED, VALID, ActorCounters
from services.common.codec import encode_schema, fill_chunk
from services.common.config.load import to_toml
from services.common.config.run import RunConfig
from services.common.peer import Peer
from services.common.ring_layout import CHUNKS_FOLDER, FORMAT_FILE
from services.common.run_folder import Evaluation
from services.common.sealed import seal
from services.common.security.tokens import digest_of, format_book
from services.common.staleness_log import ActorLag, LedgerRow
from services.learner.gradients import GradientEncoder
from shoal.v1 import experience_pb2, gradients_pb2, parameters_pb2, replay_pb2
from tests.fakes import RUN_ID, SCHEMA, make_chunk
from tests.fuzz import stand_ins, targets
from tests.fuzz.corpus_files import CORPUS

ROOT = Path(__file__).resolve().parents[2]


def seeds() -> Iterator[Tuple[str, str, bytes]]:
    """(target, name, input) of everything that is written."""
    yield from _inserts()
    yield from _replay_calls()
    yield from _chief_calls()
    yield from _files()


def _peer(role: Any, name: str, digest: str = "") -> Any:
    return Peer(RUN_ID, role, name, 5).to_proto(digest)


def _insert(chunk: Any, codec: str = "none", **changes: Any) -> bytes:
    request = replay_pb2.InsertRequest(
        peer=_peer(experience_pb2.ROLE_ACTOR, "actor-2", SCHEMA.digest), schema=encode_schema(SCHEMA)
    )
    fill_chunk(request.chunk, chunk, codec)
    request.chunk.crc32c = 0  # not given: else no change would get beyond it
    for name, value in changes.items():
        setattr(request.chunk, name, value)
    return request.SerializeToString()


def _inserts() -> Iterator[Tuple[str, str, bytes]]:
    flags = np.full((4, 2), VALID, np.uint8)
    flags[1, 0] |= TERMINATED
    flags[2, 1] |= TRUNCATED
    ended = make_chunk(4, 2, flags=flags)
    ended.counters = ActorCounters(8, 0, {"buffer_full": 3})
    empty = make_chunk(0, 2)
    for name, data in {
        "plain": _insert(make_chunk(3, 2)),
        "ended": _insert(ended),
        "introduction": _insert(empty),
        "zstd": _insert(make_chunk(40, 8), "zstd"),
        "lz4": _insert(make_chunk(40, 8), "lz4"),
        "without_critics": _insert(make_chunk(2, 2, critics=False)),
        "largest_sequence": _insert(make_chunk(2, 2), sequence=2**64 - 1),
        "largest_version": _insert(make_chunk(2, 2), newest_version=2**64 - 1),
        "long_ago": _insert(make_chunk(2, 2), acting_seconds=1e300, queued_seconds=float("nan")),
        "no_lanes": _insert(make_chunk(2, 2), num_lanes=0),
        "many_lanes": _insert(make_chunk(2, 2), num_lanes=2**32 - 1),
        "negative_version": _insert(make_chunk(2, 2), policy_version=np.full(2, -5, np.int64).tobytes()),
    }.items():
        yield "insert", name, data
        yield "first_insert", name, data
    request = replay_pb2.InsertRequest.FromString(_insert(make_chunk(3, 2)))
    request.schema.observation[0].shape[:] = [2**32 - 1] * 3
    yield "first_insert", "huge_schema", request.SerializeToString()


def _replay_calls() -> Iterator[Tuple[str, str, bytes]]:
    learner = _peer(experience_pb2.ROLE_LEARNER, "learner", SCHEMA.digest)
    operator = _peer(experience_pb2.ROLE_OPERATOR, "top")
    keys, td = np.arange(8, dtype=np.int64), np.linspace(0, 1, 8)
    td[3], td[4] = np.nan, np.inf
    updates = replay_pb2.PriorityUpdates(table_id=1, keys=keys.tobytes(), td_error=td.tobytes())
    sample = replay_pb2.SampleRequest(
        peer=learner, num_batches=2, batch_size=4, newest_version=3, updates=10, priorities=updates
    )
    yield "sample", "plain", sample.SerializeToString()
    sample.max_wait_seconds, sample.newest_version, sample.transport = float("nan"), 2**64 - 1, 2
    yield "sample", "absurd", sample.SerializeToString()
    update = replay_pb2.UpdatePrioritiesRequest(peer=learner, priorities=updates)
    yield "update_priorities", "plain", update.SerializeToString()
    inspect = replay_pb2.InspectRequest(peer=operator, order=1, max_items=5, actor="actor-0")
    yield "inspect", "plain", inspect.SerializeToString()
    inspect.order, inspect.max_items = 77, 2**32 - 1
    yield "inspect", "odd_order", inspect.SerializeToString()
    yield "inspect", "one", replay_pb2.InspectRequest(peer=operator, one=True, key=2**63 - 1).SerializeToString()
    yield "snapshot", "nul", replay_pb2.SnapshotRequest(peer=operator, folder="a\0b").SerializeToString()
    yield "flush", "plain", replay_pb2.FlushRequest(peer=operator).SerializeToString()
    info = replay_pb2.GetReplayInfoRequest(peer=operator, with_moments=True)
    yield "replay_info", "plain", info.SerializeToString()
    served = stand_ins.replay()
    table = served.servicer._table_for(replay_pb2.InsertRequest(schema=encode_schema(SCHEMA)))
    table.insert("actor-0", 1, make_chunk(6, 2), max_wait_s=0.0)
    drawn = replay_pb2.SampleRequest(peer=learner, num_batches=1, batch_size=4)
    from tests.fuzz.stand_ins import Context

    yield "sample_response", "rows", served.servicer.sample_packed(drawn, Context())
    result = table.sample(1, 4, max_wait_s=0.0, with_rows=False)
    from services.replay.answers import sample_response

    outcome = table.update_priorities(np.zeros(0, np.int64), np.zeros(0))
    yield "sample_response", "keys", sample_response(result, outcome, table.table_id, drawn, began_s=0.0)


def _chief_calls() -> Iterator[Tuple[str, str, bytes]]:
    actor = _peer(experience_pb2.ROLE_ACTOR, "actor-0")
    evaluator = _peer(experience_pb2.ROLE_EVALUATOR, "evaluator")
    helper = _peer(experience_pb2.ROLE_HELPER, "helper-0", stand_ins.DIGEST)
    get = parameters_pb2.GetParametersRequest(peer=actor, role=1)
    yield "get_parameters", "newest", get.SerializeToString()
    get.version, get.offset_bytes, get.max_bytes = 1, 3, 7
    yield "get_parameters", "part", get.SerializeToString()
    get.offset_bytes, get.max_bytes, get.running_version, get.role = 2**64 - 1, 2**32 - 1, 2**64 - 1, 99
    yield "get_parameters", "absurd", get.SerializeToString()
    manifest = parameters_pb2.GetManifestRequest(peer=actor, role=1, running_version=1, running_digest="0" * 32)
    yield "get_manifest", "other_digest", manifest.SerializeToString()
    manifest.running_version = 2**63 + 5
    yield "get_manifest", "absurd", manifest.SerializeToString()
    report = parameters_pb2.ReportEvaluationRequest(
        peer=evaluator, version=1, digest="0" * 32, episodes=5, success_rate=0.5, mean_return=1.0
    )
    yield "report_evaluation", "plain", report.SerializeToString()
    operator = _peer(experience_pb2.ROLE_OPERATOR, "top")
    drain = parameters_pb2.DrainRequest(peer=operator, actors_within_seconds=5.0)
    yield "drain", "plain", drain.SerializeToString()
    drain.actors_within_seconds = float("nan")
    yield "drain", "absurd", drain.SerializeToString()
    yield "drain", "undo", parameters_pb2.DrainRequest(peer=operator, undo=True).SerializeToString()
    yield "learner_info", "plain", parameters_pb2.GetLearnerInfoRequest(peer=operator).SerializeToString()
    yield "join", "plain", gradients_pb2.JoinRequest(peer=helper).SerializeToString()
    yield "leave", "plain", gradients_pb2.LeaveRequest(peer=helper).SerializeToString()
    rng = np.random.default_rng(0)
    gradients = {name: rng.normal(size=shape).astype(np.float32) for name, shape in stand_ins.SHAPES.items()}
    for codec, packing in (("int8", "zstd"), ("int8", "zlib"), ("fp16", "none"), ("none", "zlib")):
        encoded = GradientEncoder(codec, 1024, False, packing).encode(gradients)
        push = gradients_pb2.PushRequest(
            peer=helper,
            sequence=1,
            base_version=1,
            chief_incarnation=stand_ins.CHIEF_INCARNATION,
            num_samples=8,
            segments=encoded.segments,
            crc32c=encoded.crc32c,
        )
        yield "push", f"{codec}_{packing}", push.SerializeToString()
        yield "gradient_segments", f"{codec}_{packing}", push.SerializeToString()
    tensors = {"policy.bias": np.arange(4, dtype=np.float32), "bfloat16/critic": np.arange(4, dtype=np.uint16)}
    yield "parameter_set", "plain", safetensors.numpy.save(tensors)
    bfloat = b'{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    yield "parameter_set", "bfloat16", len(bfloat).to_bytes(8, "little") + bfloat + bytes(4)


def _files() -> Iterator[Tuple[str, str, bytes]]:
    facts: List[Dict[str, Any]] = [
        {"sequence": 3, "actor": "a", "incarnation": 1, "lane_group": 0, "lane": 1, "step": 5, "policy_version": 2},
        {"num_items": 3, "reason": "x", "updates": 1, "table_id": 1},
        {
            "algorithm": "td3",
            "schema": SCHEMA.to_dict(),
            "progress": {"updates": 5},
            "history": [[1, 0], [2, 20]],
            "acknowledged": {"1": 5},
        },
        asdict(Evaluation(1, 20, 50, 0.5, 1.0, 30.0)),
    ]
    for place, its in enumerate(facts):
        yield "sealed_facts", f"facts_{place}", json.dumps(its).encode()
        yield "sealed_file", f"file_{place}", seal({"updates": np.zeros(3, np.float32)}, its)
    with tempfile.TemporaryDirectory() as folder:
        ring, _ = targets.make_ring(Path(folder))
        log = (ring / CHUNKS_FOLDER / "00000000.log").read_bytes().rstrip(b"\0")
        yield "chunk_log", "plain", log
        yield "chunk_records", "plain", log
        yield "ring_format", "plain", (ring / FORMAT_FILE).read_bytes()
    yield "ring_format_facts", "capacity", b'{"capacity": -1, "n_step": 1000000000000}'
    yield "ring_format_facts", "schema", b'{"schema": {"observation": [["a", "float32", ["x"]]], "action": {}}}'
    keys = np.array([[0, 5, -1, 2**62], [1, 6, -(2**63), 2**63 - 1]], np.int64)
    yield "ring_reader", "plain", np.array([24, 24], np.int64).tobytes() + keys.tobytes()
    yield "ring_reader", "negative", np.array([-5, 2**62], np.int64).tobytes() + keys.tobytes()
    for name in ("arm_reach", "arm_joint"):
        yield "run_toml", name, (ROOT / "configs" / f"{name}.toml").read_bytes()
    yield "run_toml", "resolved", to_toml(RunConfig()).encode()
    row = LedgerRow(updates=5, wall_s=1.0, bound=None, items=3, actors={"a": ActorLag()})
    yield "staleness_log", "two_rows", (row.to_line() + "\n" + row.to_line() + "\n").encode()
    yield "run_files", "evaluation", (json.dumps(asdict(Evaluation(1, 20, 50, 0.5, 1.0, 30.0))) + "\n").encode()
    yield "run_files", "versions", b'{"reserved": 1e999}'
    yield "token_book", "plain", format_book({"actor": [digest_of("x")]}).encode()


def main() -> None:
    """Write them all; inputs that were found are left alone."""
    for target, name, data in seeds():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
