"""Strangers at each port: refused, counted, in bounded memory, while others are served."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import urllib.request
from typing import Any, Callable, Dict, Iterator, List

import grpc
import numpy as np
import pytest
import safetensors.numpy
import zstandard
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typing_extensions import Self

from services.common.codec import encode_chunk, encode_schema
from services.common.errors import Crash
from services.common.lifecycle import Lifecycle
from services.common.message_bounds import MAX_FIELDS
from services.common.metrics import Metrics
from services.common.metrics_server import MAX_READERS
from services.common.parameter_download import MAX_DAMAGED, MAX_SUPERSEDED, ParameterDownload
from services.common.peer import Peer
from services.common.request_gate import CROWDED_S
from services.common.rpc import Caller, Refused, Server, Unavailable, call_once, connect
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.learner.replay_client import ReplayClient
from services.replay.footprint import TableTooLarge
from services.replay.registration import add_to_server
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc, replay_pb2, replay_pb2_grpc, tensor_pb2
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, SCHEMA, FakeLog, ReplayPeers, make_chunk

WORKERS = 8
MAX_PEERS = 20
HONEST_S = 5.0  # within which an honest call must be answered, whatever strangers do


def resident_bytes() -> int:
    """Memory of this process, client and server together."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


class Replay:
    """A replay with its metrics, as its process builds them."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.metrics = Metrics("replay", RUN_ID)
        settings = TableSettings(capacity=512, n_step=2, max_batch_size=16, max_num_batches=4, max_peers=MAX_PEERS)

        def make_table(schema: Schema) -> Table:
            if sum(spec.num_bytes for spec in schema.observation) > 1 << 20:
                raise TableTooLarge("the table of 512 rows takes more memory than there is")
            return Table(settings, schema, clock=time.monotonic)

        self.servicer = ReplayServicer(
            run_id=RUN_ID, incarnation=99, make_table=make_table, log=self.log, fail=pytest.fail
        )
        self.server = Server(
            "127.0.0.1:0",
            max_workers=WORKERS,
            option_name="test",
            on_rejected=self.metrics.rejected_calls(),
            observe=self.metrics.calls(),
        )
        self.server.add(add_to_server, self.servicer)
        self.server.start()
        self.metrics_port = self.metrics.serve(0, "test")
        self.channel = connect(self.server.address)
        self.peers = ReplayPeers(replay_pb2_grpc.ReplayServiceStub(self.channel))
        self.sequence = 0

    def check_served(self) -> None:
        """An honest actor inserts, an honest learner samples, and Prometheus reads, each in time."""
        began_s = time.monotonic()
        chunk = make_chunk(2, 2, sequence=self.sequence, first_step=2 * self.sequence)
        status = self._until_answered(lambda: self.peers.insert(chunk, "honest")).status
        assert status in (replay_pb2.INSERT_STATUS_APPLIED, replay_pb2.INSERT_STATUS_DUPLICATE)
        self.sequence += 1
        if self.sequence > 2:
            self._until_answered(lambda: self.peers.draw(1, 4))
        self.scrape()
        assert time.monotonic() - began_s < 3 * HONEST_S
        table = self.servicer.table
        assert table is not None
        assert table.check_valid() is None

    def _until_answered(self, call: Callable[[], Any]) -> Any:
        """Repeat a call as clients of ours do where a server is at its limit of calls."""
        deadline_s = time.monotonic() + HONEST_S
        while True:
            try:
                return call()
            except Unavailable:
                assert time.monotonic() < deadline_s, "honest peers are not served"
                time.sleep(0.05)

    def scrape(self) -> str:
        deadline_s = time.monotonic() + HONEST_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=2) as answer:
                    text: str = answer.read().decode()
                    return text
            except OSError:
                assert time.monotonic() < deadline_s, "nobody gets at the metrics"
                time.sleep(0.1)

    def rejected(self, reason: str) -> float:
        labels = {"run": RUN_ID, "reason": reason}
        return self.metrics.registry.get_sample_value("shoal_replay_rejected_calls_total", labels) or 0.0

    def raw(self, method: str, data: bytes, timeout_s: float = 20.0) -> Any:
        """Call with bytes of the test's own making; the error, or the answer's bytes."""
        call = self.channel.unary_unary(f"/shoal.v1.ReplayService/{method}")
        try:
            return call(data, timeout=timeout_s)
        except grpc.RpcError as error:
            return error

    def stop(self) -> None:
        self.channel.close()
        self.server.stop(0)
        self.metrics.stop()


@pytest.fixture
def replay() -> Iterator[Replay]:
    made = Replay()
    made.check_served()
    yield made
    made.stop()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _headers(path: str) -> bytes:
    """A header block of literal fields (RFC 7541, 6.2.2)."""
    block = b""
    for name, value in (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ):
        block += bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode()
    return block


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"")
HEADERS, RST_STREAM, SETTINGS, PING, END_HEADERS = 1, 3, 4, 6, 4
FOREIGN: Dict[str, bytes] = {
    "http/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "http/1 with a header that does not end": b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
    "tls": bytes.fromhex("16030100") + b"\xff" * 200,
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "noise": np.random.default_rng(0).integers(0, 256, 65_536, np.uint8).tobytes(),
    "nothing": b"",
    "half a preface": PREFACE[:10],
    "frames that cannot be": PREFACE + b"\xff" * 4096,
    "a frame of 16 MB": PREFACE + _frame(0, 0, 1, b"")[:3].replace(b"\0\0\0", b"\xff\xff\xff") + b"\0" * 100,
    "pings": PREFACE + _frame(PING, 0, 0, bytes(8)) * 20_000,
    "settings": PREFACE + _frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20)) * 20_000,
    "opened and reset": PREFACE
    + b"".join(
        _frame(HEADERS, END_HEADERS, stream, _headers("/shoal.v1.ReplayService/GetInfo"))
        + _frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
        for stream in range(1, 10_001, 2)
    ),
}


@pytest.mark.parametrize("port", ["grpc", "metrics"])
@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_foreign_protocols_do_no_harm(name: str, port: str, replay: Replay) -> None:
    number = replay.server.port if port == "grpc" else replay.metrics_port
    before = resident_bytes()
    strangers = []
    for _ in range(5):
        stranger = socket.create_connection(("127.0.0.1", number), 5)
        strangers.append(stranger)
        stranger.settimeout(5)
        with contextlib.suppress(OSError):  # hung up in the middle: that is its right
            stranger.sendall(FOREIGN[name])
    replay.check_served()
    assert resident_bytes() - before < 64 << 20
    for stranger in strangers:
        stranger.close()


def test_calls_that_bring_no_request_are_given_up(replay: Replay) -> None:
    with socket.create_connection(("127.0.0.1", replay.server.port), 5) as stranger:
        opened = b"".join(
            _frame(HEADERS, END_HEADERS, stream, _headers("/shoal.v1.ReplayService/GetInfo"))
            for stream in range(1, 2 * WORKERS + 1, 2)
        )
        stranger.sendall(PREFACE + opened)
        deadline_s = time.monotonic() + 10
        while replay.server._gate.num_arriving < WORKERS:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        # Each thread waits for a stranger's request; honest calls wait until that is given up.
        began_s = time.monotonic()
        replay.check_served()
        assert time.monotonic() - began_s < CROWDED_S + HONEST_S
    # So many, until it is no crowd any more; the others have the time that everybody has.
    assert WORKERS - WORKERS // 2 < replay.rejected("slow") <= WORKERS


def test_a_byte_a_second_keeps_nobody_from_the_metrics(replay: Replay) -> None:
    over = threading.Event()
    slow = [socket.create_connection(("127.0.0.1", replay.metrics_port), 5) for _ in range(2 * MAX_READERS)]

    def dribble() -> None:
        while not over.wait(0.3):
            for stranger in slow:
                with contextlib.suppress(OSError):
                    stranger.sendall(b"G")

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        for _ in range(3):
            assert "shoal_replay" in replay.scrape()
        assert threading.active_count() < 3 * MAX_READERS + 40
    finally:
        over.set()
        thread.join()
        for stranger in slow:
            stranger.close()


def test_watches_of_the_health_service_take_no_calls_away(replay: Replay) -> None:
    stub = health_pb2_grpc.HealthStub(replay.channel)
    watches = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=20) for _ in range(8 * WORKERS)]
    replay.check_served()
    with pytest.raises(grpc.RpcError) as refused:
        next(watches[0])
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status == health_pb2.HealthCheckResponse.SERVING


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


class Peak:
    """How much memory this process took at most, looked at a thousand times a second."""

    grown_bytes = 0

    def __enter__(self) -> Self:
        before, self._over = resident_bytes(), threading.Event()

        def look() -> None:
            while not self._over.wait(0.001):
                self.grown_bytes = max(self.grown_bytes, resident_bytes() - before)

        self._thread = threading.Thread(target=look)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join()


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


def test_a_flood_of_first_calls_meets_a_bound(replay: Replay) -> None:
    stub = replay.peers.stub
    chunk = make_chunk(1, 1)
    accepted, sentences = 0, set()
    before = resident_bytes()
    for number in range(400):
        try:
            replay.peers.insert(chunk, f"stranger-{number}")
            accepted += 1
        except Refused as error:
            sentences.add(str(error))
    for number in range(2000):  # names that only ever wait are not kept either
        peer = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, f"waiter-{number}").to_proto()
        stub.Sample(replay_pb2.SampleRequest(peer=peer, num_batches=4, batch_size=16), timeout=10)
    assert accepted == MAX_PEERS - 1  # and the honest one
    assert len(sentences) == 1
    assert "replay.max_peers" in sentences.pop()
    info = replay.peers.info()
    assert len(info.actors) == MAX_PEERS
    assert resident_bytes() - before < 32 << 20
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


def test_a_schema_that_there_is_no_room_for_ends_its_caller_alone(serve: Serve) -> None:
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


# A chief that lies to its readers


class LyingChief(parameters_pb2_grpc.ParameterServiceServicer):
    """Answers each Get with what `answer` makes."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.calls = 0
        self._answer = answer

    def Get(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.calls += 1
        return self._answer(request)


def _answer(data: bytes = b"", size: int = -1, version: int = 1, crc: int = -1) -> Any:
    import google_crc32c

    from services.common.parameter_set import digest_of

    manifest = parameters_pb2.GetManifestResponse(
        available=True, version=version, size_bytes=len(data) if size < 0 else size, digest=digest_of(data)
    )
    return parameters_pb2.GetParametersResponse(
        data=data, crc32c=google_crc32c.value(data) if crc < 0 else crc, manifest=manifest
    )


GOOD = safetensors.numpy.save({"policy.bias": np.ones(2, np.float32)})
LIES: Dict[str, Any] = {
    "a set of a terabyte": (_answer(GOOD, size=1 << 40), "more than can be right"),
    "a version beyond 64 bits": (_answer(GOOD, version=2**63), "more than can be right"),
    "values that are not finite": (
        _answer(safetensors.numpy.save({"policy.bias": np.full(2, np.nan, np.float32)})),
        "not finite",
    ),
    "no safetensors": (_answer(b"\xff" * 100), "cannot be read"),
    "a header of a terabyte": (_answer((1 << 40).to_bytes(8, "little") + b"{}"), "cannot be read"),
}


@pytest.fixture
def download(serve: Serve, lifecycle: Lifecycle, log: FakeLog) -> Iterator[Any]:
    callers: List[Caller] = []

    def make(chief: LyingChief) -> ParameterDownload:
        address = serve(parameters_pb2_grpc.add_ParameterServiceServicer_to_server, chief)
        callers.append(Caller("chief", address, lifecycle.stopping, log))
        peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0")
        return ParameterDownload(
            callers[-1], peer=peer, role=parameters_pb2.PARAMETER_ROLE_ACT, stopping=lifecycle.stopping, log=log
        )

    yield make
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("lie", sorted(LIES))
def test_an_actor_takes_no_set_that_cannot_be(lie: str, download: Any) -> None:
    answer, sentence = LIES[lie]
    client = download(LyingChief(lambda _request: answer))
    with pytest.raises(Refused, match=sentence):
        client.fetch()
    assert client.newest is None


def test_an_actor_takes_no_set_of_other_parameters_than_before(download: Any) -> None:
    other = safetensors.numpy.save({"policy.bias": np.ones(3, np.float32)})
    answers = [_answer(GOOD), _answer(other, version=2)]
    client = download(LyingChief(lambda _request: answers.pop(0)))
    client.fetch()
    with pytest.raises(Refused, match=r"'policy.bias' is \(3,\), and was \(2,\) before"):
        client.fetch()
    assert client.newest.version == 1


def test_damage_without_end_comes_to_an_end(download: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.common.parameter_download.RETRY_S", 0.0)
    client = download(LyingChief(lambda _request: _answer(GOOD, crc=1)))
    with pytest.raises(Crash, match=f"{MAX_DAMAGED} times in a row"):
        client.fetch()


def test_a_chief_that_supersedes_each_set_is_asked_no_oftener_than_ten_times_a_second(
    download: Any, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    def answer(request: Any) -> Any:
        if request.version:
            return parameters_pb2.GetParametersResponse(superseded=True)
        return _answer(GOOD[:8], size=len(GOOD))

    chief = LyingChief(answer)
    client = download(chief)
    thread = threading.Thread(target=_until_stopped, args=(client,))
    thread.start()
    eventually(lambda: chief.calls > 2 * MAX_SUPERSEDED)
    before = chief.calls
    time.sleep(1.0)
    assert chief.calls - before <= 2 * 12
    lifecycle.stop("enough")
    thread.join(5)
    assert not thread.is_alive()


def _until_stopped(client: ParameterDownload) -> None:
    from services.common.rpc import Stopped

    with contextlib.suppress(Stopped):
        client.fetch()


# A replay that lies to its learner


class LyingReplay(replay_pb2_grpc.ReplayServiceServicer):
    def GetInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return replay_pb2.GetReplayInfoResponse(schema=encode_schema(SCHEMA))


NUM_ITEMS = 4
COLUMNS = {"keys": "int64", "probability": "float64", "priority": "float64", "times_sampled": "int64"}


def _items(schema: Schema = SCHEMA, num_items: int = NUM_ITEMS, **changes: Any) -> bytes:
    items = replay_pb2.SampledItems(
        n_step_return=bytes(4 * num_items), discount=bytes(4 * num_items), policy_version=bytes(8 * num_items)
    )
    for name in COLUMNS:
        setattr(items, name, bytes(8 * num_items))
    for name in ("actor_index", "known_version", "arrival_version", "acting_seconds", "transit_seconds", "age_seconds"):
        setattr(items, name, bytes(4 * num_items))
    from services.common.codec import encode_tensor

    for spec in schema.observation:
        column = encode_tensor(spec.name, np.zeros((num_items, *spec.shape), spec.dtype))
        items.observation.append(column)
        items.next_observation.append(column)
    items.action.CopyFrom(encode_tensor("action", np.zeros((num_items, *schema.action.shape), schema.action.dtype)))
    for name, value in changes.items():
        setattr(items, name, value)
    response = replay_pb2.SampleResponse(status=1, items=items, actor_names=["a"])
    return response.SerializeToString()


STRANGE = Schema((TensorSpec("policy", "float32", (3,)), SCHEMA.observation[0]), SCHEMA.action)
ANSWERS = {
    "noise": b"\xff" * 100,
    "more items than were asked for": _items(num_items=100 * NUM_ITEMS),
    "fewer items": _items(num_items=1),
    "no items": _items(num_items=0),
    "columns of two lengths": _items(discount=bytes(4)),
    "another schema": _items(STRANGE),
    "an actor that nobody named": _items(actor_index=b"\xff" * 4 * NUM_ITEMS),
}


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_a_learner_ends_with_a_sentence_over_answers_that_are_none(
    name: str, lifecycle: Lifecycle, log: FakeLog, eventually: Eventually
) -> None:
    def register(servicer: LyingReplay, server: grpc.Server) -> None:
        handlers = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(
                servicer.GetInfo,
                replay_pb2.GetReplayInfoRequest.FromString,
                replay_pb2.GetReplayInfoResponse.SerializeToString,
            ),
            "Sample": grpc.unary_unary_rpc_method_handler(lambda _request, _context: ANSWERS[name]),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shoal.v1.ReplayService", handlers),))

    server = Server("127.0.0.1:0", max_workers=4, option_name="test")
    server.add(register, LyingReplay())
    server.start()
    client = ReplayClient(
        server.address,
        peer=Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "learner"),
        batch_size=NUM_ITEMS,
        batches_per_sample=1,
        samples_in_flight=1,
        transport="grpc",
        newest=lambda: (1, 1),
        rng=np.random.default_rng(0),
        lifecycle=lifecycle,
        log=log,
    )
    try:
        client.start(client.wait_for_schema())
        eventually(lifecycle.stopping.is_set)
        with pytest.raises(Crash, match="the replay's answer to a Sample is none"):
            lifecycle.check()
    finally:
        client.close()
        server.stop(0)


def test_an_honest_answer_of_the_same_make_is_taken() -> None:
    """The answers above are refused for their lies alone."""
    from services.common.sample_codec import decode_batch, read_response
    from services.common.stamps_codec import StampSource

    answer = read_response(_items())
    batch = decode_batch(answer.items or b"", 4, StampSource(1, ("a",)))
    batch.check(SCHEMA)
    assert len(batch) == NUM_ITEMS


def test_oversize_messages_are_refused_before_they_are_taken(replay: Replay) -> None:
    with grpc.insecure_channel(replay.server.address, options=[("grpc.max_send_message_length", -1)]) as unbounded:
        call = unbounded.unary_unary("/shoal.v1.ReplayService/Insert")
        with pytest.raises(Refused, match="larger than max"):
            call_once(call, bytes(257 << 20), timeout_s=20)
    error = replay.raw("GetInfo", _wrapped(15, bytes(2 << 20)))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "it may have 1048576" in error.details()
    replay.check_served()
