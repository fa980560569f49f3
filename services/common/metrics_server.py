"""The endpoint that Prometheus reads: HTTP or HTTPS, with a token where the services ask for tokens."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from socketserver import ThreadingMixIn
from typing import Any, Callable, Dict, Iterable, List, Tuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from services.common.errors import UserError
from services.common.security.guard import BEARER
from services.common.security.transport import ServerSecurity

READERS = ("monitor", "operator")  # roles whose tokens may read metrics
SLOWEST_S = 10.0  # a reader that takes longer to ask and to take the answer, all in all, is let go
MAX_READERS = 16  # at once; each is a thread
PATIENCE_S = 1.0  # a reader that takes longer makes room where there is none: one of ours takes some milliseconds

StartResponse = Callable[[str, List[Tuple[str, str]]], Any]


class _Handler(WSGIRequestHandler):
    """Reads one request; without a line in the log for each."""

    timeout = SLOWEST_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name of the base class)
        """Say nothing."""


class _Readers:
    """The connections that are served now: so many at once, each for so long, and the slowest leave for others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since: Dict[int, Tuple[float, socket.socket]] = {}  # by key; those that are ended are not there
        self._num_ending = 0  # whose threads have not noticed yet

    def enter(self, key: int, connection: socket.socket) -> bool:
        """Let a connection in if there is room, or if one that was slow can make some."""
        now_s = self._clock()
        with self._lock:
            self._end_slow(now_s, SLOWEST_S)
            if len(self._since) >= MAX_READERS:
                self._end_slow(now_s, PATIENCE_S, most=1)
            if len(self._since) >= MAX_READERS or self._num_ending >= MAX_READERS:
                return False
            self._since[key] = (now_s, connection.dup())  # its own would be gone, or another's, once it is closed
            return True

    def leave(self, key: int) -> None:
        """Note that a connection is over."""
        with self._lock:
            entry = self._since.pop(key, None)
            if entry is None:
                self._num_ending -= 1
            else:
                entry[1].close()

    def end_slow(self) -> None:
        """End the connections that take longer than any may."""
        with self._lock:
            self._end_slow(self._clock(), SLOWEST_S)

    def _end_slow(self, now_s: float, patience_s: float, most: int = MAX_READERS) -> None:
        """End those who have taken longer than `patience_s`, the earliest first, and no more than `most`."""
        for key, (since_s, connection) in list(self._since.items())[:most]:
            if now_s - since_s > patience_s:
                del self._since[key]
                self._num_ending += 1
                with contextlib.suppress(OSError), connection:
                    connection.shutdown(socket.SHUT_RDWR)  # its thread finds an end, and goes


class _Server(ThreadingMixIn, WSGIServer):
    """A thread a request, bounded; the TLS handshake is made on it, where a slow peer holds up nobody else."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128  # a connection that finds no place in the queue tries again after 1, 3 and 7 s

    def __init__(self, address: Tuple[str, int], family: socket.AddressFamily, security: ServerSecurity) -> None:
        self.address_family = family
        self._security = security
        self._readers = _Readers()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind, without asking a name server who this machine is."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread if there is room for one, else hang up."""
        if not self._readers.enter(id(request), request):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Look at the clock, several times a second."""
        self._readers.end_slow()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        key = id(request)  # which the thread keeps to its end
        try:
            request.settimeout(SLOWEST_S)
            context = self._security.ssl_context()  # that of now: a certificate may have been replaced
            if context is not None:
                request = context.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except (OSError, ssl.SSLError):  # a peer that spoke something else, or went away
            self.shutdown_request(request)
        finally:
            self._readers.leave(key)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away in the middle is no news."""


class MetricsServer:
    """Serves a registry on a thread of its own."""

    def __init__(
        self, host: str, port: int, option_name: str, registry: CollectorRegistry, security: ServerSecurity
    ) -> None:
        """Bind.

        Args:
            host: name or address of this machine; IPv6 may stand in brackets.
            port: 0 takes any free one.
            option_name: what the user would change, named in the error.
            registry: what is served.
            security: TLS, and tokens.

        Raises:
            UserError: the port is taken, or the host's name is none of this machine.
        """
        self._app = make_wsgi_app(registry)
        self._security = security
        bare = host.strip("[]")
        try:
            family, *_, address = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)[0]
            self._server = _Server((str(address[0]), int(address[1])), family, security)
        except OSError as error:
            raise UserError(
                f"cannot serve metrics on {host}:{port}: {error}; choose another with {option_name}"
            ) from None
        self._server.set_app(self._answer)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; harmless before `start`."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def _answer(self, environ: Dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        book = self._security.book
        if book is not None:
            header: str = environ.get("HTTP_AUTHORIZATION", "")
            role = book.role_of(header[len(BEARER) :]) if header.startswith(BEARER) else None
            if role not in READERS:
                what = "a token of monitor or operator" if role is None else f"a token of monitor, not of {role}"
                start_response(
                    "401 Unauthorized" if role is None else "403 Forbidden",
                    [("Content-Type", "text/plain; charset=utf-8"), ("WWW-Authenticate", "Bearer")],
                )
                return [f"these metrics are for {what}\n".encode()]
        answer: Iterable[bytes] = self._app(environ, start_response)
        return answer
