"""A small certificate authority in a folder: for services of one's own, on machines of one's own."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import Any, List, Sequence, Tuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.common.errors import UserError
from services.common.files import write_atomically
from services.common.security.certificates import load_certificates

CA, CA_KEY = "ca.pem", "ca-key.pem"
CA_DAYS = 3650
BACKDATED = dt.timedelta(minutes=5)  # clocks of machines differ
SECRET_MODE, PUBLIC_MODE, FOLDER_MODE = 0o640, 0o644, 0o750
LOCAL = ("localhost", "127.0.0.1", "::1")  # a service of the machine itself is reached by these


class Authority:
    """The CA of a folder."""

    def __init__(self, folder: Path) -> None:
        """Open it.

        Raises:
            UserError: the folder holds none.
        """
        self.folder = folder
        if not (folder / CA).exists() or not (folder / CA_KEY).exists():
            raise UserError(
                f"{str(folder)!r} holds no certificate authority; make one with `shoal certs init {folder}`"
            )
        self._certificate = load_certificates(folder / CA)[0]
        try:
            self._key: Any = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), password=None)
        except (ValueError, TypeError, OSError) as error:
            raise UserError(f"{str(folder / CA_KEY)!r} is not the authority's key: {error}") from None

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """Make one in `folder`.

        Raises:
            UserError: there is one already: services that trust it would be cut off.
        """
        if (folder / CA).exists() or (folder / CA_KEY).exists():
            raise UserError(f"{str(folder)!r} holds a certificate authority already; nothing is overwritten")
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"shoal CA {x509.random_serial_number():x}"[:40])])
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(name, name, key.public_key(), CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_atomically(folder / CA_KEY, _key_pem(key), SECRET_MODE)
        write_atomically(folder / CA, _pem(certificate), PUBLIC_MODE)
        return cls(folder)

    def issue(self, name: str, hosts: Sequence[str], days: int) -> Tuple[Path, Path]:
        """Write NAME.pem and NAME-key.pem for a machine; an earlier pair of that name is replaced.

        Args:
            name: of the files, and the certificate's subject.
            hosts: names and addresses that others reach the machine by.
            days: until it ends.

        Raises:
            UserError: the name cannot be one of a file.
        """
        if not name.replace("-", "").replace(".", "").replace("_", "").isalnum() or name in {"ca", "ca-key"}:
            raise UserError(f"{name!r} cannot name a certificate; use letters, digits, '-', '_' and '.'")
        key = ec.generate_private_key(ec.SECP256R1())
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(
                x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
                self._certificate.subject,
                key.public_key(),
                days,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(_names([*hosts, *LOCAL])), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        key_file, file = self.folder / f"{name}-key.pem", self.folder / f"{name}.pem"
        write_atomically(key_file, _key_pem(key), SECRET_MODE)
        write_atomically(file, _pem(certificate) + _pem(self._certificate), PUBLIC_MODE)
        return file, key_file


def host_names(certificate: Any) -> List[str]:
    """Names and addresses that a certificate is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def _builder(subject: x509.Name, issuer: x509.Name, public_key: Any, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _names(hosts: Sequence[str]) -> List[x509.GeneralName]:
    names: List[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host.strip("[]"))))
        except ValueError:
            if not host or any(letter.isspace() or letter in ":/" for letter in host):
                raise UserError(
                    f"{host!r} is neither a host's name nor an address; leave out ports and paths"
                ) from None
            names.append(x509.DNSName(host))
    return names


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
