"""TLS of both ends: what a process needs to call, and what it needs to listen, made of the run file's `[security]`."""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

import grpc

from services.common.config.security import SecuritySection
from services.common.config.values import is_loopback
from services.common.errors import UserError
from services.common.log import Log
from services.common.security.certificate_files import CertificateFiles
from services.common.security.guard import Guard, TokenBearer
from services.common.security.renewed_channel import RenewedChannel
from services.common.security.tokens import TokenBook, TokenFile

CREDENTIALS_DIRECTORY = "CREDENTIALS_DIRECTORY"  # systemd: a folder that the unit's process alone can read
TOKEN_CREDENTIAL = "shoal-token"  # noqa: S105 (the name of a file)
TOKENS_CREDENTIAL = "shoal-tokens"
OPTIONAL = "-"  # before a file that need not be there, as systemd writes it


@dataclass(frozen=True)
class ClientSecurity:
    """What a process calls others with; the default calls in the clear, which is for loopback."""

    certificates: Optional[CertificateFiles] = None  # CA, and where servers ask for it a pair; None: no TLS
    token: Optional[Callable[[], str]] = None

    def channel(self, address: str, options: Sequence[Tuple[str, Any]]) -> grpc.Channel:
        """Open a channel to HOST:PORT; it follows replaced files without a restart."""
        if self.certificates is None and self.token is None:
            return grpc.insecure_channel(address, options=options)
        channel = RenewedChannel(address, options, self.certificates)
        return grpc.intercept_channel(channel, TokenBearer(self.token)) if self.token else channel


@dataclass(frozen=True)
class ServerSecurity:
    """What a process listens with; the default listens in the clear, which is for loopback."""

    certificate: Optional[CertificateFiles] = None  # with its key, and clients' CA where they show one; None: no TLS
    is_mutual: bool = False  # whether clients show a certificate
    book: Optional[TokenBook] = None

    def credentials(self) -> Optional[grpc.ServerCredentials]:
        """Credentials of gRPC, which follow replaced files without a restart; None: in the clear."""
        if self.certificate is None:
            return None
        shown = _ShownCertificate(self.certificate)
        newer: Any = shown.newer  # may return None, which gRPC's types do not know
        return grpc.dynamic_ssl_server_credentials(
            shown.configuration(), newer, require_client_authentication=self.is_mutual
        )

    def interceptors(self, on_rejected: Callable[[str], None]) -> List[Any]:
        """The guard, where tokens are asked for."""
        return [Guard(self.book, on_rejected)] if self.book else []

    def ssl_context(self) -> Optional[ssl.SSLContext]:
        """For the metrics endpoint's next connection; None: in the clear."""
        return self.certificate.now().context if self.certificate is not None else None


# What tests, benchmarks and `shoal up` on one machine use; `client_security` and `server_security` see to the rest.
CALL_IN_THE_CLEAR = ClientSecurity()
LISTEN_IN_THE_CLEAR = ServerSecurity()


class _ShownCertificate:
    """What gRPC asks at each handshake."""

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._shown = files.now()

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """The certificate that is shown now, as gRPC takes it."""
        shown: Any = self._shown
        return grpc.ssl_server_certificate_configuration([(shown.key, shown.certificate)], root_certificates=shown.ca)

    def newer(self) -> Optional[grpc.ServerCertificateConfiguration]:
        """A replaced certificate, or None: that of the last handshake is still in force."""
        newest = self._files.now()
        if newest is self._shown:
            return None
        self._shown = newest
        return self.configuration()


def client_security(section: SecuritySection, *addresses: str, log: Optional[Log] = None) -> ClientSecurity:
    """What to call `addresses` with; where files are replaced later on, `log` is told.

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
    if section.mutual:
        _check_pair(section)
    certificates = (
        CertificateFiles(
            ca=Path(section.ca),
            certificate=Path(section.certificate) if section.mutual else None,
            key=Path(section.key) if section.mutual else None,
            log=log,
        )
        if section.ca
        else None
    )
    return ClientSecurity(certificates, TokenFile(Path(token), log=log).token if token else None)


def server_security(
    section: SecuritySection,
    *addresses: str,
    clock: Callable[[], float] = time.monotonic,
    log: Optional[Log] = None,
) -> ServerSecurity:
    """What to listen with on `addresses`; where files are replaced later on, `log` is told.

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
    certificate = None
    if section.certificate or section.key:
        _check_pair(section)
        certificate = CertificateFiles(
            ca=Path(section.ca) if section.mutual else None,
            certificate=Path(section.certificate),
            key=Path(section.key),
            recheck_s=0,  # handshakes are few
            log=log,
        )
    return ServerSecurity(certificate, section.mutual, TokenBook(Path(tokens), clock, log) if tokens else None)


def _credential(file: str, name: str) -> str:
    """The file that was set, or systemd's credential of that name, or none.

    A file behind a leading `-` may be missing or empty: it holds a place.
    """
    if file.startswith(OPTIONAL):
        return _if_filled(Path(file[len(OPTIONAL) :]))
    folder = os.environ.get(CREDENTIALS_DIRECTORY)
    return file if file or not folder else _if_filled(Path(folder) / name)


def _if_filled(file: Path) -> str:
    return str(file) if file.exists() and file.stat().st_size else ""


def _check_pair(section: SecuritySection) -> None:
    if not (section.certificate and section.key):
        raise UserError("security.certificate and security.key belong together: set both")
