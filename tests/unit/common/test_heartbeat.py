"""The heartbeat over a real datagram socket, as systemd's."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Dict, Iterator, List

import pytest

from services.common.heartbeat import Heartbeat, Pulse
from services.common.lifecycle import Lifecycle
from tests.conftest import Eventually


class Supervisor:
    """Listens as systemd does."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(5)
        self.address = address

    def heard(self) -> List[str]:
        return self.socket.recv(4096).decode().splitlines()

    def heard_already(self) -> List[str]:
        """Everything that has been sent and not been heard."""
        lines: List[str] = []
        patience_s = self.socket.gettimeout()
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                lines += self.heard()
        self.socket.settimeout(patience_s)
        return lines

    def hear(self, line: str) -> List[str]:
        """Listen until `line` comes; returns what came before it."""
        before: List[str] = []
        while line not in (lines := self.heard()):
            before += lines
        return before


@pytest.fixture(params=["file", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Supervisor]:
    address = (
        str(tmp_path / "notify") if request.param == "file" else f"@shoal-test-{os.getpid()}-{time.monotonic_ns()}"
    )
    made = Supervisor(address)
    yield made
    made.socket.close()


def _environ(supervisor: Supervisor, watchdog_s: float = 0.0) -> Dict[str, str]:
    environ = {"NOTIFY_SOCKET": supervisor.address}
    if watchdog_s:
        environ["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
    return environ


class Service:
    progress, waiting_for, beats = 0, "", 0

    def pulse(self) -> Pulse:
        self.beats += 1
        return Pulse(self.progress, self.waiting_for, f"{self.progress} updates")


def test_ready_status_and_stopping_are_told(supervisor: Supervisor, lifecycle: Lifecycle) -> None:
    service = Service()
    Heartbeat(service.pulse, lifecycle, _environ(supervisor)).start()
    assert supervisor.heard() == ["READY=1"]
    assert supervisor.heard() == ["STATUS=0 updates"]
    lifecycle.stop("the test is over")
    assert set(supervisor.hear("STOPPING=1")) <= {"STATUS=0 updates"}  # one a second


def test_the_watchdog_is_fed_while_there_is_progress_or_a_reason(supervisor: Supervisor, lifecycle: Lifecycle) -> None:
    service = Service()
    heartbeat = Heartbeat(service.pulse, lifecycle, _environ(supervisor, 0.4))
    assert heartbeat.beat()
    assert "WATCHDOG=1" in supervisor.heard()
    assert not heartbeat.beat()  # no update since, and no reason for it
    service.progress += 1
    assert heartbeat.beat()
    service.waiting_for = "waiting for the replay at 127.0.0.1:7401"
    assert heartbeat.beat()
    assert heartbeat.beat()
    service.waiting_for = ""
    assert not heartbeat.beat()
    assert supervisor.heard_already().count("WATCHDOG=1") == 3


def test_a_stuck_service_starves_its_watchdog(
    supervisor: Supervisor, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    service = Service()
    Heartbeat(service.pulse, lifecycle, _environ(supervisor, 0.2)).start()
    assert supervisor.heard() == ["READY=1"]
    supervisor.hear("WATCHDOG=1")  # of its first progress
    beats = service.beats
    eventually(lambda: service.beats > beats + 5)
    assert "WATCHDOG=1" not in supervisor.heard_already()
    service.progress += 1
    supervisor.hear("WATCHDOG=1")


def test_a_pulse_that_fails_ends_the_process(supervisor: Supervisor, lifecycle: Lifecycle) -> None:
    def broken() -> Pulse:
        raise RuntimeError("no pulse")

    Heartbeat(broken, lifecycle, _environ(supervisor, 0.1)).start()
    assert lifecycle.stopping.wait(5)
    with pytest.raises(RuntimeError, match="no pulse"):
        lifecycle.check()


@pytest.mark.parametrize(
    "environ", [{}, {"NOTIFY_SOCKET": ""}, {"WATCHDOG_USEC": "1000000"}, {"NOTIFY_SOCKET": "/nowhere/notify"}]
)
def test_without_a_supervisor_that_listens_nothing_happens(environ: Dict[str, str], lifecycle: Lifecycle) -> None:
    Heartbeat(Service().pulse, lifecycle, environ).start()
    assert not lifecycle.stopping.wait(0.05)


def test_a_watchdog_for_another_process_is_not_fed(supervisor: Supervisor, lifecycle: Lifecycle) -> None:
    environ = {**_environ(supervisor, 0.1), "WATCHDOG_PID": "1"}
    Heartbeat(Service().pulse, lifecycle, environ).beat()
    assert supervisor.heard() == ["STATUS=0 updates"]
