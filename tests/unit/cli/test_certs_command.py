from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from services.cli import __main__ as command
from services.common.security.certificates import load_certificates
from services.common.security.tokens import ROLES


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    made = tmp_path / "pki"
    assert command.main(["certs", "init", str(made)]) == 0
    capsys.readouterr()
    return made


def test_init_makes_a_ca_and_tokens_that_only_owner_and_group_read(folder: Path) -> None:
    secret = {"ca-key.pem", "tokens.toml", *(f"{role}.token" for role in ROLES)}
    assert {file.name for file in folder.iterdir()} == {*secret, "ca.pem"}
    for name in secret:
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o640
    assert stat.S_IMODE(folder.stat().st_mode) & 0o007 == 0
    tokens = [(folder / f"{role}.token").read_text() for role in ROLES]
    assert len(set(tokens)) == len(ROLES)


def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert command.main(["certs", "init", str(folder)]) == 2
    assert "holds a certificate authority already; nothing is overwritten" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_an_issued_certificate_is_for_its_hosts_and_this_machine(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["certs", "issue", str(folder), "m1", "10.0.0.1", "robot.lab", "[fd00::1]", "--days", "30"]
    assert command.main(line) == 0
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "m1.pem", folder / "m1-key.pem")
    leaf, authority = load_certificates(folder / "m1.pem")
    leaf.verify_directly_issued_by(authority)
    capsys.readouterr()
    assert command.main(["certs", "show", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(f"{folder / 'm1.pem'}: CN=m1; ends ")
    assert "in 29 days; for robot.lab, localhost, 10.0.0.1, fd00::1, 127.0.0.1, ::1" in lines[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["issue", "DIR", "a/b", "host"], "'a/b' cannot name a certificate"),
        (["issue", "DIR", "ca", "host"], "'ca' cannot name a certificate"),
        (["issue", "DIR", "m1", "host:7401"], "'host:7401' is neither a host's name nor an address"),
        (["issue", "DIR", "m1", "host", "--days", "0"], "--days 0 is not possible"),
        (["issue", "none", "m1", "host"], "'none' holds no certificate authority; make one with `shoal certs init"),
        (["token", "none", "actor"], "'none' holds no tokens.toml"),
        (["show", "none.pem"], "the certificate 'none.pem' cannot be read: No such file"),
        (["show", "DIR/actor.token"], "is not a certificate in PEM format"),
    ],
)
def test_mistakes_are_one_sentence(
    words, says, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert command.main(["certs", *(word.replace("DIR", str(folder)) for word in words)]) == 2
    answer = capsys.readouterr()
    (line,) = answer.err.splitlines()
    assert says in line


def test_an_ended_certificate_is_shown_as_ended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from services.cli.authority import Authority

    file, _ = Authority(folder).issue("old", ["host"], days=0)
    assert command.main(["certs", "show", str(file)]) == 0
    assert "; ENDED " in capsys.readouterr().out
