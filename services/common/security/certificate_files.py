"""CA, certificate and key of a process on disk, checked before they count, and read anew when they were replaced."""

from __future__ import annotations

import datetime as dt
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

from services.common.errors import UserError
from services.common.log import Log
from services.common.security.certificates import expires_at
from services.common.security.renewed import RECHECK_S, Renewed


@dataclass(frozen=True, eq=False)
class Certificates:
    """What the files held when they were read; another reading is another object."""

    ca: Optional[bytes]  # PEM of one CA or several
    certificate: Optional[bytes]  # PEM chain
    key: Optional[bytes] = field(repr=False)  # PEM; never in a log, nor in a traceback's values
    expires_at: Optional[dt.datetime]  # of the certificate, in UTC
    context: Optional[ssl.SSLContext]  # for servers that are not gRPC's


class CertificateFiles:
    """The files that `[security]` names."""

    def __init__(
        self,
        *,
        ca: Optional[Path] = None,
        certificate: Optional[Path] = None,
        key: Optional[Path] = None,
        clock: Callable[[], float] = time.monotonic,
        recheck_s: float = RECHECK_S,
        log: Optional[Log] = None,
    ) -> None:
        """Read and check them.

        Args:
            ca: of the CA that peers' certificates are signed by; None: peers show none.
            certificate: that is shown to peers, with its chain; None: none is.
            key: of the certificate.
            clock: monotonic.
            recheck_s: between two looks at the files; 0: at each call.
            log: where a replacement is said.

        Raises:
            UserError: one cannot be read, or they do not fit together.
        """
        self._ca, self._certificate, self._key = ca, certificate, key
        files = [file for file in (ca, certificate, key) if file is not None]
        name = " and ".join(f"security.{self._option(file)}" for file in files)
        self._read = Renewed(files, self._checked, name=name, clock=clock, recheck_s=recheck_s, log=log)

    @property
    def problem(self) -> str:
        """Why the present files are not in force, one sentence; empty where they are."""
        return self._read.problem

    def now(self) -> Certificates:
        """What counts now: the same object until the files were replaced by others that can be used."""
        return self._read.value()

    def _option(self, file: Path) -> str:
        return "ca" if file is self._ca else "certificate" if file is self._certificate else "key"

    def _checked(self) -> Certificates:
        # Half of a replacement would lock everybody out: a pair that does not fit is none.
        ca, certificate, key = (self._bytes(file) for file in (self._ca, self._certificate, self._key))
        context = None
        if self._certificate is not None and self._key is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            try:
                # A key with a password would ask for it on the terminal: none is told, and the key is refused.
                context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
            except (OSError, ValueError) as error:
                raise UserError(
                    f"security.certificate = {str(self._certificate)!r} and security.key = {str(self._key)!r} are not "
                    f"a certificate and its key: {error}"
                ) from None
        if self._ca is not None:
            verifying = context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            verifying.verify_mode = ssl.CERT_REQUIRED
            try:
                verifying.load_verify_locations(self._ca)
            except (OSError, ValueError) as error:
                raise UserError(
                    f"security.ca = {str(self._ca)!r} is not a certificate in PEM format: {error}"
                ) from None
        ends = None if self._certificate is None else expires_at(self._certificate)
        return Certificates(ca, certificate, key, ends, context)

    def _bytes(self, file: Optional[Path]) -> Optional[bytes]:
        if file is None:
            return None
        try:
            return file.read_bytes()
        except OSError as error:
            raise UserError(f"security.{self._option(file)} = {str(file)!r} cannot be read: {error.strerror}") from None
