"""Addresses of a run's processes on this machine: those that the user chose are checked, the others are free ones."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass
from typing import Dict, Iterator, List, Tuple

from services.common.config.load import LoadedConfig
from services.common.errors import UserError

METRICS_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Endpoints:
    """Where each process of a run listens."""

    replay: str  # HOST:PORT
    learner: str  # HOST:PORT
    metrics: Dict[str, int]  # port by process name


def choose_endpoints(loaded: LoadedConfig) -> Endpoints:
    """Pick the run's addresses: a port that was set must be free, one that was not set is any free one.

    Raises:
        UserError: a port that was set is busy, or given twice.
    """
    config = loaded.config
    with _reservations() as reserve:
        replay = _address(reserve, loaded, "replay.addresses", config.replay.addresses[0])
        learner = _address(reserve, loaded, "learner.address", config.learner.address)
        metrics: Dict[str, int] = {}
        for name in ("replay", "learner", "evaluator"):
            key = f"{name}.metrics_port"
            if name != "evaluator" or config.evaluator.enabled:
                wanted = getattr(config, name).metrics_port if loaded.is_set(key) else 0
                metrics[name] = reserve.take(key, METRICS_HOST, wanted)
        for role, section in (("helper", config.helper), ("actor", config.actor)):
            key = f"{role}.metrics_port"
            first = section.metrics_port if loaded.is_set(key) else 0
            for index in range(section.count):
                # One port cannot serve all of them: those after the first count up from it.
                metrics[f"{role}-{index}"] = reserve.take(key, METRICS_HOST, first + index if first else 0)
    return Endpoints(replay, learner, metrics)


class _Reservations:
    """Ports held by bound sockets until all are chosen, so that no port is given out twice."""

    def __init__(self) -> None:
        self._held: Dict[Tuple[str, int], str] = {}
        self.sockets: List[socket.socket] = []

    def take(self, key: str, host: str, port: int) -> int:
        """Hold `port` of `host` (0: any free one) for the setting `key` and return its number."""
        if (host, port) in self._held:
            raise UserError(f"{key} and {self._held[host, port]} both ask for port {port}; give each its own")
        if port > 65535:
            raise UserError(f"{key} counts up to port {port}, beyond 65535; choose a lower one")
        bare = host.strip("[]")
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        holder = socket.socket(family, socket.SOCK_STREAM)
        self.sockets.append(holder)
        # Connections of an earlier run that linger in TIME_WAIT do not make a port busy; a listener does.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((bare, port))
            holder.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UserError(
                    f"{key}: port {port} of {host} is busy; stop the process that listens there, or choose another "
                    f"port (when {key} is not set, a free one is taken)"
                ) from None
            raise UserError(f"{key}: cannot listen on {host}:{port}: {error.strerror}") from None
        taken = int(holder.getsockname()[1])
        self._held[host, taken] = key
        return taken


@contextlib.contextmanager
def _reservations() -> Iterator[_Reservations]:
    reservations = _Reservations()
    try:
        yield reservations
    finally:
        for holder in reservations.sockets:
            holder.close()


def _address(reserve: _Reservations, loaded: LoadedConfig, key: str, address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{reserve.take(key, host, int(port) if loaded.is_set(key) else 0)}"
