"""TLS of both ends: what a process needs to call, and what it needs to listen, made of the run file's `[security]`."""

from __future__ import annotations

import os
import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

import grpc

from services.common.config.security import SecuritySection
from services.common.config.values import is_loopback
from services.common.errors import UserError
from services.common.security.guard import Guard, TokenBearer
from services.common.security.tokens import TokenBook, TokenFile

CREDENTIALS_DIRECTORY = "CREDENTIALS_DIRECTORY"  # systemd: a folder that the unit's process alone can read
TOKEN_CREDENTIAL = "shoal-token"  # noqa: S105 (the name of a file)
TOKENS_CREDENTIAL = "shoal-tokens"


@dataclass(frozen=True)
class ClientSecurity:
    """What a process calls others with; the default calls in the clear, which is for loopback."""

    ca: Optional[bytes] = None  # PEM; None: no TLS
    certificate: Optional[bytes] = None  # PEM chain and key, where servers ask for them
    key: Optional[bytes] = field(default=None, repr=False)  # never in a log, nor in a traceback's values
    token: Optional[Callable[[], str]] = None

    def channel(self, address: str, options: Sequence[Tuple[str, Any]]) -> grpc.Channel:
        """Open a channel to HOST:PORT."""
        if self.ca is None:
            channel = grpc.insecure_channel(address, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)
            channel = grpc.secure_channel(address, credentials, options=options)
        return grpc.intercept_channel(channel, TokenBearer(self.token)) if self.token else channel


@dataclass(frozen=True)
class ServerSecurity:
    """What a process listens with; the default listens in the clear, which is for loopback."""

    certificate: Optional[Path] = None  # PEM files; None: no TLS
    key: Optional[Path] = None
    client_ca: Optional[Path] = None  # of clients' certificates; None: they need none
    book: Optional[TokenBook] = None

    def credentials(self) -> Optional[grpc.ServerCredentials]:
        """Credentials of gRPC, which follow a replaced certificate without a restart; None: in the clear."""
        if self.certificate is None or self.key is None:
            return None
        pair = _CertificatePair(self.certificate, self.key, self.client_ca)
        newer: Any = pair.newer  # may return None, which gRPC's types do not know
        return grpc.dynamic_ssl_server_credentials(
            pair.configuration(), newer, require_client_authentication=self.client_ca is not None
        )

    def interceptors(self, on_rejected: Callable[[str], None]) -> List[Any]:
        """The guard, where tokens are asked for."""
        return [Guard(self.book, on_rejected)] if self.book else []

    def ssl_context(self) -> Optional[ssl.SSLContext]:
        """For the metrics endpoint; None: in the clear."""
        if self.certificate is None or self.key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.client_ca)
        return context


# What tests, benchmarks and `shoal up` on one machine use; `client_security` and `server_security` see to the rest.
CALL_IN_THE_CLEAR = ClientSecurity()
LISTEN_IN_THE_CLEAR = ServerSecurity()


class _CertificatePair:
    """A certificate and its key on disk; both are replaced together, by renaming."""

    def __init__(self, certificate: Path, key: Path, client_ca: Optional[Path]) -> None:
        self._files = [file for file in (certificate, key, client_ca) if file is not None]
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._lock = threading.Lock()
        self._seen = self._state()

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """What the files hold."""
        ca = self._client_ca.read_bytes() if self._client_ca else None
        chain = [(self._key.read_bytes(), self._certificate.read_bytes())]
        return grpc.ssl_server_certificate_configuration(chain, root_certificates=ca)

    def newer(self) -> Optional[grpc.ServerCertificateConfiguration]:
        """A replaced certificate; asked at each handshake."""
        with self._lock:
            try:
                state = self._state()
                if state == self._seen:
                    return None
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self._certificate, self._key)  # half of a replacement would lock everybody out
                configuration = self.configuration()
            except (OSError, ssl.SSLError):
                return None
            self._seen = state
            return configuration

    def _state(self) -> List[Tuple[int, int]]:
        return [(file.stat().st_ino, file.stat().st_mtime_ns) for file in self._files]


def client_security(section: SecuritySection, *addresses: str) -> ClientSecurity:
    """What to call `addresses` with.

    Raises:
        UserError: a file cannot be used, or one of the addresses lies beyond the machine and TLS or token is missing.
    """
    beyond = next((address for address in addresses if not is_loopback(address)), "")
    token = _credential(section.token, TOKEN_CREDENTIAL)
    if beyond and not section.insecure and not (section.ca and token):
        raise UserError(
            f"{beyond} is beyond this machine: set security.ca and security.token (`shoal certs init` makes both), or "
            "say --security.insecure true to send everything in the clear"
        )
    certificate = key = None
    if section.mutual:
        _check_pair(section)
        certificate, key = _read(section.certificate, "certificate"), _read(section.key, "key")
    return ClientSecurity(
        ca=_read(section.ca, "ca") if section.ca else None,
        certificate=certificate,
        key=key,
        token=TokenFile(Path(token)).token if token else None,
    )


def server_security(
    section: SecuritySection, *addresses: str, clock: Callable[[], float] = time.monotonic
) -> ServerSecurity:
    """What to listen with on `addresses`.

    Raises:
        UserError: a file cannot be used, or one of the addresses can be reached from other machines and TLS or tokens
            are missing.
    """
    beyond = next((address for address in addresses if not is_loopback(address)), "")
    tokens = _credential(section.tokens, TOKENS_CREDENTIAL)
    if beyond and not section.insecure and not (section.certificate and section.key and tokens):
        raise UserError(
            f"listening on {beyond} is open to other machines: set security.certificate, security.key and "
            "security.tokens (`shoal certs` makes them), or say --security.insecure true to let anybody in"
        )
    if section.mutual and not section.ca:
        raise UserError("security.mutual asks for clients' certificates: set security.ca to the CA that signed them")
    if section.certificate or section.key:
        _check_pair(section)
    return ServerSecurity(
        certificate=Path(section.certificate) if section.certificate else None,
        key=Path(section.key) if section.key else None,
        client_ca=Path(section.ca) if section.mutual else None,
        book=TokenBook(Path(tokens), clock) if tokens else None,
    )


def _credential(file: str, name: str) -> str:
    """The file that was set, or systemd's credential of that name, or none."""
    folder = os.environ.get(CREDENTIALS_DIRECTORY)
    if file or not folder:
        return file
    found = Path(folder) / name
    return str(found) if found.exists() and found.stat().st_size else ""  # an empty one holds a place


def _read(file: str, option: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UserError(f"security.{option} = {file!r} cannot be read: {error.strerror}") from None


def _check_pair(section: SecuritySection) -> None:
    if not (section.certificate and section.key):
        raise UserError("security.certificate and security.key belong together: set both")
    _read(section.certificate, "certificate"), _read(section.key, "key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(section.certificate, section.key)
    except (ssl.SSLError, ValueError) as error:
        raise UserError(
            f"security.certificate = {section.certificate!r} and security.key = {section.key!r} are not a certificate "
            f"and its key: {error}"
        ) from None
