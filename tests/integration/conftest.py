"""Threads for calls that wait, services to attack (in the clear and with certificates), and a training run."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from services.cli import certs_command
from tests.conftest import Serve
from tests.fakes import FakeLog
from tests.integration.attacked import Attacked, Chief, Replay
from tests.training_run import Run


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """For calls that are to wait."""
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, tokens, and the certificate of a machine, by the command that users have."""
    folder = tmp_path_factory.mktemp("certs") / "pki"
    certs_command.run(["init", str(folder)], io.StringIO())
    certs_command.run(["issue", str(folder), "box", "127.0.0.1"], io.StringIO())
    return folder


@pytest.fixture
def replay() -> Iterator[Replay]:
    """A replay that all may call, with some experience."""
    made = Replay()
    for _ in range(3):
        made.check_served()
    yield made
    made.stop()


@pytest.fixture(params=["replay", "chief", "replay with tls", "chief with tls"])
def attacked(request: Any, tmp_path: Path, pki: Path) -> Iterator[Attacked]:
    """Either service, in the clear, and with TLS and tokens."""
    service, _, tls = request.param.partition(" ")
    options: Any = {"pki": pki if tls else None, "max_held_bytes": 32 << 20}
    made: Attacked = Replay(**options) if service == "replay" else Chief(tmp_path, **options)
    for _ in range(3):
        made.check_served()
    yield made
    made.stop()


@pytest.fixture
def run(tmp_path: Path, serve: Serve, log: FakeLog, free_address: Callable[[], str]) -> Run:
    """A run's folder and its replay."""
    pytest.importorskip("torch")
    return Run(tmp_path, serve, log, free_address)
