"""The helper's view of its chief: which base it is given, and when it joins anew."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Iterator, List, Optional, Tuple

import numpy as np
import pytest

from services.common.config.gradients import GradientsSection
from services.common.errors import EXIT_USER
from services.common.lifecycle import Lifecycle
from services.common.metrics import Metrics
from services.common.parameter_set import ParameterSet
from services.common.peer import Peer
from services.common.rpc import Refused, Server, Stopped
from services.common.run_folder import RunFolder
from services.learner import chief_client
from services.learner.chief_client import ChiefClient
from services.learner.collaboration import Collaboration
from services.learner.drain import Drain
from services.learner.parameter_service import ParameterServicer, Status, add_to_server
from services.learner.parameter_store import ParameterStore
from services.learner.readers import Readers
from services.learner.version_reservation import VersionReservation
from shoal.v1 import experience_pb2, gradients_pb2, gradients_pb2_grpc, parameters_pb2
from tests.conftest import Eventually
from tests.fakes import RUN_ID, FakeClock, FakeLog

DIGEST = "0123456789abcdef"


class Learner:
    """Enough of one for pushes to be expected."""

    updates = 0

    def state(self) -> Any:
        return {"online.w": np.zeros(2, np.float32)}


class Chief:
    """One life of a chief: its parameter service and its gradient service, and no training."""

    def __init__(self, folder: Path, incarnation: int, address: str = "127.0.0.1:0", **changes: Any) -> None:
        log = FakeLog()
        self.status = Status(run_state=parameters_pb2.RUN_STATE_TRAINING)
        self.store = ParameterStore(VersionReservation(folder / "versions.json"))
        self.updates = 0
        self.readers = Readers(time.monotonic, 1)
        self.drain = Drain(self.readers, time.monotonic, log)
        servicer = ParameterServicer(
            run_id=RUN_ID,
            incarnation=incarnation,
            store=self.store,
            readers=self.readers,
            drain=self.drain,
            folder=RunFolder(folder),
            status=self.status,
            num_actors=1,
            max_updates=10,
            waiting_for=lambda: "",
            fail=pytest.fail,
            log=log,
        )
        self.collaboration = Collaboration(
            GradientsSection(**changes),
            num_planned=1,
            run_id=RUN_ID,
            incarnation=incarnation,
            metrics=Metrics("learner", RUN_ID),
            log=log,
        )
        learner: Any = Learner()
        self.collaboration.begin(learner, DIGEST, lambda: 0, threading.Event())
        self.exchange = self.collaboration._exchange
        self.server = Server(address, max_workers=16, option_name="test")
        self.server.add(add_to_server, servicer)
        self.server.add(gradients_pb2_grpc.add_GradientServiceServicer_to_server, self.collaboration.servicer)
        self.server.start()

    def publish(self) -> int:
        """Open the next base, and return its version."""
        self.updates += 1
        version = self.store.publish_learn({"w": np.full(2, self.updates, np.float32)}, self.updates).version
        self.exchange.open(version, self.updates)
        return version

    def stop(self) -> None:
        self.collaboration.end("the test is over")
        self.server.stop(0)


@pytest.fixture
def chief(tmp_path: Path) -> Iterator[Chief]:
    made = Chief(tmp_path, 11, lease_s=1.5)
    yield made
    made.stop()


@pytest.fixture
def client(chief: Chief, lifecycle: Lifecycle) -> Iterator[ChiefClient]:
    made = ChiefClient(
        chief.server.address,
        peer=Peer(RUN_ID, experience_pb2.ROLE_HELPER, "helper-0"),
        schema_digest=DIGEST,
        first_sequence=5,
        lifecycle=lifecycle,
        log=FakeLog(),
    )
    yield made
    made.close()


@pytest.fixture
def lease_clock(chief: Chief, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """What leases and their renewals go by, at the chief and at its helper."""
    chief.exchange._helpers._clock = clock
    monkeypatch.setattr(chief_client, "time", SimpleNamespace(monotonic=clock))
    return clock


class Asked:
    """`next_base` on a thread."""

    def __init__(self, client: ChiefClient) -> None:
        self.base: Optional[ParameterSet] = None
        self.error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._ask, args=(client,))
        self._thread.start()

    def _ask(self, client: ChiefClient) -> None:
        try:
            self.base = client.next_base()
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            self.error = error

    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Optional[ParameterSet]:
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.base


def test_it_takes_part_from_the_next_base_on_and_is_given_each_once(
    chief: Chief, client: ChiefClient, eventually: Eventually
) -> None:
    before = chief.publish()
    asked = Asked(client)
    eventually(lambda: chief.exchange.num_living == 1)
    eventually(lambda: client.waiting_for == "waiting for the chief's next step")
    assert asked.is_waiting()
    version = chief.publish()
    assert version > before
    base = asked.result()
    assert base is not None
    assert (base.version, base.updates, base.chief_incarnation) == (version, 2, 11)
    np.testing.assert_array_equal(base.parameters["w"], [2, 2])
    assert client.waiting_for == ""
    client._used_version = base.version  # it was pushed on
    again = Asked(client)
    time.sleep(0.2)
    assert again.is_waiting()
    newest = chief.publish()
    found = again.result()
    assert found is not None
    assert found.version == newest


def test_while_it_waits_its_lease_does_not_end(
    chief: Chief, client: ChiefClient, lease_clock: FakeClock, eventually: Eventually
) -> None:
    asked = Asked(client)
    eventually(lambda: chief.exchange.num_living == 1)
    eventually(lambda: client.waiting_for == "waiting for the chief's next step")

    def lease_end_s() -> float:
        helper = chief.exchange._helpers.find("helper-0")
        assert helper is not None
        return helper.lease_end_s

    for _ in range(7):  # more than two leases
        lease_clock.now_s += 0.5
        assert chief.exchange.num_living == 1
        eventually(lambda: client._renew_at_s > lease_clock.now_s)  # it has renewed, and goes by the time that is now
        assert lease_end_s() == lease_clock.now_s + 1.5
    chief.publish()
    assert asked.result() is not None
    lease_clock.now_s += 2.0  # it computes for too long
    assert chief.exchange.num_living == 0


def test_a_chief_that_is_finished_ends_it(chief: Chief, client: ChiefClient, eventually: Eventually) -> None:
    asked = Asked(client)
    eventually(lambda: chief.exchange.num_living == 1)
    chief.status.run_state = parameters_pb2.RUN_STATE_FINISHED
    assert asked.result() is None


def test_a_stop_ends_the_wait(chief: Chief, client: ChiefClient, lifecycle: Lifecycle, eventually: Eventually) -> None:
    asked = Asked(client)
    eventually(lambda: chief.exchange.num_living == 1)
    lifecycle.stop("the test says so")
    with pytest.raises(Stopped):
        asked.result()


@pytest.mark.parametrize("told_by", ["a push", "a join", "a fetch"])
def test_a_base_of_an_earlier_life_is_never_given_by_a_later_one(
    told_by: str, chief: Chief, client: ChiefClient, tmp_path: Path, eventually: Eventually
) -> None:
    asked = Asked(client)
    eventually(lambda: chief.exchange.num_living == 1)
    chief.publish()
    base = asked.result()
    assert base is not None
    chief.stop()
    second = Chief(tmp_path, 12, chief.server.address, lease_s=1.5)
    if told_by == "a push":
        assert client.push(base, 0, None) == gradients_pb2.PUSH_STATUS_CHIEF_RESTARTED
        assert client.sequence == 5
    elif told_by == "a join":
        client._renew_at_s = 0.0
    else:
        client._renew_at_s = time.monotonic() + 60
    again = Asked(client)
    eventually(lambda: second.exchange.num_living == 1)
    assert again.is_waiting()
    version = second.publish()
    found = again.result()
    assert found is not None
    assert (found.version, found.chief_incarnation) == (version, 12)
    assert version > base.version
    second.stop()


def test_a_gradient_that_takes_longer_than_the_lease_is_told_what_to_change(
    chief: Chief, lifecycle: Lifecycle, lease_clock: FakeClock, eventually: Eventually
) -> None:
    log = FakeLog()
    client = ChiefClient(
        chief.server.address,
        peer=Peer(RUN_ID, experience_pb2.ROLE_HELPER, "helper-0"),
        schema_digest=DIGEST,
        first_sequence=1,
        lifecycle=lifecycle,
        log=log,
    )
    for late_s in (0.0, 2.0):
        asked = Asked(client)
        eventually(lambda: chief.exchange.num_living == 1)
        chief.publish()
        base = asked.result()
        assert base is not None
        lease_clock.now_s += late_s
        chief.publish()
        assert client.push(base, 0, None) == gradients_pb2.PUSH_STATUS_TOO_STALE
    (warning,) = log.events("warning")
    assert warning.startswith("a gradient took longer than the chief's gradients.lease_s: it does not wait so long")
    client.close()


def test_one_helper_too_many_is_a_mistake_to_mend(
    tmp_path: Path, lifecycle: Lifecycle, free_address: Callable[[], str]
) -> None:
    chief = Chief(tmp_path, 11, max_helpers=1)
    chief.exchange.join("other", 1)
    client = ChiefClient(
        chief.server.address,
        peer=Peer(RUN_ID, experience_pb2.ROLE_HELPER, "helper-0"),
        schema_digest=DIGEST,
        first_sequence=1,
        lifecycle=lifecycle,
        log=FakeLog(),
    )
    with pytest.raises(Refused, match=r"helper-0 is refused; raise gradients\.max_helpers") as caught:
        client.next_base()
    assert caught.value.exit_code == EXIT_USER
    client.close()
    chief.stop()


def test_a_helper_of_a_drained_run_says_so_and_goes_on_with_the_next_base(
    chief: Chief, client: ChiefClient, eventually: Eventually
) -> None:
    asked = Asked(client)
    eventually(lambda: chief.exchange.num_living == 1)
    chief.drain.begin(60.0)
    eventually(lambda: client.waiting_for == "the run is drained, and takes no further step")

    def told() -> bool:
        return [reader.waiting_for for reader in chief.readers.living(10.0)] == [client.waiting_for]

    eventually(told)
    chief.drain.undo()
    chief.publish()
    assert asked.result() is not None


def test_in_a_drained_run_no_gradient_is_computed_on_the_same_base_again(tmp_path: Path, lifecycle: Lifecycle) -> None:
    chief = Chief(tmp_path, 11, mode="asynchronous", accumulate=2)
    client = ChiefClient(
        chief.server.address,
        peer=Peer(RUN_ID, experience_pb2.ROLE_HELPER, "helper-0"),
        schema_digest=DIGEST,
        first_sequence=5,
        lifecycle=lifecycle,
        log=FakeLog(),
        data_waiting_for=lambda: "too few items",
    )
    chief.publish()
    base = client.next_base()
    assert base is not None
    client._used_version = base.version
    assert client.next_base() is not None  # as ever where gradients come as they come
    chief.drain.begin(60.0)
    asked = Asked(client)
    time.sleep(0.3)
    assert asked.is_waiting()
    assert chief.readers.living(10.0)[0].waiting_for == "too few items"  # the nearest to the cause
    chief.publish()
    assert asked.result() is not None
    client.close()
    chief.stop()


def test_a_stop_while_the_chief_hangs_leaves_time_for_what_comes_after(
    chief: Chief,
    client: ChiefClient,
    lifecycle: Lifecycle,
    clock: FakeClock,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget_s = 1.2
    monkeypatch.setattr(chief_client, "PUSH_TIMEOUT_S", 1.0)
    monkeypatch.setattr("services.common.lifecycle.STOP_BUDGET_S", budget_s)
    monkeypatch.setattr("services.common.lifecycle.time", SimpleNamespace(monotonic=clock))
    asked_for = Asked(client)
    eventually(lambda: chief.exchange.num_living == 1)
    chief.publish()
    base = asked_for.result()
    assert base is not None
    release, asked = threading.Event(), threading.Event()

    def hang(*_arguments: Any) -> None:
        release.wait(10)

    monkeypatch.setattr(chief.exchange, "begin", hang)
    monkeypatch.setattr(chief.exchange, "leave", hang)
    began_s = clock.now_s
    calls: List[Tuple[str, float, float]] = []  # name, timeout, what was left of the stop's budget

    def timed(name: str) -> Callable[..., Any]:
        method = getattr(client._stub, name)

        def call(request: Any, *, timeout: float) -> Any:
            calls.append((name, timeout, budget_s - (clock.now_s - began_s)))
            asked.set()
            try:
                return method(request, timeout=timeout)
            finally:  # it hung for as long as it was given, and the first for all its time in the stop
                assert lifecycle.stopping.wait(10)
                clock.now_s += timeout

        return call

    for name in ("Push", "Leave"):
        monkeypatch.setattr(client._stub, name, timed(name))
    statuses: List[int] = []
    pushing = threading.Thread(target=lambda: statuses.append(client.push(base, 0, None)))
    pushing.start()
    try:
        assert asked.wait(5)
        lifecycle.stop("test")
        pushing.join(10)
        client.leave()
    finally:
        release.set()
    assert statuses == [gradients_pb2.PUSH_STATUS_UNSPECIFIED]
    (under_way, *last) = calls
    assert under_way == ("Push", 1.0, budget_s)
    assert [name for name, _, _ in last] == ["Push", "Leave"]
    for _, timeout_s, left_s in last:
        assert 0 < timeout_s <= left_s / 4 + 1e-9  # their own deadlines would be 2 s and 1 s
    assert clock.now_s - began_s < budget_s
