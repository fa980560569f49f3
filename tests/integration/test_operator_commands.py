"""What the operator's commands ask of replay and chief, over real connections: words, drains, flushes, and tokens."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np
import pytest

from services.actor.chunk_sender import ChunkSender
from services.actor.parameter_client import Draining, ParameterClient
from services.cli import __main__ as command
from services.cli import certs_command
from services.common.config.security import SecuritySection
from services.common.errors import Fenced
from services.common.lifecycle import Lifecycle
from services.common.peer import Peer
from services.common.ring_layout import RingFormat
from services.common.rpc import Refused, Server, Stopped, Unavailable, call_once, connect
from services.common.run_folder import RunFolder
from services.common.security.transport import client_security, server_security
from services.learner.drain import Drain, DrainPhase
from services.learner.helpers import HelperView
from services.learner.parameter_service import ParameterServicer, Status, add_to_server
from services.learner.parameter_store import ACT, ParameterStore
from services.learner.readers import Readers
from services.learner.version_reservation import VersionReservation
from services.replay.registration import add_to_server as add_replay
from services.replay.ring_folder import RingFolder
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc, replay_pb2, replay_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, SCHEMA, FakeLog, ReplayPeers, make_chunk

OPERATOR = Peer("", experience_pb2.ROLE_OPERATOR, "test").to_proto()
SETTINGS = TableSettings(capacity=256, n_step=1, max_batch_size=64)


class System:
    """A served replay and the service of a chief, without a training loop."""

    def __init__(self, tmp_path: Path, serve: Callable[[Any, Any], str], folder: bool = False) -> None:
        ring = None
        if folder:
            ring_format = RingFormat(RUN_ID, SCHEMA, SETTINGS.capacity, 1, 0.99, boot_id="", made_wall_s=time.time())
            ring = RingFolder.create(tmp_path / "ring", ring_format, "0123")
        self.ring = ring
        self.log = FakeLog()
        self.table = Table(SETTINGS, SCHEMA, clock=time.monotonic, folder=ring)
        self.replay = ReplayServicer(
            run_id=RUN_ID,
            incarnation=9,
            make_table=lambda _schema: self.table,
            log=self.log,
            fail=pytest.fail,
            table=self.table,
        )
        self.status = Status(run_state=parameters_pb2.RUN_STATE_TRAINING)
        self.store = ParameterStore(VersionReservation(tmp_path / "versions.json"))
        self.readers = Readers(time.monotonic, 2)
        self.drain = Drain(self.readers, time.monotonic, self.log)  # type: ignore[arg-type]
        self.drain._born_s -= 60.0  # it has heard of all of its actors
        self.helpers: List[HelperView] = []
        self.chief = ParameterServicer(
            run_id=RUN_ID,
            incarnation=1,
            store=self.store,
            readers=self.readers,
            folder=RunFolder(tmp_path),
            status=self.status,
            num_actors=2,
            max_updates=100,
            waiting_for=lambda: "waiting for batches",
            waited_s=lambda: 4.5,
            helpers=lambda: self.helpers,
            drain=self.drain,
            fail=pytest.fail,
            log=self.log,  # type: ignore[arg-type]
        )
        self.replay_address = serve(add_replay, self.replay)
        self.learner_address = serve(add_to_server, self.chief)

    @property
    def flags(self) -> List[str]:
        return ["--replay.addresses", self.replay_address, "--learner.address", self.learner_address]

    def publish(self, bias: float = 0.5) -> int:
        return self.store.publish({ACT: {"policy.bias": np.full(1, bias, np.float32)}}, 1).version

    def replay_info(self) -> Any:
        with connect(self.replay_address) as channel:
            return ReplayPeers(replay_pb2_grpc.ReplayServiceStub(channel)).info()

    def learner_call(self, method: str, request: Any) -> Any:
        with connect(self.learner_address) as channel:
            stub = parameters_pb2_grpc.ParameterServiceStub(channel)
            for _ in range(20):  # a busy machine may not set up a connection at once
                try:
                    return call_once(getattr(stub, method), request, timeout_s=5)
                except Unavailable:
                    time.sleep(0.1)
            raise AssertionError("the chief does not answer")


@pytest.fixture
def system(tmp_path: Path, serve: Serve) -> System:
    return System(tmp_path, serve)


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str]) -> Callable[..., Tuple[int, str, str]]:
    def run(*words: str) -> Tuple[int, str, str]:
        code = command.main(list(words))
        answer = capsys.readouterr()
        return code, answer.out, answer.err

    return run


# Actors


@pytest.fixture
def make_sender(system: System, lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("services.actor.chunk_sender.LOOK_S", 0.02)
    monkeypatch.setattr("services.actor.chunk_sender.TELL_PERIOD_S", 0.3)
    made: List[ChunkSender] = []

    def make(incarnation: int = 5, **changes: Any) -> ChunkSender:
        arguments: Dict[str, Any] = {
            "peer": Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0", incarnation),
            "schema": SCHEMA,
            "buffer_chunks": 4,
            "drop_oldest": False,
            "on_version": lambda _version: None,
            "stopping": lifecycle.stopping,
            "log": FakeLog(),
            **changes,
        }
        made.append(ChunkSender(system.replay_address, **arguments))
        return made[-1]

    yield make
    lifecycle.stop("the test is over")
    for one in made:
        one.close()


def test_an_actor_that_sends_nothing_says_why_until_it_sends_again(
    system: System, make_sender: Any, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    says = ["parked: for a while"]
    sender = make_sender(idle_for=lambda: says[0])
    lifecycle.spawn("sender", sender.run)
    sender.put(make_chunk(0, 2))
    eventually(lambda: any(actor.waiting_for == says[0] for actor in system.replay_info().actors))
    (actor,) = system.replay_info().actors
    assert actor.acknowledged_steps == 0
    eventually(lambda: system.replay_info().actors[0].waiting_seconds > 0.5)  # one wait, not one a word
    says[0] = ""
    sender.put(make_chunk(4, 2, sequence=1))
    eventually(lambda: sender.is_empty and sender.acknowledged_steps == 8)
    (actor,) = system.replay_info().actors
    assert (actor.waiting_for, actor.life_acknowledged_steps) == ("", 8)
    assert (actor.counters.produced_steps, actor.counters.buffered_steps) == (8, 0)


def test_an_idle_actor_hears_that_a_newer_life_has_taken_over(
    system: System, make_sender: Any, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    system.table.insert("actor-0", 5, make_chunk(4, 2), max_wait_s=0.0)
    system.table.insert("actor-0", 6, make_chunk(4, 2), max_wait_s=0.0)
    sender = make_sender(incarnation=5, idle_for=lambda: "at rest")
    thread = lifecycle.spawn("sender", sender.run)
    eventually(lambda: not thread.is_alive())
    with pytest.raises(Fenced, match="was started anew"):
        lifecycle.check()


def test_the_word_of_the_drain_goes_from_the_chief_through_the_replay_to_actors(
    system: System, make_sender: Any, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    heard: List[bool] = []
    sender = make_sender(on_draining=heard.append)
    lifecycle.spawn("sender", sender.run)
    with connect(system.replay_address) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        for role, draining in (("LEARNER", True), ("HELPER", False), ("LEARNER", False)):
            peer = Peer(RUN_ID, experience_pb2.Role.Value(f"ROLE_{role}"), role.lower()).to_proto(SCHEMA.digest)
            request = replay_pb2.SampleRequest(peer=peer, num_batches=1, batch_size=8, draining=draining)
            call_once(stub.Sample, request, timeout_s=5)
            before = len(heard)
            sender.put(make_chunk(4, 2, sequence=before, first_step=4 * before))
            eventually(lambda: len(heard) == before + 1)  # noqa: B023 (asked at once)
    assert heard == [True, True, False]  # a helper's silence about it says nothing
    assert not system.replay_info().draining


@pytest.fixture
def make_client(system: System, lifecycle: Lifecycle) -> Iterator[Any]:
    made: List[ParameterClient] = []

    def make(**changes: Any) -> ParameterClient:
        arguments: Dict[str, Any] = {
            "peer": Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0"),
            "poll_period_s": 3600.0,
            "lifecycle": lifecycle,
            "log": FakeLog(),
            **changes,
        }
        made.append(ParameterClient(system.learner_address, **arguments))
        return made[-1]

    yield make
    lifecycle.stop("the test is over")
    for one in made:
        one.close()


def test_an_actors_client_asks_at_once_when_the_drain_is_news_and_says_when_it_is_at_rest(
    system: System, make_client: Any, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    system.publish()
    at_rest = [False]
    client = make_client(is_drained=lambda: at_rest[0])
    lifecycle.spawn("parameters", client.run)
    eventually(lambda: client.newest is not None)
    assert not client.is_draining
    system.drain.loop_begins()
    system.drain.begin(60.0)
    client.hint_draining(True)
    eventually(lambda: client.is_draining)
    assert system.drain.state().phase is DrainPhase.ACTORS
    at_rest[0] = True
    client.ask_now()
    eventually(lambda: system.drain.state().phase is DrainPhase.LEARNER)
    system.drain.undo()
    client.hint_draining(False)
    client.wait_while_draining()
    assert not client.is_draining


def test_who_waits_for_parameters_when_the_drain_begins_waits_no_longer(
    system: System, make_client: Any, lifecycle: Lifecycle
) -> None:
    client = make_client()
    assert client.parked_for == ""
    system.drain.begin(60.0)
    client.fetch()
    with pytest.raises(Draining):
        client.wait_for_newest(60.0)
    assert client.parked_for == ""


def test_a_stop_ends_the_rest(system: System, make_client: Any, lifecycle: Lifecycle) -> None:
    system.drain.begin(60.0)
    client = make_client()
    client.fetch()
    lifecycle.stop("the test says so")
    with pytest.raises(Stopped):
        client.wait_while_draining()


# The chief


def test_only_an_operator_drains_and_never_what_is_finished(system: System) -> None:
    learner = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0").to_proto()
    with pytest.raises(Refused, match=r"actor-0 is no operator; only `shoal drain`"):
        system.learner_call("Drain", parameters_pb2.DrainRequest(peer=learner, actors_within_seconds=5))
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(Refused, match="must be above 0 seconds"):
            system.learner_call("Drain", parameters_pb2.DrainRequest(peer=OPERATOR, actors_within_seconds=seconds))
    system.status.run_state = parameters_pb2.RUN_STATE_FINISHED
    with pytest.raises(Refused, match="training is finished"):
        system.learner_call("Drain", parameters_pb2.DrainRequest(peer=OPERATOR, actors_within_seconds=5))
    assert not system.drain.is_on


def test_what_the_chief_tells_of_itself(system: System) -> None:
    system.publish()
    system.helpers = [HelperView("helper-0", 3, 2.5, 17, is_awaited=True, push_waits_s=0.25)]
    system.drain.loop_begins()
    answer = system.learner_call("Drain", parameters_pb2.DrainRequest(peer=OPERATOR, actors_within_seconds=60))
    assert answer.drain.phase == parameters_pb2.DRAIN_PHASE_LEARNER  # there is no actor to wait for
    request = parameters_pb2.GetParametersRequest(
        peer=Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0").to_proto(),
        role=ACT,
        waiting_for="the env",
        drained=True,
    )
    assert system.learner_call("Get", request).manifest.draining
    info = system.learner_call("GetInfo", parameters_pb2.GetLearnerInfoRequest(peer=OPERATOR))
    assert (info.waiting_for, info.waiting_seconds) == ("waiting for batches", 4.5)
    (reader,) = info.readers
    assert (reader.drained, reader.waiting_for) == (True, "the env")
    (helper,) = info.helpers
    assert (helper.name, helper.pushes, helper.is_awaited, helper.push_waits_seconds) == ("helper-0", 17, True, 0.25)
    assert info.drain.phase == parameters_pb2.DRAIN_PHASE_LEARNER
    system.learner_call("Drain", parameters_pb2.DrainRequest(peer=OPERATOR, undo=True))
    assert not system.drain.is_on


# The commands


def test_a_drain_of_a_system_without_a_loop_flushes_the_replay(tmp_path: Path, serve: Serve, shoal: Any) -> None:
    system = System(tmp_path, serve, folder=True)
    system.table.insert("actor-0", 5, make_chunk(4, 2), max_wait_s=0.0)
    system.table.set_newest(1, 1)
    code, out, _ = shoal("drain", *system.flags, "--deadline", "5")
    lines = out.splitlines()
    assert f"the replay has flushed 8 steps to {(tmp_path / 'ring').resolve()}" in lines
    # The chunk came without counters: what its actor produced is not known, and that is said.
    assert code == 1
    assert any(line.startswith("NOT SAFE  0 produced by actor-0 = 8 acknowledged") for line in lines)
    assert shoal("drain", "--undo", *system.flags)[0] == 0
    assert not system.drain.is_on
    assert system.ring is not None
    system.ring.close()


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Tuple[System, Callable[[str], List[str]]]]:
    """A system behind TLS and tokens, and the flags of a command with the token of a role."""
    pki = tmp_path / "pki"
    certs_command.run(["init", str(pki)], io.StringIO())
    certs_command.run(["issue", str(pki), "machine", "machine.example"], io.StringIO())
    values = {name: str(pki / f"{file}.pem") for name, file in (("ca", "ca"), ("certificate", "machine"))}
    section = SecuritySection(**values, key=str(pki / "machine-key.pem"), tokens=str(pki / "tokens.toml"))
    servers: List[Server] = []

    def serve(register: Any, servicer: Any) -> str:
        security = server_security(section, "127.0.0.1:0")
        servers.append(Server("127.0.0.1:0", max_workers=8, option_name="test", security=security))
        servers[-1].add(register, servicer)
        servers[-1].start()
        return servers[-1].address

    system = System(tmp_path, serve)

    def flags(role: str) -> List[str]:
        return [*system.flags, "--security.ca", values["ca"], "--security.token", str(pki / f"{role}.token")]

    assert client_security(section.model_copy(update={"token": str(pki / "operator.token")}), system.replay_address)
    yield system, flags
    for server in servers:
        server.stop(0)


def test_commands_go_through_tls_with_the_token_of_their_role(
    secured: Tuple[System, Callable[[str], List[str]]], shoal: Any
) -> None:
    system, flags = secured
    for role in ("monitor", "operator"):
        code, out, _ = shoal("top", "--json", *flags(role))
        facts = json.loads(out)
        assert (code, facts["problem"], facts["learner"]["run_state"]) == (0, "", "training")
        assert shoal("audit", *flags(role))[0] == 0
        assert "learner waits for 0:04: waiting for batches" in shoal("why", *flags(role))[1]
    code, _, err = shoal("drain", *flags("monitor"))
    assert code == 2
    assert "a token of monitor may not call Drain" in err
    assert not system.drain.is_on
    code, out, _ = shoal("drain", *flags("operator"))
    assert (code, system.drain.is_on) == (0, True)  # the ring is empty: nothing in memory can be lost
    assert "it is safe to stop all services" in out
    assert shoal("drain", "--undo", *flags("monitor"))[0] == 2
    assert system.drain.is_on
    code, _, err = shoal("why", *system.flags)  # neither certificate nor token
    assert code in (0, 2)
