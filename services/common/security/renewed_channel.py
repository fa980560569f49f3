"""A gRPC channel that outlives its certificates: it is opened anew when their files were replaced."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Type

import grpc
from typing_extensions import Self

from services.common.security.certificate_files import CertificateFiles, Certificates

_Key = Tuple[Any, ...]  # what a stub asks a method with: its name, serializers, and whether it is registered


class _Line:
    """One real channel, its methods, and how many calls are under way on it."""

    def __init__(self, address: str, options: Sequence[Tuple[str, Any]], certificates: Optional[Certificates]) -> None:
        self.certificates = certificates
        self.calls = 0
        self._methods: Dict[_Key, Any] = {}
        if certificates is None:
            self.channel = grpc.insecure_channel(address, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(certificates.ca, certificates.key, certificates.certificate)
            self.channel = grpc.secure_channel(address, credentials, options=options)

    def method(self, key: _Key) -> Any:
        """The callable that gRPC makes."""
        found = self._methods.get(key)
        if found is None:
            unary: Any = self.channel.unary_unary  # takes one more argument than its types know
            found = self._methods[key] = unary(*key)
        return found


class RenewedChannel(grpc.Channel):
    """Makes unary calls, which is all that shoal makes.

    gRPC's clients read their CA once. A call that starts after the files were replaced goes over a new connection; the
    old one is closed when the last call on it has ended.

    Methods are made once for each connection, and not when it is closed: interceptors ask for one at each call, and
    gRPC ends the process where that meets a channel that is closed.
    """

    def __init__(
        self, address: str, options: Sequence[Tuple[str, Any]], files: Optional[CertificateFiles] = None
    ) -> None:
        """Open it; it connects when first used.

        Args:
            address: HOST:PORT.
            options: of the channel.
            files: CA, and the own certificate where servers ask for one; None: no TLS.
        """
        self._address = address
        self._options = options
        self._files = files
        self._lock = threading.Lock()
        self._lines: List[_Line] = [self._open(files.now() if files else None)]  # the last is that of new calls
        self._is_closed = False

    @contextlib.contextmanager
    def borrowed(self, key: _Key) -> Iterator[Any]:
        """A method of the real channel, for the time of one call.

        Raises:
            ValueError: the channel is closed.
        """
        with self._lock:
            if self._is_closed:
                raise ValueError("a call on a closed channel")
            line = self._newest()
            method = line.method(key)
            line.calls += 1
        try:
            yield method
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
        """A callable that makes each call over the connection of that time."""
        return _Method(self, (method, request_serializer, response_deserializer, _registered_method))

    def unary_stream(self, *_arguments: Any, **_options: Any) -> Any:
        """A callable that refuses: stubs make one of each method, called or not."""

        def refuse(*_arguments: Any, **_options: Any) -> None:
            raise NotImplementedError("a channel that is renewed makes unary calls alone")

        return refuse

    stream_unary = stream_stream = unary_stream

    def subscribe(self, callback: Any, try_to_connect: Optional[bool] = False) -> None:
        """Not offered: connections come and go."""
        raise NotImplementedError("a renewed channel has no connectivity of its own")

    def unsubscribe(self, callback: Any) -> None:
        """Not offered."""
        raise NotImplementedError("a renewed channel has no connectivity of its own")

    def close(self) -> None:
        """Close all connections; calls under way are cancelled."""
        with self._lock:
            self._is_closed = True
            lines = list(self._lines)
        for line in lines:
            line.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _open(self, certificates: Optional[Certificates]) -> _Line:
        return _Line(self._address, self._options, certificates)

    def _newest(self) -> _Line:
        certificates = self._files.now() if self._files else None
        if self._lines[-1].certificates is not certificates:
            self._lines.append(self._open(certificates))
            self._hang_up()
        return self._lines[-1]

    def _hang_up(self) -> None:
        """Close connections of earlier certificates that nobody calls through."""
        for line in [line for line in self._lines[:-1] if not line.calls]:
            self._lines.remove(line)
            line.channel.close()


class _Method:
    """One method of a service, as gRPC's stubs and interceptors call it."""

    def __init__(self, channel: RenewedChannel, key: _Key) -> None:
        self._channel = channel
        self._key = key

    def __call__(self, request: Any, **options: Any) -> Any:
        """Make the call."""
        with self._channel.borrowed(self._key) as method:
            return method(request, **options)

    def with_call(self, request: Any, **options: Any) -> Any:
        """Make the call; returns the answer and the call."""
        with self._channel.borrowed(self._key) as method:
            return method.with_call(request, **options)
