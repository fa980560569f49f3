"""The helper's client pushes gradients to its chief: sent until they are taken, and never twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator

import numpy as np
import pytest

from services.common.errors import Fenced
from services.common.lifecycle import Lifecycle
from services.common.parameter_set import ParameterSet
from services.common.peer import Peer
from services.learner.chief_client import ChiefClient
from services.learner.gradients import GradientEncoder
from shoal.v1 import experience_pb2, gradients_pb2
from tests.conftest import Eventually
from tests.fakes import RUN_ID, FakeLog
from tests.gradient_parties import DIGEST, SHAPES, Chief, serving_chief

Status = gradients_pb2.PushStatus


@pytest.fixture
def chief() -> Iterator[Chief]:
    with serving_chief() as made:
        yield made


def client_of(chief: Chief, lifecycle: Lifecycle, incarnation: int = 1, name: str = "helper-0") -> ChiefClient:
    return ChiefClient(
        chief.server.address,
        peer=Peer(RUN_ID, experience_pb2.ROLE_HELPER, name, incarnation),
        schema_digest=DIGEST,
        first_sequence=1,
        lifecycle=lifecycle,
        log=FakeLog(),
    )


def encoded_ones() -> Any:
    return GradientEncoder("int8", 1024, False, "zlib").encode({n: np.ones(s, np.float32) for n, s in SHAPES.items()})


def test_a_client_sends_the_same_bytes_until_its_chief_is_there_and_hears_that_it_is_another(
    lifecycle: Lifecycle, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    first = Chief()
    first.begin()
    client = client_of(first, lifecycle)
    client._join()
    first.exchange.open(101, 0)
    pushed = threads.submit(client.push, ParameterSet(101, 0, "d", {}, 11), 8, encoded_ones())
    eventually(lambda: first.exchange._contributions._shares)  # type: ignore[attr-defined]
    first.server.stop(0)  # killed with the gradient in its memory
    eventually(lambda: "waiting for the chief" in client.waiting_for)
    second = Chief(address=first.server.address, incarnation=12, first=2000)
    second.begin()
    assert pushed.result(20) == Status.PUSH_STATUS_CHIEF_RESTARTED
    assert client._joined == 0  # it will join anew
    client.close()
    second.stop()
    first.stop()


def test_a_client_waits_on_over_many_calls(
    lifecycle: Lifecycle, threads: ThreadPoolExecutor, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.learner.gradient_service.PUSH_WAIT_S", 0.05)
    chief = Chief()
    chief.begin()
    client = client_of(chief, lifecycle)
    client._join()
    chief.exchange.join("slow", 1)
    chief.exchange.open(101, 0)
    pushed = threads.submit(client.push, ParameterSet(101, 0, "d", {}, 11), 8, encoded_ones())
    eventually(lambda: chief.count("pending_total") > 3)
    eventually(lambda: "waiting for the gradient of slow" in client.waiting_for)
    chief.exchange.leave("slow", 1)
    chief.step()
    assert pushed.result(10) == Status.PUSH_STATUS_ACCEPTED
    assert len(chief.learner.applied) == 1
    assert client.waiting_for == ""
    client.close()
    chief.stop()


def test_a_fenced_client_ends(chief: Chief, lifecycle: Lifecycle) -> None:
    older, newer = client_of(chief, lifecycle, 1), client_of(chief, lifecycle, 2)
    older._join()
    newer._join()
    with pytest.raises(Fenced):
        older._join()
    with pytest.raises(Fenced):
        older.push(ParameterSet(101, 0, "d", {}, 11), 0, None)
    older.close()
    newer.close()


def test_a_client_that_leaves_is_not_waited_for(chief: Chief, lifecycle: Lifecycle) -> None:
    client = client_of(chief, lifecycle)
    client._join()
    assert chief.count("helpers") == 1
    client.leave()
    assert chief.count("helpers") == 0
    client.close()


def test_a_stop_gives_a_push_under_way_a_last_chance(
    chief: Chief, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    life = Lifecycle()
    client = client_of(chief, life)
    client._join()
    chief.exchange.open(101, 0)
    pushed = threads.submit(client.push, ParameterSet(101, 0, "d", {}, 11), 8, encoded_ones())
    eventually(lambda: chief.exchange._contributions._shares)  # type: ignore[attr-defined]
    life.stop("the test says so")
    chief.step()
    assert pushed.result(10) == Status.PUSH_STATUS_ACCEPTED
    client.close()
