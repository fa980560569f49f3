from __future__ import annotations

import datetime as dt
import io
from pathlib import Path

import pytest

from services.cli import certs_command
from services.common.errors import UserError
from services.common.security.certificate_files import CertificateFiles


def _pair(folder: Path, **options: Path) -> CertificateFiles:
    return CertificateFiles(certificate=folder / "machine.pem", key=folder / "machine-key.pem", recheck_s=0, **options)


def test_they_hold_what_both_ends_need(folder: Path) -> None:
    files = _pair(folder, ca=folder / "ca.pem")
    found = files.now()
    assert found.ca == (folder / "ca.pem").read_bytes()
    assert found.certificate == (folder / "machine.pem").read_bytes()
    assert found.key == (folder / "machine-key.pem").read_bytes()
    assert found.context is not None
    assert found.expires_at is not None
    assert dt.timedelta(days=364) < found.expires_at - dt.datetime.now(dt.timezone.utc) < dt.timedelta(days=366)
    assert files.now() is found  # so that a change can be told by identity


def test_a_caller_without_a_certificate_needs_the_ca_alone(folder: Path) -> None:
    found = CertificateFiles(ca=folder / "ca.pem").now()
    assert (found.certificate, found.key, found.expires_at, found.context) == (None, None, None, None)


def test_a_pair_is_replaced_as_a_pair(folder: Path) -> None:
    files = _pair(folder)
    before = files.now()
    certs_command.run(["issue", str(folder), "other", "machine.example"], io.StringIO())
    (folder / "other.pem").replace(folder / "machine.pem")
    assert files.now() is before
    assert "are not a certificate and its key" in files.problem
    (folder / "other-key.pem").replace(folder / "machine-key.pem")
    assert files.now().certificate == (folder / "machine.pem").read_bytes()
    assert files.problem == ""


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_ca_is_one_sentence(folder: Path, text: str) -> None:
    (folder / "ca.pem").write_text(text)
    with pytest.raises(UserError, match=r"security\.ca = '.*ca.pem' is not a certificate in PEM format"):
        CertificateFiles(ca=folder / "ca.pem")


def test_a_key_with_a_password_is_refused_and_asks_nobody(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    file = folder / "machine-key.pem"
    key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    with pytest.raises(UserError, match="are not a certificate and its key"):
        _pair(folder)
