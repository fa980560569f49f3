"""Fixtures of all tests: servers on free ports, a process's life, a clock and a log that stand in."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any, Callable, Iterator, List

import hypothesis
import pytest

from services.common.lifecycle import Lifecycle
from services.common.rpc import Server
from tests.fakes import FakeClock, FakeLog

Serve = Callable[[Any, Any], str]
Eventually = Callable[[Callable[[], Any]], None]

# An example that is slow because the machine is busy proves nothing; a hang meets pytest's timeout. The examples are
# the same each time; those of "explore" are new ones: make test ARGS=--hypothesis-profile=explore
_SLOW_IS_FINE = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("shoal", deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE)
hypothesis.settings.register_profile("explore", deadline=None, derandomize=False, suppress_health_check=_SLOW_IS_FINE)
hypothesis.settings.load_profile("shoal")


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lifecycle() -> Iterator[Lifecycle]:
    """A life that ends with the test: its threads must all end when they are asked to."""
    life = Lifecycle()
    yield life
    life.stop("the test is over")
    for thread in life._threads:
        thread.join(15)
        assert not thread.is_alive(), f"thread {thread.name} does not end"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve (`add_…_to_server`, servicer) on a free port and return the address; stopped with the test."""
    servers: List[Server] = []

    def start(register: Any, servicer: Any) -> str:
        server = Server("127.0.0.1:0", max_workers=8, option_name="test.address")
        servers.append(server)
        server.add(register, servicer)
        server.start()
        return server.address

    yield start
    for server in servers:
        server.stop(0)


@pytest.fixture
def free_address() -> Iterator[Callable[[], str]]:
    """An address where nobody listens yet: for what must be known before its server is there.

    A socket that does not listen keeps the port from others; a server that reuses addresses, as gRPC's, binds beside.
    """
    with contextlib.ExitStack() as kept:

        def find() -> str:
            sock = kept.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{sock.getsockname()[1]}"

        yield find


@pytest.fixture
def eventually() -> Eventually:
    """Wait, for ten seconds at most, until something holds."""

    def wait(holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline, "it does not come true"
            time.sleep(0.005)

    return wait
