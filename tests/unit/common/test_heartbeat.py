"""The heartbeat over a real datagram socket, as systemd's."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Dict, Iterator, List

import pytest

from services.common.heartbeat import Heartbeat, Pulse
from services.common.lifecycle import Lifecycle


class Supervisor:
    """Listens as systemd does."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(5)
        self.address = address

    def heard(self) -> List[str]:
        return self.socket.recv(4096).decode().splitlines()

    def heard_by(self, deadline_s: float) -> List[str]:
        """Everything that comes in within `deadline_s`."""
        lines: List[str] = []
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            self.socket.settimeout(max(0.001, until - time.monotonic()))
            try:
                lines += self.heard()
            except (socket.timeout, BlockingIOError):
                break
        return lines


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
    progress, waiting_for = 0, ""

    def pulse(self) -> Pulse:
        return Pulse(self.progress, self.waiting_for, f"{self.progress} updates")


def test_ready_status_and_stopping_are_told(supervisor: Supervisor, lifecycle: Lifecycle) -> None:
    service = Service()
    Heartbeat(service.pulse, lifecycle, _environ(supervisor)).start()
    assert supervisor.heard() == ["READY=1"]
    assert supervisor.heard() == ["STATUS=0 updates"]
    lifecycle.stop("the test is over")
    assert supervisor.heard()[-1] == "STOPPING=1"


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
    assert supervisor.heard_by(0.3).count("WATCHDOG=1") == 3


def test_a_stuck_service_starves_its_watchdog(supervisor: Supervisor, lifecycle: Lifecycle) -> None:
    service = Service()
    Heartbeat(service.pulse, lifecycle, _environ(supervisor, 0.2)).start()
    assert supervisor.heard() == ["READY=1"]
    assert "WATCHDOG=1" in supervisor.heard()
    supervisor.heard_by(0.3)
    assert "WATCHDOG=1" not in supervisor.heard_by(0.5)
    service.progress += 1
    assert "WATCHDOG=1" in supervisor.heard_by(0.5)


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
