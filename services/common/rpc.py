"""gRPC in one place: options of both ends, servers that refuse a busy port, calls that retry with full jitter."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import threading
import time
from concurrent import futures
from typing import Any, Callable, List, Optional, Tuple, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.common.call_observer import CallObserver, Observe
from services.common.errors import UserError
from services.common.log import Log
from services.common.request_gate import RequestGate
from services.common.security.transport import CALL_IN_THE_CLEAR, LISTEN_IN_THE_CLEAR, ClientSecurity, ServerSecurity
from services.common.waits import Held

MAX_MESSAGE_BYTES = 256 * 1024 * 1024  # alike on both ends, so that an oversize message fails where it is made
MAX_HELD_BYTES = 4 * MAX_MESSAGE_BYTES  # of requests under way, and of answers not taken; ours come to a tenth of it

_MESSAGE_OPTIONS: List[Tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # What gRPC packed stays packed, and is no message: some kilobytes would become 256 MiB. Without the algorithms gRPC
    # would refuse it too, but with a line on stderr for each of a stranger's calls.
    ("grpc.per_message_decompression", 0),
]
CHANNEL_OPTIONS: List[Tuple[str, int]] = [
    *_MESSAGE_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # a channel is a connection of its own
    ("grpc.enable_http_proxy", 0),  # peers are hosts of ours: a proxy for the web must not come between
    ("grpc.initial_reconnect_backoff_ms", 100),
    # How long one attempt to connect may take, whatever its name says: TLS and HTTP/2 take several round trips. Not
    # longer, since within an attempt the kernel repeats a lost packet after 1, 2 and 4 s: a mended cable would wait.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1000),  # gRPC's own default waits two minutes for a restarted server
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]
SERVER_OPTIONS: List[Tuple[str, int]] = [
    *_MESSAGE_OPTIONS,
    ("grpc.so_reuseport", 0),  # else a second server binds a busy port in silence
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Keepalive asks while a call is under way only: a peer that froze or vanished between two calls would keep its
    # connection for good. Who was idle and calls again connects anew. A shorter wait for pings would end transfers over
    # slow links, whose answers stand behind the data.
    ("grpc.max_connection_idle_ms", 20_000),  # gRPC looks at intervals of that length: at most twice as long
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_concurrent_streams", 256),  # of one connection; further calls wait at the caller's
    ("grpc.server_handshake_timeout_ms", 10_000),  # who connects and says nothing keeps its socket for no longer
]

MAX_CONNECTIONS = 4096  # of a server; fewer where the process may open fewer files
PATIENCE_S = 5.0  # of a wait before it is a warning

RETRIED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # a server at its limit of calls; but an oversize message stays one
)
REFUSALS = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)

Response = TypeVar("Response")


class Stopped(Exception):
    """The process was asked to end while it waited."""


class Refused(UserError):
    """The peer understood the call and will not do it; the message is its reason."""

    is_refusal = True


class TokenRefused(Refused):
    """The peer does not know this process's token, or wants one."""


class Unavailable(Exception):
    """The peer did not answer in time; the call may be repeated."""


def connect(address: str, security: ClientSecurity = CALL_IN_THE_CLEAR) -> grpc.Channel:
    """Open a channel; it connects when first used, and again after each break."""
    return security.channel(address, CHANNEL_OPTIONS)


def call_once(method: Callable[..., Response], request: Any, *, timeout_s: float) -> Response:
    """Make one call.

    Raises:
        Unavailable: no answer in time; the call may or may not have been carried out.
        Refused: the peer said no, or the message is too large; repeating it is of no use.
        TokenRefused: likewise, for want of a token that the peer knows.
    """
    try:
        return method(request, timeout=timeout_s)
    except grpc.RpcError as error:
        code, details = _told_by(error)
        is_oversize = code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details
        if code in RETRIED and not is_oversize:
            error.__traceback__ = None  # gRPC's interceptors keep the error in one of these frames: a cycle too
            raise Unavailable(f"{code.name.lower()}: {details}") from None
        if code == grpc.StatusCode.UNAUTHENTICATED:
            raise TokenRefused(details) from None
        if code in REFUSALS or is_oversize:
            error.__traceback__ = None
            raise Refused(details) from None
        raise


def _told_by(error: Any) -> Tuple[grpc.StatusCode, str]:
    """Code and details of a unary call's error, which is its grpc.Call too.

    Apart, for a variable beside `error` would be a cycle through the frame: it and all that its callers hold would stay
    until the collector has looked at everything, which takes hours where objects are many and old.
    """
    code: grpc.StatusCode = error.code()
    return code, error.details() or code.name


class Caller:
    """Calls of one process to one peer, repeated until they are answered or the process stops.

    While a call is being repeated, `waiting_for` holds a sentence and `held` is entered. A wait that lasts is a warning
    with its reason; until then it may be that the peer is only starting. A token that the peer knew and knows no more
    was withdrawn: that is waited out too, since the file of the token may be replaced at any time.
    """

    def __init__(
        self,
        peer_name: str,
        address: str,
        stopping: threading.Event,
        log: Log,
        *,
        security: ClientSecurity = CALL_IN_THE_CLEAR,
        patience_s: float = PATIENCE_S,
        held: Held = contextlib.nullcontext,
    ) -> None:
        self.channel = connect(address, security)
        self.waiting_for = ""
        self._peer = f"{peer_name} at {address}"
        self._stopping = stopping
        self._log = log
        self._patience_s = patience_s
        self._held = held
        self._has_warned = False
        self._was_let_in = False
        self._rng = random.Random()  # once: it takes its seed from the system, which no call should wait for

    def call(self, method: Callable[..., Response], request: Any, *, timeout_s: float) -> Response:
        """Repeat `request` until it is answered.

        Raises:
            Refused: as `call_once`; not in a stop, where it is a warning.
            Stopped: the process is to end.
        """
        backoff = Backoff(self._rng)
        since = time.monotonic()
        with contextlib.ExitStack() as waiting:
            is_held = False
            while not self._stopping.is_set():
                try:
                    response = call_once(method, request, timeout_s=timeout_s)
                except Refused as error:
                    if not (self._was_let_in and isinstance(error, TokenRefused)):
                        self._check_stop(error)
                        raise
                    reason, more = str(error), f": {error}"
                except Unavailable as error:
                    reason, more = str(error), ""
                else:
                    self._was_let_in = True
                    if self.waiting_for:
                        self._log.info(f"the {self._peer} is there", waited_s=round(time.monotonic() - since, 1))
                        self.waiting_for = ""
                        self._has_warned = False
                    return response
                if not is_held:
                    is_held = True
                    waiting.enter_context(self._held())
                self._say(time.monotonic() - since, reason, more)
                self._stopping.wait(backoff.next_s())
        raise Stopped

    def _check_stop(self, refusal: Refused) -> None:
        """Raise Stopped if the process is to end: a refusal that comes then is nobody's to mend."""
        if self._stopping.is_set():
            self._log.warning(f"the {self._peer} refused the last call", reason=str(refusal))
            raise Stopped from None

    def _say(self, waited_s: float, reason: str, more: str = "") -> None:
        was_waiting, self.waiting_for = bool(self.waiting_for), f"waiting for the {self._peer}{more}"
        if waited_s >= self._patience_s and not self._has_warned:
            self._has_warned = True
            self._log.warning(self.waiting_for, waited_s=round(waited_s, 1), reason=reason)
        elif not was_waiting:
            self._log.info(self.waiting_for)

    def close(self) -> None:
        """Close the channel; calls under way are cancelled."""
        self.channel.close()


class Backoff:
    """Full jitter: each wait is uniform in [0, min(limit, first * 2^attempt)]: peers do not come back at once."""

    def __init__(self, rng: random.Random, first_s: float = 0.1, limit_s: float = 2.0) -> None:
        self._rng = rng
        self._ceiling_s = first_s
        self._limit_s = limit_s

    def next_s(self) -> float:
        wait_s = self._rng.uniform(0, self._ceiling_s)
        self._ceiling_s = min(self._limit_s, self._ceiling_s * 2)
        return wait_s


def _say_nothing(_word: str) -> None:
    """Count no rejected calls."""


class Server:
    """A gRPC server with health, bound to exactly one address."""

    def __init__(
        self,
        address: str,
        *,
        max_workers: int,
        option_name: str,
        max_calls: int = 0,
        max_held_bytes: int = MAX_HELD_BYTES,
        security: ServerSecurity = LISTEN_IN_THE_CLEAR,
        on_rejected: Callable[[str], None] = _say_nothing,
        observe: Optional[Observe] = None,
    ) -> None:
        """Bind `address`; port 0 takes any free one.

        Args:
            address: HOST:PORT.
            max_workers: threads; each call holds one while it runs.
            max_calls: under way at once, those that wait for a thread included; more are told to come again. 0: four
                for each thread.
            max_held_bytes: of requests that are worked on, and likewise of answers that callers have not taken; who
                comes beyond is told to come again.
            option_name: what the user would change, named in the error.
            security: certificate and tokens.
            on_rejected: told why a call was rejected at the door, one word.
            observe: told method, code and seconds of each call that ends.

        Raises:
            UserError: the port is taken, or the address cannot be bound.
        """
        self._pool = futures.ThreadPoolExecutor(max_workers=max_workers, thread_name_prefix="rpc")
        self._gate = RequestGate(max_workers, on_rejected, max_held_bytes=max_held_bytes)
        self._server = grpc.server(
            self._pool,
            options=[*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", _max_connections())],
            maximum_concurrent_rpcs=max_calls or 4 * max_workers,
            interceptors=[
                self._gate,
                *([CallObserver(observe)] if observe else []),  # it sees what the guard rejects too
                *security.interceptors(on_rejected),
            ],
        )
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        host, _, port = address.rpartition(":")
        self.port = 0
        if _is_free(host, int(port)):
            with contextlib.suppress(RuntimeError):  # taken since
                credentials = security.credentials()
                self.port = (
                    self._server.add_secure_port(address, credentials)
                    if credentials
                    else self._server.add_insecure_port(address)
                )
        if self.port == 0:
            raise UserError(
                f"cannot listen on {address}: is another process using port {port}? "
                f"Choose another with {option_name}, or stop that process"
            )
        self.address = f"{host}:{self.port}"

    def add(self, register: Callable[[Any, grpc.Server], None], servicer: Any) -> None:
        """Add a service by its generated `add_…_to_server`."""
        register(servicer, self._server)

    def start(self) -> None:
        self._gate.start()
        self._server.start()
        self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace_s: float = 2.0) -> None:
        """Refuse new calls, give those under way `grace_s`, then end them."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait(grace_s + 2)
        self._gate.stop()
        self._pool.shutdown(wait=False)  # gRPC leaves the threads of a pool that it was given


def _max_connections() -> int:
    """Connections that leave half of the files which the process may open to other ends."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if limit == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, limit // 2))


def _is_free(host: str, port: int) -> bool:
    """Whether the port can be bound; asked before gRPC, which prints lines of its own about one that cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError:
            return False
    return True


def refuse(context: grpc.ServicerContext, sentence: Optional[str]) -> None:
    """End the call with FAILED_PRECONDITION and `sentence`, if there is one."""
    if sentence:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, sentence)
