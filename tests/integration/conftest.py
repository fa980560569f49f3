"""Threads for calls that wait, services to attack (in the clear and with certificates), a training run, and actors."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest

from services.actor import chunk_sender
from services.cli import certs_command
from tests import failing_envs
from tests.acting_parties import Acting, Peers
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


@pytest.fixture
def peers(free_address: Callable[[], str]) -> Iterator[Peers]:
    """A replay and a chief that are there."""
    made = Peers(free_address)
    made.come("replay", "chief")
    yield made
    made.go(*made._servers)


@pytest.fixture
def make_acting(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Acting]]:
    """Makes actors of `peers`, which act until the test ends."""
    # What is delivered in a stop and what is dropped does not depend on how busy the machine is.
    monkeypatch.setattr(chunk_sender, "FLUSH_BUDGET_S", 12.0)
    made: List[Acting] = []

    def make(**changes: Any) -> Acting:
        made.append(Acting(peers, **changes))
        return made[-1]

    yield make
    failing_envs.GO_ON.set()
    for acting in made:
        acting.life.stop("the test is over")
        acting._thread.join(15)
