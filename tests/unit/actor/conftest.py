"""What a chunk sender needs: a replay to send to, and an end."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from services.actor import chunk_sender
from services.actor.chunk_sender import ChunkSender
from services.common.lifecycle import Lifecycle
from services.common.peer import Peer
from shoal.v1 import experience_pb2
from tests.fakes import RUN_ID, SCHEMA, FakeLog
from tests.unit.actor.sending import Replay, SenderTime


@pytest.fixture
def replay() -> Replay:
    """It is served by who needs it."""
    return Replay()


@pytest.fixture
def sender_time(monkeypatch: pytest.MonkeyPatch) -> SenderTime:
    """The time of all senders of the test."""
    stands_in = SenderTime()
    monkeypatch.setattr(chunk_sender, "time", stands_in)
    return stands_in


@pytest.fixture
def patient_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop's budget that a machine which stalls does not use up."""
    monkeypatch.setattr(chunk_sender, "FLUSH_BUDGET_S", 20.0)


@pytest.fixture
def make_sender(lifecycle: Lifecycle, log: FakeLog) -> Any:
    """Makes senders; `run` with the test's life. Those that still run at the end are closed."""
    made: List[ChunkSender] = []

    def make(address: str, **changes: Any) -> ChunkSender:
        arguments: Dict[str, Any] = {
            "peer": Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0"),
            "schema": SCHEMA,
            "buffer_chunks": 4,
            "drop_oldest": False,
            "on_version": lambda _version: None,
            "stopping": lifecycle.stopping,
            "log": log,
            **changes,
        }
        made.append(ChunkSender(address, **arguments))
        return made[-1]

    yield make
    lifecycle.stop("the test is over")
    for one in made:
        one.close()
