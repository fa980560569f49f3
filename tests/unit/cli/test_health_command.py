from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.cli import __main__ as command
from services.common.metrics_server import MetricsServer
from services.common.rpc import Server
from services.common.security.transport import LISTEN_IN_THE_CLEAR, server_security
from tests.unit.common.security.conftest import MakeSection, folder, section

__all__ = ["folder", "section"]


def _health(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return command.main(["health", *words]), capsys.readouterr().out.strip()


@pytest.mark.parametrize("guarded", [False, True])
def test_a_service_that_serves_is_healthy_and_a_stopped_one_is_not(
    guarded: bool, section: MakeSection, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    security = server_security(section(), "127.0.0.1:0") if guarded else LISTEN_IN_THE_CLEAR
    flags = ["--security.ca", str(folder / "ca.pem")] if guarded else []
    server = Server("127.0.0.1:0", max_workers=2, option_name="x", security=security)
    server.start()
    assert _health(capsys, server.address, *flags) == (0, f"{server.address} is healthy")
    server.stop(0)
    code, said = _health(capsys, server.address, *flags)
    assert code == 1
    assert said.startswith(f"{server.address} does not answer: ")


@pytest.mark.parametrize("guarded", [False, True])
def test_an_endpoint_that_answers_is_healthy_even_where_it_asks_for_a_token(
    guarded: bool, section: MakeSection, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    security = server_security(section(), "127.0.0.1:0") if guarded else LISTEN_IN_THE_CLEAR
    flags = ["--security.ca", str(folder / "ca.pem")] if guarded else []
    server = MetricsServer("127.0.0.1", 0, "x", CollectorRegistry(), security)
    server.start()
    address = f"127.0.0.1:{server.port}"
    assert _health(capsys, "--metrics", address, *flags) == (0, f"{address} is healthy")
    server.stop()
    assert _health(capsys, "--metrics", address, *flags)[0] == 1


def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["health", "nowhere"], "'nowhere' is no address"),
        (["health", "--metrics", "127.0.0.1:1", "--security.ca", "none.pem"], "security.ca = 'none.pem' is not there"),
        (["health", "127.0.0.1:1", "--security.ca", "none.pem"], "security.ca = 'none.pem' cannot be read"),
    ):
        assert command.main(words) == 2
        assert says in capsys.readouterr().err
