"""What a service tells the one that supervises it: that it is ready, what it does, and that it is not stuck.

The protocol is systemd's sd_notify(3): datagrams of KEY=VALUE lines to the socket that NOTIFY_SOCKET names. A watchdog
is fed only by what may go on: a service that makes progress, or that waits and can say for what. One that does neither
is restarted by whoever set WATCHDOG_USEC.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass
from typing import Callable, Mapping, Optional

from services.common.lifecycle import Lifecycle

SOCKET, WATCHDOG, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
STATUS_PERIOD_S = 1.0
BEATS_A_WATCHDOG = 4  # so that one that comes late does no harm


@dataclass(frozen=True)
class Pulse:
    """How a service is right now."""

    progress: int  # a count that rises while the service works
    waiting_for: str  # one sentence while it waits with a reason; empty otherwise
    status: str  # one line for people


class Heartbeat:
    """Feeds the watchdog from a thread, as long as there is a reason to."""

    def __init__(
        self,
        pulse: Callable[[], Pulse],
        lifecycle: Lifecycle,
        environ: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; without a supervisor that listens nothing is ever sent.

        Args:
            pulse: how the service is; called from the heartbeat's thread.
            lifecycle: of the process.
            environ: holds what the supervisor asks for.
            clock: monotonic.
        """
        self._pulse = pulse
        self._lifecycle = lifecycle
        self._clock = clock
        self._address = environ.get(SOCKET, "")
        self._watchdog_s = _watchdog_s(environ)
        self._seen: Optional[int] = None
        self._status_at: Optional[float] = None

    def start(self) -> None:
        """Say that the service is ready, and begin to beat."""
        if not self._address:
            return
        self._send("READY=1")
        self._lifecycle.on_stop(lambda: self._send("STOPPING=1"))
        self._lifecycle.spawn("heartbeat", self._run)

    def beat(self) -> bool:
        """Tell how the service is; returns whether the watchdog was fed."""
        pulse = self._pulse()
        is_alive = pulse.progress != self._seen or bool(pulse.waiting_for)
        self._seen = pulse.progress
        lines = []
        now_s = self._clock()
        if self._status_at is None or now_s - self._status_at >= STATUS_PERIOD_S:
            self._status_at = now_s
            lines.append(f"STATUS={pulse.waiting_for or pulse.status}".replace("\n", " "))
        if is_alive and self._watchdog_s:
            lines.append("WATCHDOG=1")
        if lines:
            self._send("\n".join(lines))
        return is_alive

    def _run(self) -> None:
        period_s = min(STATUS_PERIOD_S, self._watchdog_s / BEATS_A_WATCHDOG) if self._watchdog_s else STATUS_PERIOD_S
        while not self._lifecycle.stopping.wait(period_s):
            self.beat()

    def _send(self, text: str) -> None:
        # A supervisor that went away is no reason to stop: the next one asks for a new life anyway.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(1.0)
            sender.sendto(text.encode(), _unix_address(self._address))


def _unix_address(address: str) -> str:
    """An abstract socket is written with an @ in place of its NUL."""
    return "\0" + address[1:] if address.startswith("@") else address


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """Seconds until a supervisor loses patience; 0: it does not watch this process."""
    text = environ.get(WATCHDOG, "")
    if not text.isdecimal() or environ.get(WATCHDOG_PID, str(os.getpid())) != str(os.getpid()):
        return 0.0
    return int(text) / 1e6
