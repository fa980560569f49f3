"""The endpoint that Prometheus reads, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable, Iterator, Tuple

import pytest
from prometheus_client import CollectorRegistry, Gauge

from services.common.metrics_server import MAX_READERS, PATIENCE_S, SLOWEST_S, MetricsServer, _Readers
from services.common.security.transport import LISTEN_IN_THE_CLEAR, ServerSecurity, server_security
from tests.conftest import Eventually
from tests.fakes import FakeClock
from tests.unit.common.security.conftest import MakeSection, folder, section

__all__ = ["folder", "section"]


def _serving(security: ServerSecurity) -> MetricsServer:
    registry = CollectorRegistry()
    Gauge("depth", "A depth.", registry=registry).set(7)
    server = MetricsServer("127.0.0.1", 0, "x.metrics_port", registry, security)
    server.start()
    return server


@pytest.fixture
def plain() -> Iterator[MetricsServer]:
    server = _serving(LISTEN_IN_THE_CLEAR)
    yield server
    server.stop()


@pytest.fixture
def guarded(section: MakeSection) -> Iterator[MetricsServer]:
    server = _serving(server_security(section(), "127.0.0.1:0"))
    yield server
    server.stop()


@pytest.fixture
def nobody_is_slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[MetricsServer], None]:
    """Call it, and a server takes no reader for a slow one: its clock stands still."""
    return lambda server: monkeypatch.setattr(server._server._readers, "_clock", lambda: 0.0)


def _read(url: str, context: Any = None, token: str = "") -> Tuple[int, str]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_on_loopback_anybody_reads(plain: MetricsServer) -> None:
    status, text = _read(f"http://127.0.0.1:{plain.port}/metrics")
    assert (status, "depth 7.0" in text) == (200, True)


def test_with_tokens_monitor_and_operator_read_and_nobody_else(guarded: MetricsServer, folder: Path) -> None:
    url = f"https://127.0.0.1:{guarded.port}/metrics"
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    answers = {
        role: _read(url, context, (folder / f"{role}.token").read_text().strip())
        for role in ("monitor", "operator", "actor", "learner", "evaluator")
    }
    assert [answers[role][0] for role in ("monitor", "operator")] == [200, 200]
    assert "depth 7.0" in answers["monitor"][1]
    for role in ("actor", "learner", "evaluator"):
        assert answers[role] == (403, f"these metrics are for a token of monitor, not of {role}\n")
    for token in ("", "guess"):
        assert _read(url, context, token) == (401, "these metrics are for a token of monitor or operator\n")
    with pytest.raises(urllib.error.URLError):  # a reader that does not know the CA
        _read(url, ssl.create_default_context(), "x")


def test_a_peer_that_says_nothing_or_nonsense_holds_nobody_up(
    guarded: MetricsServer, folder: Path, nobody_is_slow: Callable[[MetricsServer], None]
) -> None:
    nobody_is_slow(guarded)
    silent = [socket.create_connection(("127.0.0.1", guarded.port), 5) for _ in range(MAX_READERS - 1)]
    silent[0].sendall(b"GET / HTTP/1.0\r\n\r\n")  # in the clear
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    token = (folder / "monitor.token").read_text().strip()
    assert _read(f"https://127.0.0.1:{guarded.port}/metrics", context, token)[0] == 200
    for connection in silent:
        connection.close()


def test_readers_are_bounded(
    plain: MetricsServer, nobody_is_slow: Callable[[MetricsServer], None], eventually: Eventually
) -> None:
    nobody_is_slow(plain)
    others = set(threading.enumerate())
    silent = [socket.create_connection(("127.0.0.1", plain.port), 5) for _ in range(3 * MAX_READERS)]
    eventually(lambda: sum(_was_hung_up_on(connection) for connection in silent) == 2 * MAX_READERS)
    assert len(set(threading.enumerate()) - others) == MAX_READERS
    for connection in silent:
        connection.close()
    eventually(lambda: _tried(plain) == 200)


def test_a_burst_of_readers_finds_places_in_the_queue() -> None:
    server = MetricsServer("127.0.0.1", 0, "x.metrics_port", CollectorRegistry(), LISTEN_IN_THE_CLEAR)
    with contextlib.ExitStack() as opened:
        opened.callback(server.stop)
        for _ in range(100):  # nobody is let in yet
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port), 0.9))


def _was_hung_up_on(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def _tried(server: MetricsServer) -> int:
    try:
        return _read(f"http://127.0.0.1:{server.port}/metrics")[0]
    except OSError:
        return 0


def test_a_slow_reader_makes_room_and_none_stays_for_ever(clock: FakeClock) -> None:
    readers = _Readers(clock)
    pairs = [socket.socketpair() for _ in range(MAX_READERS + 2)]
    try:
        for key in range(MAX_READERS):
            assert readers.enter(key, pairs[key][0])
        assert not readers.enter(MAX_READERS, pairs[MAX_READERS][0])  # all of them have just come
        clock.now_s += PATIENCE_S + 0.1
        assert readers.enter(MAX_READERS, pairs[MAX_READERS][0])
        assert pairs[0][1].recv(1) == b""  # it was hung up on
        for key in range(MAX_READERS):
            readers.leave(key)
        clock.now_s += SLOWEST_S + 0.1
        readers.end_slow()
        assert pairs[MAX_READERS][1].recv(1) == b""
        readers.leave(MAX_READERS)
        assert readers.enter(0, pairs[MAX_READERS + 1][0])
        readers.leave(0)
    finally:
        for pair in pairs:
            for one in pair:
                one.close()
