from __future__ import annotations

from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.config.security import SecuritySection
from services.common.errors import UserError
from services.common.rpc import Server, call_once, connect
from services.common.security.transport import client_security, server_security
from tests.slow_link import SlowLink
from tests.unit.common.security.conftest import MakeSection

HERE, BEYOND = "127.0.0.1:7401", "10.0.0.1:7401"


def test_on_loopback_nothing_is_asked_for() -> None:
    nothing = SecuritySection()
    assert client_security(nothing, HERE, "localhost:1").certificates is None
    made = server_security(nothing, HERE, "[::1]:2")
    assert (made.credentials(), made.book, made.ssl_context()) == (None, None, None)


@pytest.mark.parametrize("lacks", ["ca", "token"])
def test_calls_beyond_the_machine_take_a_ca_and_a_token(lacks: str, section: MakeSection) -> None:
    with pytest.raises(UserError, match=f"{BEYOND} is beyond this machine: set security.ca and security.token"):
        client_security(section(**{lacks: ""}), HERE, BEYOND)
    assert client_security(section(**{lacks: ""}, insecure=True), BEYOND) is not None
    assert client_security(section(), BEYOND).token is not None


@pytest.mark.parametrize("lacks", ["certificate", "key", "tokens"])
def test_listening_beyond_the_machine_takes_certificate_and_tokens(lacks: str, section: MakeSection) -> None:
    for address in ("0.0.0.0:7401", BEYOND):
        with pytest.raises(UserError, match=f"listening on {address} is open to other machines: set security.cert"):
            server_security(section(**{lacks: ""}), HERE, address)
    if lacks == "tokens":
        assert server_security(section(tokens="", insecure=True), BEYOND).book is None
    assert server_security(SecuritySection(insecure=True), BEYOND).credentials() is None
    assert server_security(section(), BEYOND).book is not None


def test_the_files_are_checked_where_they_are_named(section: MakeSection, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    for key in ("certificate", "key"):
        with pytest.raises(UserError, match=rf"security\.{key} = '.*none.pem' cannot be read"):
            server_security(section(**{key: missing}), HERE)
        with pytest.raises(UserError, match="belong together: set both"):
            server_security(section(**{key: ""}), HERE)
    with pytest.raises(UserError, match=r"security\.ca = '.*none.pem' cannot be read"):
        client_security(section(ca=missing), HERE)
    with pytest.raises(UserError, match="are not a certificate and its key"):
        server_security(section(certificate=section().ca), HERE)
    with pytest.raises(UserError, match=r"security\.tokens = '.*none.pem' cannot be read"):
        server_security(section(tokens=missing), HERE)
    with pytest.raises(UserError, match=r"security\.mutual asks for clients' certificates: set security\.ca"):
        server_security(section(mutual=True, ca=""), HERE)


def test_systemds_credentials_stand_in_for_files_that_are_not_named(
    section: MakeSection, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in (("shoal-token", "learner.token"), ("shoal-tokens", "tokens.toml")):
        (tmp_path / name).write_text((folder / source).read_text())
        (tmp_path / name).chmod(0o400)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    unnamed = section(token="", tokens="")
    token, book = client_security(unnamed, BEYOND).token, server_security(unnamed, BEYOND).book
    assert token is not None
    assert book is not None
    assert book.role_of(token()) == "learner"
    named = client_security(section("actor"), BEYOND).token
    assert named is not None
    assert book.role_of(named()) == "actor"


def test_a_file_behind_a_dash_may_hold_a_place(section: MakeSection, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch(0o640)
    for place in (tmp_path / "empty", tmp_path / "none"):
        assert client_security(section(token=f"-{place}"), HERE).token is None
        assert server_security(section(tokens=f"-{place}"), HERE).book is None
        with pytest.raises(UserError, match="is beyond this machine"):
            client_security(section(token=f"-{place}"), BEYOND)
        with pytest.raises(UserError, match="is open to other machines"):
            server_security(section(tokens=f"-{place}"), BEYOND)
    token = client_security(section(token=f"-{folder / 'actor.token'}"), BEYOND).token
    book = server_security(section(tokens=f"-{folder / 'tokens.toml'}"), BEYOND).book
    assert token is not None
    assert book is not None
    assert book.role_of(token()) == "actor"
    with pytest.raises(UserError, match="holds no token"):  # without a dash, an empty file is a mistake
        client_security(section(token=str(tmp_path / "empty")), BEYOND)


def test_a_first_call_has_all_of_its_time_to_connect_over_a_slow_link(section: MakeSection) -> None:
    server = Server(
        "127.0.0.1:0", max_workers=2, option_name="x", security=server_security(section("monitor"), "127.0.0.1:0")
    )
    server.start()
    try:
        with SlowLink(server.port, round_trip_s=0.3, bytes_per_s=2e6 / 8) as link, connect(
            link.address, client_security(section("monitor"), link.address)
        ) as channel:
            answer = call_once(
                health_pb2_grpc.HealthStub(channel).Check, health_pb2.HealthCheckRequest(), timeout_s=10
            )  # one try
            assert link.num_connections == 1
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        server.stop(0)
