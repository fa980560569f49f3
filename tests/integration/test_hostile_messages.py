"""Messages that no peer of ours sends: refused in a sentence, in bounded memory, while others are served."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict

import grpc
import numpy as np
import pytest
import zstandard
from google.protobuf import symbol_database
from grpc import method_handlers_generic_handler

from services.common.codec import encode_chunk, encode_schema
from services.common.message_bounds import MAX_FIELDS
from services.common.peer import Peer
from services.common.rpc import Refused, Server, Unavailable, call_once, connect
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.common.security import guard
from shoal.v1 import experience_pb2, replay_pb2, tensor_pb2
from tests.conftest import Eventually
from tests.fakes import RUN_ID, SCHEMA, make_chunk
from tests.integration.attacked import Attacked, Peak, Replay


def _wrapped(number: int, content: bytes) -> bytes:
    """A field of a message."""
    size, encoded = len(content), b""
    while size > 127:
        encoded += bytes((size & 127 | 128,))
        size >>= 7
    return bytes((number << 3 | 2,)) + encoded + bytes((size,)) + content


BOMBS: Dict[str, bytes] = {  # forty times the memory of their bytes, if they were parsed
    "empty tensors": _wrapped(3, bytes((6 << 3 | 2, 0)) * (10 << 20)),
    "empty fields of the schema": _wrapped(2, bytes((1 << 3 | 2, 0)) * (10 << 20)),
    "packed numbers": _wrapped(3, _wrapped(13, _wrapped(1, b"\1" * (20 << 20)))),
    "packed numbers, in many fields": _wrapped(3, _wrapped(13, _wrapped(1, b"\1" * (4 << 20)) * 8)),
    "reasons": _wrapped(3, _wrapped(17, bytes((3 << 3 | 2, 0)) * (10 << 20))),
}


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_messages_that_grow_when_parsed_are_refused_unparsed(name: str, replay: Replay) -> None:
    peak = Peak()
    with peak:
        error = replay.raw("Insert", BOMBS[name])
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert f"{MAX_FIELDS} fields" in error.details() or "bytes of numbers" in error.details()
    assert peak.grown_bytes < 150 << 20  # some copies of 20 MiB; parsed they would be 800
    assert replay.rejected("malformed") == 1
    replay.check_served()


PACKED_BY_GRPC = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}


@pytest.mark.parametrize("algorithm", sorted(PACKED_BY_GRPC))
def test_what_grpc_packed_is_unpacked_by_no_method(algorithm: str, attacked: Attacked, capfd: Any) -> None:
    zeros = bytes(40 << 20)  # some forty kilobytes on their way
    num_called = 0
    peak = Peak()
    for service in attacked.protos:
        for method in symbol_database.Default().pool.FindServiceByName(service).methods:
            path = f"/{service}/{method.name}"
            role = min(guard._ROLES[path])
            attacked.channel(role)
            with peak:
                error = attacked.send(path, zeros, role, compression=PACKED_BY_GRPC[algorithm])
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, method.name
            num_called += 1
    assert num_called >= 7
    assert peak.grown_bytes < 64 << 20  # the sender's copy; unpacked they would be three times that
    assert attacked.rejected("malformed") == num_called
    assert "disabled" not in capfd.readouterr().err, "whoever reaches the port could fill the log"
    attacked.check_served()


def test_requests_that_are_worked_on_are_held_within_a_budget(eventually: Eventually) -> None:
    """As inserts are that the table holds back: each of them keeps its request for as long."""
    over, held = threading.Event(), []

    def work(request: bytes, _context: grpc.ServicerContext) -> bytes:
        held.append(len(request))
        over.wait(20)
        return b"done"

    large, refused = bytes(16 << 20), []
    server = Server("127.0.0.1:0", max_workers=40, option_name="test", max_held_bytes=4 * len(large))
    handlers = {"Insert": grpc.unary_unary_rpc_method_handler(work)}
    server.add(lambda _servicer, to: to.add_generic_rpc_handlers((method_handlers_generic_handler("x", handlers),)), 0)
    server.start()
    peak = Peak()
    with connect(server.address) as channel, ThreadPoolExecutor(33) as threads, peak:
        insert = channel.unary_unary("/x/Insert")

        def call(request: bytes) -> Any:
            try:
                return call_once(insert, request, timeout_s=20)
            except Unavailable as error:  # which callers of ours try again
                refused.append(str(error))

        calls = []
        for number in range(32):
            calls.append(threads.submit(call, large))
            eventually(lambda number=number: len(held) + len(refused) > number)
        calls.append(threads.submit(call, b"small"))
        eventually(lambda: held[-1] == len(b"small"))
        over.set()
        answers = [call.result(20) for call in calls]
    assert answers.count(b"done") == 4 + 1
    assert refused == [f"resource_exhausted: no room is left for a request of {len(large)} bytes: come again"] * 28
    assert server._gate.held_bytes[0] == 0
    # Four of them, and copies of those that arrive and are sent; without a budget more than 1,000 MiB were seen.
    assert peak.grown_bytes < 480 << 20
    server.stop(0)


def _insert_request(chunk: Any = None, **changes: Any) -> Any:
    peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "stranger", 7).to_proto(SCHEMA.digest)
    request = replay_pb2.InsertRequest(
        peer=peer, schema=encode_schema(SCHEMA), chunk=encode_chunk(chunk or make_chunk(2, 2))
    )
    request.chunk.crc32c = 0
    for name, value in changes.items():
        setattr(request.chunk, name, value)
    return request


def _zstd_bomb(claimed: int, real: int) -> bytes:
    """A frame that claims other bytes than it holds."""
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(real)))
    descriptor = frame[4]
    size_bytes = {0: 1, 1: 2, 2: 4, 3: 8}[descriptor >> 6]
    begin = 5 + (0 if descriptor & 32 else 1)
    base = 256 if size_bytes == 2 else 0
    frame[begin : begin + size_bytes] = (claimed - base).to_bytes(size_bytes, "little")
    return bytes(frame)


@pytest.mark.parametrize(
    ("codec", "data", "shape"),
    [
        (tensor_pb2.CODEC_ZSTD, _zstd_bomb(1 << 20, 1 << 28), (2, 2, 2, 2)),
        (tensor_pb2.CODEC_ZSTD, _zstd_bomb(70_000, 1 << 28), (2, 2, 2, 2)),
        (tensor_pb2.CODEC_ZSTD, zstandard.ZstdCompressor().compress(bytes(1 << 27)), (2, 2, 1 << 25)),
        (tensor_pb2.CODEC_LZ4, b"\xff" * 1000, (2, 2, 1 << 25)),
        (tensor_pb2.CODEC_LZ4, b"\xff" * 1000, (2, 2, 2, 2)),
        (tensor_pb2.CODEC_ZSTD, b"", (2, 2, 2, 2)),
    ],
)
def test_what_is_packed_is_unpacked_to_what_the_schema_takes(
    codec: Any, data: bytes, shape: Any, replay: Replay
) -> None:
    request = _insert_request()
    tensor = next(tensor for tensor in request.chunk.observation if tensor.name == "camera")
    tensor.codec, tensor.data = codec, data
    tensor.shape[:] = shape
    peak = Peak()
    with peak:
        error = replay.raw("Insert", request.SerializeToString())
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert peak.grown_bytes < 32 << 20
    replay.check_served()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sequence": 2**64 - 1}, "sequence"),
        ({"first_step": 2**63}, "first_step"),
        ({"newest_version": 2**62}, "newest_version"),
        ({"acting_seconds": float("nan")}, "acting_seconds"),
        ({"queued_seconds": 1e300}, "queued_seconds"),
        ({"queued_seconds": -1.0}, "queued_seconds"),
        ({"policy_version": np.full(2, -1, np.int64).tobytes()}, "policy_version"),
        ({"policy_version": np.full(2, 2**62, np.int64).tobytes()}, "policy_version"),
        ({"num_steps": 2**32 - 1}, "rows"),
        ({"num_lanes": 0, "reward": b"", "flags": b""}, ""),
        ({"flags": b"\xff" * 3}, "flags"),
    ],
)
def test_absurd_facts_of_a_chunk_are_refused(changes: Dict[str, Any], word: str, replay: Replay) -> None:
    error = replay.raw("Insert", _insert_request(**changes).SerializeToString())
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert word in error.details()
    replay.check_served()
    assert replay.peers.info().run_id == RUN_ID  # it tells everybody else how it is


def test_reasons_for_drops_make_up_no_metrics(replay: Replay) -> None:
    request = _insert_request()
    for number in range(1000):
        request.chunk.counters.dropped_steps[f"reason {number}"] = 1
    error = replay.raw("Insert", request.SerializeToString())
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "reason 7" not in replay.scrape()


@pytest.mark.parametrize("wait_s", [float("nan"), float("inf"), -1e308, 1e308])
@pytest.mark.parametrize("method", ["Insert", "Sample"])
def test_absurd_waits_hold_no_thread_for_long(method: str, wait_s: float, replay: Replay) -> None:
    if method == "Insert":
        request = _insert_request()
    else:
        peer = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "stranger").to_proto()
        request = replay_pb2.SampleRequest(peer=peer, num_batches=1, batch_size=1)
    request.max_wait_seconds = wait_s
    answer = replay.raw(method, request.SerializeToString())
    assert isinstance(answer, bytes), answer
    replay.check_served()


ODD_CALLS = {
    "names of a megabyte": ("GetInfo", lambda peer: setattr(peer, "name", "x" * 1_000_000)),
    "names with a line's end": ("GetInfo", lambda peer: setattr(peer, "name", "a\nlevel=error")),
    "runs of a megabyte": ("GetInfo", lambda peer: setattr(peer, "run_id", "x" * 1_000_000)),
    "roles that there are not": ("Insert", lambda peer: setattr(peer, "role", 99)),
    "no names": ("Insert", lambda peer: setattr(peer, "name", "")),
}


@pytest.mark.parametrize("name", sorted(ODD_CALLS))
def test_odd_peers_are_refused_in_a_sentence(name: str, replay: Replay) -> None:
    method, change = ODD_CALLS[name]
    request = _insert_request() if method == "Insert" else replay_pb2.GetReplayInfoRequest()
    request.peer.CopyFrom(Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "stranger", 7).to_proto(SCHEMA.digest))
    change(request.peer)
    answer = replay.raw(method, request.SerializeToString())
    if name == "roles that there are not":  # without tokens a role is a word
        assert isinstance(answer, bytes)
    else:
        assert answer.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
        assert len(answer.details()) < 1000
    replay.check_served()


def test_orders_folders_and_priorities_that_cannot_be(replay: Replay) -> None:
    operator = Peer("", experience_pb2.ROLE_OPERATOR, "stranger").to_proto()
    learner = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "stranger").to_proto()
    calls = {
        "Inspect": replay_pb2.InspectRequest(peer=operator, order=77, max_items=2**32 - 1),
        "Snapshot": replay_pb2.SnapshotRequest(peer=operator, folder="a\0b"),
        "UpdatePriorities": replay_pb2.UpdatePrioritiesRequest(
            peer=learner,
            priorities=replay_pb2.PriorityUpdates(keys=bytes(8 * 2**21), td_error=bytes(8 * 2**21)),
        ),
        "Sample": replay_pb2.SampleRequest(peer=learner, num_batches=2**32 - 1, batch_size=2**32 - 1),
    }
    for method, request in calls.items():
        error = replay.raw(method, request.SerializeToString())
        assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION), method
    newest = replay_pb2.SampleRequest(peer=learner, num_batches=1, batch_size=1, newest_version=2**63)
    assert replay.raw("Sample", newest.SerializeToString()).code() == grpc.StatusCode.INVALID_ARGUMENT
    replay.check_served()


def test_lane_groups_and_lanes_of_an_actor_are_bounded(replay: Replay) -> None:
    statuses = set()
    for group in range(80):
        answer = replay.raw("Insert", _insert_request(lane_group=group).SerializeToString())
        statuses.add(replay_pb2.InsertResponse.FromString(answer).status)
    assert replay_pb2.INSERT_STATUS_REFUSED in statuses
    table = replay.servicer.table
    assert table is not None
    assert len(table._admission.actors["stranger"].groups) == 64
    replay.check_served()


def test_a_schema_that_there_is_no_room_for_ends_its_caller_alone() -> None:
    strange = Schema((TensorSpec("camera", "float32", (1 << 20,)),), ActionSpec((-1.0,), (1.0,)))
    made = Replay()
    try:
        with pytest.raises(Refused, match="more memory"):
            made.peers.insert(make_chunk(1, 1, schema=strange), "stranger", schema=strange)
        request = _insert_request()
        request.schema.observation[0].shape[:] = [2**32 - 1] * 8
        error = made.raw("Insert", request.SerializeToString())
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        request.schema.ClearField("observation")
        for number in range(10_000):
            request.schema.observation.add(name=f"t{number}", dtype=2, shape=[1])
        error = made.raw("Insert", request.SerializeToString())
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        made.check_served()
    finally:
        made.stop()


def test_oversize_messages_are_refused_before_they_are_taken(replay: Replay) -> None:
    with grpc.insecure_channel(replay.server.address, options=[("grpc.max_send_message_length", -1)]) as unbounded:
        call = unbounded.unary_unary("/shoal.v1.ReplayService/Insert")
        with pytest.raises(Refused, match="larger than max"):
            call_once(call, bytes(257 << 20), timeout_s=20)
    error = replay.raw("GetInfo", _wrapped(15, bytes(2 << 20)))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "it may have 1048576" in error.details()
    replay.check_served()
