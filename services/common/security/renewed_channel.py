"""A gRPC channel over TLS that outlives its certificates: it is opened anew when the files were replaced."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any, Iterator, List, Optional, Sequence, Tuple, Type

import grpc

from services.common.security.certificate_files import CertificateFiles, Certificates


class _Line:
    """One real channel, and how many calls are under way on it."""

    def __init__(self, address: str, options: Sequence[Tuple[str, Any]], certificates: Certificates) -> None:
        self.certificates = certificates
        credentials = grpc.ssl_channel_credentials(certificates.ca, certificates.key, certificates.certificate)
        self.channel = grpc.secure_channel(address, credentials, options=options)
        self.calls = 0


class RenewedChannel(grpc.Channel):
    """Makes unary calls, which is all that shoal makes.

    gRPC's clients read their CA once. A call that starts after the files were replaced goes over a new connection; the
    old one is closed when the last call on it has ended.
    """

    def __init__(self, address: str, options: Sequence[Tuple[str, Any]], files: CertificateFiles) -> None:
        """Open it; it connects when first used.

        Args:
            address: HOST:PORT.
            options: of the channel.
            files: CA, and the own certificate where servers ask for one.
        """
        self._address = address
        self._options = options
        self._files = files
        self._lock = threading.Lock()
        self._lines: List[_Line] = [_Line(address, options, files.now())]  # the last is that of new calls
        self._is_closed = False

    @contextlib.contextmanager
    def line(self) -> Iterator[grpc.Channel]:
        """The real channel, for the time of one call."""
        with self._lock:
            line = self._newest()
            line.calls += 1
        try:
            yield line.channel
        finally:
            with self._lock:
                line.calls -= 1
                self._hang_up()

    def unary_unary(
        self,
        method: str,
        request_serializer: Optional[Any] = None,
        response_deserializer: Optional[Any] = None,
        _registered_method: Optional[bool] = False,
    ) -> Any:
        """A callable that makes each call over the line of that time."""
        return _Method(self, (method, request_serializer, response_deserializer, _registered_method))

    def unary_stream(self, *_arguments: Any, **_options: Any) -> Any:
        """Not offered."""
        raise NotImplementedError("unary calls alone")

    stream_unary = stream_stream = unary_stream

    def subscribe(self, callback: Any, try_to_connect: Optional[bool] = False) -> None:
        """Not offered: connections come and go."""
        raise NotImplementedError("a renewed channel has no connectivity of its own")

    def unsubscribe(self, callback: Any) -> None:
        """Not offered."""
        raise NotImplementedError("a renewed channel has no connectivity of its own")

    def close(self) -> None:
        """Close all lines; calls under way are cancelled."""
        with self._lock:
            self._is_closed = True
            lines = list(self._lines)
        for line in lines:
            line.channel.close()

    def __enter__(self) -> RenewedChannel:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _newest(self) -> _Line:
        certificates = self._files.now()
        if self._lines[-1].certificates is not certificates and not self._is_closed:
            self._lines.append(_Line(self._address, self._options, certificates))
            self._hang_up()
        return self._lines[-1]

    def _hang_up(self) -> None:
        """Close lines of earlier certificates that nobody calls through."""
        for line in [line for line in self._lines[:-1] if not line.calls]:
            self._lines.remove(line)
            line.channel.close()


class _Method:
    """One method of a service, as gRPC's stubs and interceptors call it."""

    def __init__(self, channel: RenewedChannel, arguments: Tuple[Any, ...]) -> None:
        self._channel = channel
        self._arguments = arguments

    def __call__(self, request: Any, **options: Any) -> Any:
        """Make the call."""
        with self._channel.line() as line:
            return self._on(line)(request, **options)

    def with_call(self, request: Any, **options: Any) -> Any:
        """Make the call; returns the answer and the call."""
        with self._channel.line() as line:
            return self._on(line).with_call(request, **options)

    def _on(self, line: Any) -> Any:
        return line.unary_unary(*self._arguments)
