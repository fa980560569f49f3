"""A link with a long round trip and a low rate, as between two sites: a relay in front of a real server."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from typing import List, Tuple

from typing_extensions import Self

PIECE_BYTES = 1460  # what one packet carries


class SlowLink:
    """Relays connections to a local port; `with` ends it."""

    def __init__(self, port: int, *, round_trip_s: float, bytes_per_s: float) -> None:
        """Listen on a free port, `address`.

        Args:
            port: where the server listens, on loopback.
            round_trip_s: a packet takes half of it; opening a connection takes one more, as TCP's handshake does.
            bytes_per_s: in each direction of a connection.
        """
        self._port = port
        self._round_trip_s = round_trip_s
        self._bytes_per_s = bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: List[socket.socket] = [self._listener]
        self.num_connections = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="slow-link", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            far = socket.create_connection(("127.0.0.1", self._port))
            self._sockets += [near, far]
            opened_s = time.monotonic() + self._round_trip_s
            for source, sink in ((near, far), (far, near)):
                _Direction(source, sink, self._round_trip_s / 2, self._bytes_per_s, opened_s).start()


class _Direction:
    """One way of one connection."""

    def __init__(
        self, source: socket.socket, sink: socket.socket, delay_s: float, bytes_per_s: float, opened_s: float
    ) -> None:
        self._source, self._sink = source, sink
        self._delay_s, self._bytes_per_s = delay_s, bytes_per_s
        self._free_s = opened_s  # when the wire has carried all before
        self._on_the_way: queue.Queue[Tuple[float, bytes]] = queue.Queue()

    def start(self) -> None:
        for target in (self._take, self._give):
            threading.Thread(target=target, name="slow-link", daemon=True).start()

    def _take(self) -> None:
        data = b"more"
        while data:
            try:
                data = self._source.recv(PIECE_BYTES)
            except OSError:
                data = b""
            self._free_s = max(self._free_s, time.monotonic()) + len(data) / self._bytes_per_s
            self._on_the_way.put((self._free_s + self._delay_s, data))

    def _give(self) -> None:
        while True:
            arrives_s, data = self._on_the_way.get()
            time.sleep(max(0.0, arrives_s - time.monotonic()))
            with contextlib.suppress(OSError):
                if data:
                    self._sink.sendall(data)
                else:
                    self._sink.shutdown(socket.SHUT_WR)
            if not data:
                return
