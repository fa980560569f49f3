from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any, List

import pytest

from services.actor import parameter_client
from services.actor.parameter_client import ParameterClient
from services.common.lifecycle import Lifecycle
from services.common.peer import Peer
from services.common.rpc import Stopped
from services.common.waits import Waits
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, FakeChief, FakeLog

ADD = parameters_pb2_grpc.add_ParameterServiceServicer_to_server
NEVER_S = 3600.0


@pytest.fixture
def chief() -> FakeChief:
    return FakeChief()


@pytest.fixture
def waits() -> Waits:
    return Waits(("parked", "chief_away"))


@pytest.fixture
def make_client(lifecycle: Lifecycle, log: FakeLog, waits: Waits) -> Any:
    made: List[ParameterClient] = []

    def make(address: str, poll_period_s: float = NEVER_S) -> ParameterClient:
        peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0")
        made.append(
            ParameterClient(
                address,
                peer=peer,
                poll_period_s=poll_period_s,
                lifecycle=lifecycle,
                log=log,
                parked=partial(waits.on, "parked"),
                away=partial(waits.on, "chief_away"),
            )
        )
        return made[-1]

    yield make
    lifecycle.stop("the test is over")
    for thread in lifecycle._threads:
        thread.join(10)
    for one in made:
        one.close()


@pytest.fixture
def client(chief: FakeChief, serve: Serve, make_client: Any) -> ParameterClient:
    made: ParameterClient = make_client(serve(ADD, chief))
    return made


def _bias(client: ParameterClient) -> float:
    assert client.newest is not None
    return float(client.newest.parameters["policy.bias"][0])


def test_the_newest_set_is_taken_whole(client: ParameterClient, chief: FakeChief) -> None:
    assert client.newest is None
    client.fetch()
    assert client.newest is None
    chief.publish(3, 0.25)
    manifest = client.fetch()
    newest: Any = client.newest
    assert (newest.version, newest.updates) == (3, 30)
    assert newest.digest == manifest.digest
    assert _bias(client) == 0.25
    assert (manifest.actor_index, manifest.num_actors) == (3, 8)


def test_what_is_at_hand_is_not_fetched_again(client: ParameterClient, chief: FakeChief) -> None:
    chief.publish(3, 0.25)
    client.fetch()
    newest = client.newest
    client.fetch()
    assert chief.gets == 1
    assert client.newest is newest
    chief.publish(9, 0.5)
    client.fetch()
    assert _bias(client) == 0.5


def test_a_hint_brings_the_newer_set_at_once(
    client: ParameterClient, chief: FakeChief, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    chief.publish(1, 0.125)
    lifecycle.spawn("parameters", client.run)
    eventually(lambda: client.newest)
    chief.publish(2, 0.5)
    client.hint(2)
    assert client.newest_known_version == 2
    eventually(lambda: _bias(client) == 0.5)


def test_old_hints_ask_nothing(
    client: ParameterClient, chief: FakeChief, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    chief.publish(5, 0.125)
    client.hint(5)
    lifecycle.spawn("parameters", client.run)
    eventually(lambda: client.newest)
    asked = chief.manifests
    for _ in range(20):
        client.hint(5)
        time.sleep(0.005)
    assert chief.manifests == asked
    assert client.newest_known_version == 5


def test_without_hints_the_chief_is_asked_by_the_period(
    chief: FakeChief, serve: Serve, make_client: Any, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    client = make_client(serve(ADD, chief), poll_period_s=0.02)
    chief.publish(1, 0.125)
    lifecycle.spawn("parameters", client.run)
    eventually(lambda: client.newest)
    chief.publish(2, 0.5)
    eventually(lambda: _bias(client) == 0.5)


def test_a_chief_that_is_behind_the_hint_is_not_asked_without_pause(
    client: ParameterClient, chief: FakeChief, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    chief.publish(1, 0.125)
    client.hint(50)  # a restarted chief has published nothing yet
    lifecycle.spawn("parameters", client.run)
    eventually(lambda: chief.manifests >= 3)
    asked, began = chief.manifests, time.monotonic()
    time.sleep(0.3)
    assert chief.manifests - asked <= (time.monotonic() - began) / parameter_client.RETRY_S + 1
    chief.publish(50, 0.5)
    eventually(lambda: _bias(client) == 0.5)


def test_while_hints_come_the_chief_is_asked_as_seldom_as_it_wishes(
    chief: FakeChief, serve: Serve, make_client: Any, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    client = make_client(serve(ADD, chief), poll_period_s=0.02)
    chief.publish(1, 0.125)
    chief.ask_again_s = NEVER_S
    client.hint(1)
    lifecycle.spawn("parameters", client.run)
    eventually(lambda: client.newest)
    time.sleep(0.3)
    assert chief.manifests <= 2
    chief.publish(2, 0.5)
    client.hint(2)
    eventually(lambda: _bias(client) == 0.5)


@pytest.mark.parametrize("hinted", [0, 7])
def test_when_no_hints_come_any_more_the_chief_is_asked_by_the_period(
    hinted: int, chief: FakeChief, serve: Serve, make_client: Any, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    client = make_client(serve(ADD, chief), poll_period_s=0.02)
    chief.publish(7, 0.125)
    chief.ask_again_s = NEVER_S
    client.hint(hinted)
    if hinted:
        client._hinted_at -= parameter_client.HINTS_ALIVE_S
    lifecycle.spawn("parameters", client.run)
    eventually(lambda: chief.manifests >= 5)


def test_parameters_are_confirmed_before_they_are_too_old_however_seldom_the_chief_wishes_to_be_asked(
    chief: FakeChief, serve: Serve, make_client: Any, lifecycle: Lifecycle, log: FakeLog, eventually: Eventually
) -> None:
    client = make_client(serve(ADD, chief), poll_period_s=0.02)
    chief.publish(1, 0.125)
    chief.ask_again_s = NEVER_S
    client.hint(1)
    client._max_age_s = 0.1
    lifecycle.spawn("parameters", client.run)
    eventually(lambda: chief.manifests >= 5)


def test_polls_of_many_readers_spread(make_client: Any, free_address: Any) -> None:
    client = make_client(free_address(), poll_period_s=10.0)
    periods = [client._period_s() for _ in range(1000)]
    assert 7.5 <= min(periods) < 8.0
    assert 12.0 < max(periods) <= 12.5


def test_version_and_weights_are_one_object_that_nobody_can_change(client: ParameterClient, chief: FakeChief) -> None:
    chief.publish(1, 0.125)
    client.fetch()
    first: Any = client.newest
    chief.publish(2, 0.5)
    client.fetch()
    assert (first.version, first.parameters["policy.bias"][0]) == (1, 0.125)
    with pytest.raises(AttributeError):
        first.version = 2
    with pytest.raises(ValueError, match="read-only"):
        first.parameters["policy.bias"][0] = 0.5


def test_a_stop_ends_the_thread_in_the_middle_of_its_wait(
    client: ParameterClient, chief: FakeChief, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    chief.publish(1, 0.125)
    thread = lifecycle.spawn("parameters", client.run)
    eventually(lambda: client.newest)
    lifecycle.stop("test")
    eventually(lambda: not thread.is_alive())


def test_the_end_of_training_ends_the_actor(
    client: ParameterClient, chief: FakeChief, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    chief.publish(1, 0.125)
    chief.run_state = parameters_pb2.RUN_STATE_FINISHED
    thread = lifecycle.spawn("parameters", client.run)
    eventually(lambda: not thread.is_alive())
    assert lifecycle.reason == "training is finished"
    assert _bias(client) == 0.125  # the last version was taken before


def test_acting_waits_for_the_first_set(
    client: ParameterClient, chief: FakeChief, log: FakeLog, eventually: Eventually
) -> None:
    got: List[Any] = []
    waiting = threading.Thread(target=lambda: got.append(client.wait_for_newest(60)))
    waiting.start()
    eventually(lambda: "waiting for the chief's first parameters" in log.events("info"))
    chief.publish(4, 0.5)
    client.fetch()
    waiting.join(5)
    assert [one.version for one in got] == [4]


def test_an_actor_parks_until_its_set_is_confirmed_again(
    client: ParameterClient, chief: FakeChief, log: FakeLog, eventually: Eventually, waits: Waits
) -> None:
    chief.publish(4, 0.5)
    client.fetch()
    assert client.wait_for_newest(60).version == 4
    assert waits.seconds()["parked"].total_s == 0
    got: List[Any] = []
    client._confirmed_at = time.monotonic() - 30
    assert 29 < client.age_s < 60
    waiting = threading.Thread(target=lambda: got.append(client.wait_for_newest(20)))
    waiting.start()
    eventually(lambda: "parked: the parameters are too old" in log.events("warning"))
    assert got == []
    assert waits.is_on("parked")
    client.fetch()  # the same version, but confirmed
    waiting.join(5)
    assert not waits.is_on("parked")
    assert [one.version for one in got] == [4]
    assert "acting goes on" in log.events("info")


def test_a_stop_ends_the_wait_for_parameters(client: ParameterClient, lifecycle: Lifecycle) -> None:
    lifecycle.stop("test")
    with pytest.raises(Stopped):
        client.wait_for_newest(60)


def test_a_chief_that_is_away_is_told(
    make_client: Any, lifecycle: Lifecycle, eventually: Eventually, waits: Waits
) -> None:
    client = make_client("127.0.0.1:1")
    lifecycle.spawn("parameters", client.run)
    eventually(lambda: client.waiting_for == "waiting for the chief at 127.0.0.1:1")
    assert waits.is_on("chief_away")
