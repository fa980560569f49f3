"""Strangers' connections to each port: they are refused or wait, in bounded memory, while others are served."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any, List

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common import request_gate
from services.common.metrics_server import MAX_READERS
from services.common.peer import Peer
from services.common.request_gate import CROWDED_S
from services.common.rpc import Refused, call_once
from shoal.v1 import experience_pb2, gradients_pb2, parameters_pb2, replay_pb2
from tests.conftest import Eventually
from tests.fakes import RUN_ID, make_chunk
from tests.integration import http2
from tests.integration.attacked import (
    HONEST_S,
    MAX_PEERS,
    SCHEMA_DIGEST,
    WORKERS,
    Attacked,
    Chief,
    Peak,
    Replay,
    resident_bytes,
)


@pytest.mark.parametrize("port", ["grpc", "metrics"])
def test_foreign_protocols_do_no_harm(port: str, attacked: Attacked) -> None:
    number = attacked.server.port if port == "grpc" else attacked.metrics_port
    for name, content in http2.foreign(attacked.info).items():
        before = resident_bytes()
        strangers = []
        for inside in (True, False, True, False, True):
            stranger = attacked.dial(number, inside=inside)
            strangers.append(stranger)
            stranger.settimeout(5)
            with contextlib.suppress(OSError):  # hung up in the middle: that is its right
                stranger.sendall(content)
        attacked.check_served()
        assert resident_bytes() - before < 64 << 20, name
        for stranger in strangers:
            stranger.close()


def test_calls_that_bring_no_request_are_given_up(attacked: Attacked, eventually: Eventually) -> None:
    token = attacked.token("monitor")
    with attacked.dial(attacked.server.port) as stranger:
        opened = b"".join(http2.headers(stream, attacked.info, token) for stream in range(1, 2 * WORKERS + 1, 2))
        stranger.sendall(http2.PREFACE + opened)
        deadline_s = time.monotonic() + 10
        while attacked.server._gate.num_arriving < WORKERS:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        # Each thread waits for a stranger's request; honest calls wait until that is given up.
        began_s = time.monotonic()
        attacked.check_served()
        assert time.monotonic() - began_s < CROWDED_S + HONEST_S
        # So many, until it is no crowd any more; the others have the time that everybody has.
        eventually(lambda: attacked.rejected("slow") > WORKERS - WORKERS // 2)
    assert attacked.rejected("slow") <= WORKERS


class Unread:
    """Connections whose calls are answered, and that take no answer."""

    def __init__(self, attacked: Attacked, how: str, num_connections: int, num_calls: int) -> None:
        self._sockets: List[socket.socket] = []
        token = attacked.token(attacked.large_role)
        for _ in range(num_connections):
            stranger = attacked.dial(attacked.server.port)
            self._sockets.append(stranger)
            stranger.settimeout(5)
            window = 0 if how == "no window" else http2.LARGEST_WINDOW
            stranger.sendall(http2.PREFACE + http2.setting(http2.INITIAL_WINDOW_SIZE, window))
            if window:
                stranger.sendall(http2.frame(http2.WINDOW_UPDATE, 0, 0, (window - 65_535).to_bytes(4, "big")))
            for number in range(num_calls):
                call = http2.call(2 * number + 1, attacked.large, attacked.large_request, token)
                with contextlib.suppress(OSError):  # it is hung up on: its right
                    stranger.sendall(call)
                time.sleep(0.002)  # a server at its limit of calls would turn them away

    def close(self) -> None:
        for stranger in self._sockets:
            stranger.close()


@pytest.mark.parametrize("how", ["no window", "no reads"])
def test_answers_that_nobody_takes_are_bounded_and_given_up(
    how: str, attacked: Attacked, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = attacked.server._gate
    peak = Peak()
    with peak:
        unread = Unread(attacked, how, num_connections=3, num_calls=128)
        monkeypatch.setattr(request_gate, "TAKE_S", 1.0)  # not before: what is given up makes room for more
        attacked.check_served()
    assert attacked.rejected("crowded") > 50, "so many that fit were no attack"
    assert peak.grown_bytes < 320 << 20  # 32 MiB and copies, and what eight threads work on; unbounded 507 and 4,555
    eventually(lambda: attacked.rejected("untaken") > 3)
    eventually(lambda: gate.held_bytes == (0, 0))
    attacked.check_served()
    unread.close()


def test_a_byte_a_second_keeps_nobody_from_the_metrics(attacked: Attacked) -> None:
    over = threading.Event()
    slow = [socket.create_connection(("127.0.0.1", attacked.metrics_port), 5) for _ in range(2 * MAX_READERS)]

    def dribble() -> None:
        while not over.wait(0.3):
            for stranger in slow:
                with contextlib.suppress(OSError):
                    stranger.sendall(b"G")

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        for _ in range(3):
            assert f"shoal_{attacked.name}" in attacked.scrape()
        assert threading.active_count() < 3 * MAX_READERS + 40
    finally:
        over.set()
        thread.join()
        for stranger in slow:
            stranger.close()


def test_watches_of_the_health_service_take_no_calls_away(attacked: Attacked) -> None:
    stub = health_pb2_grpc.HealthStub(attacked.channel_of_a_stranger())
    watches = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=20) for _ in range(8 * WORKERS)]
    attacked.check_served()
    with pytest.raises(grpc.RpcError) as refused:
        next(watches[0])
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status == health_pb2.HealthCheckResponse.SERVING


def test_a_flood_of_first_calls_to_a_replay_meets_a_bound(replay: Replay) -> None:
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


def test_floods_of_first_calls_to_a_chief_meet_bounds(tmp_path: Any, pki: Any) -> None:
    chief = Chief(tmp_path, pki)
    try:
        chief.check_served()
        accepted = {"GetManifest": 0, "Join": 0}
        sentences = set()
        before = resident_bytes()
        for number in range(400):
            actor = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, f"stranger-{number}").to_proto()
            helper = Peer(RUN_ID, experience_pb2.ROLE_HELPER, f"stranger-{number}", 5).to_proto(SCHEMA_DIGEST)
            ask = parameters_pb2.GetManifestRequest(peer=actor, role=parameters_pb2.PARAMETER_ROLE_ACT)
            for name, method, request in (
                ("GetManifest", chief.readers.GetManifest, ask),
                ("Join", chief.helpers.Join, gradients_pb2.JoinRequest(peer=helper)),
            ):
                try:
                    call_once(method, request, timeout_s=HONEST_S)
                    accepted[name] += 1
                except Refused as error:
                    sentences.add(str(error).replace(str(number), "N"))
        assert accepted == {"GetManifest": MAX_PEERS - 1, "Join": MAX_PEERS - 1}  # and the honest ones
        assert any("learner.max_peers" in sentence for sentence in sentences)
        assert any("gradients.max_helpers" in sentence for sentence in sentences)
        assert resident_bytes() - before < 32 << 20
        chief.check_served()
    finally:
        chief.stop()
