"""Certificates, CA and tokens are replaced under a real replay with a real metrics endpoint: nothing is restarted."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Iterator, List

import pytest
from cryptography import x509

from services.cli import certs_command
from services.common.config.security import SecuritySection
from services.common.files import write_atomically
from services.common.metrics import Metrics
from services.common.peer import Peer
from services.common.rpc import Caller, Server, TokenRefused, Unavailable, call_once, connect
from services.common.security.certificates import load_certificates
from services.common.security.transport import ClientSecurity, client_security, server_security
from services.replay.registration import add_to_server
from services.replay.servicer import ReplayServicer
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc
from tests.conftest import Eventually
from tests.fakes import RUN_ID, FakeLog

HOST = "machine.example"
ADDRESS = "127.0.0.1:0"
LEARNER = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "learner").to_proto()


def _certs(*words: object) -> None:
    certs_command.run([str(word) for word in words], io.StringIO())


class System:
    """A replay and its metrics, and a client in the middle of its work: each with its own copies of the files."""

    def __init__(self, folder: Path) -> None:
        self.pki, self.there, self.here = folder / "pki", folder / "server", folder / "client"
        self.log = FakeLog()
        _certs("init", self.pki)
        self.there.mkdir()
        self.here.mkdir()
        self.issue(days=30)
        self.copy_book()
        self.copy_ca(self.pki / "ca.pem")
        self.copy_token("learner")
        self.section = SecuritySection(
            ca=str(self.here / "ca.pem"),
            certificate=str(self.there / "machine.pem"),
            key=str(self.there / "machine-key.pem"),
            token=str(self.here / "learner.token"),
            tokens=str(self.there / "tokens.toml"),
        )
        security = server_security(self.section, ADDRESS, log=self.log)
        self.metrics = Metrics("replay", RUN_ID)
        self.metrics.certificate(security.certificate)
        self.metrics_port = self.metrics.serve(0, "replay.metrics_port", security=security)
        servicer = ReplayServicer(run_id=RUN_ID, incarnation=9, make_table=pytest.fail, log=self.log, fail=pytest.fail)
        self.server = Server(
            ADDRESS, max_workers=4, option_name="x", security=security, on_rejected=self.metrics.rejected_calls()
        )
        self.server.add(add_to_server, servicer)
        self.server.start()
        self.stopping = threading.Event()
        self.caller = Caller("replay", self.server.address, self.stopping, self.log, security=self.client())
        self.stub = replay_pb2_grpc.ReplayServiceStub(self.caller.channel)

    def close(self) -> None:
        self.stopping.set()
        self.caller.close()
        self.server.stop(0)
        self.metrics.stop()

    def client(self) -> ClientSecurity:
        return client_security(self.section, self.server.address, log=self.log)

    def issue(self, days: int, pki: str = "pki") -> None:
        authority = self.pki.with_name(pki)
        _certs("issue", authority, "machine", HOST, "--days", days)
        for name in ("machine-key.pem", "machine.pem"):  # as by scp: one after the other, into the files that are there
            shutil.copyfile(authority / name, self.there / name)

    def copy_book(self) -> None:
        shutil.copy(self.pki / "tokens.toml", self.there)

    def copy_token(self, role: str) -> None:
        shutil.copy(self.pki / f"{role}.token", self.here)

    def copy_ca(self, *files: Path) -> None:
        write_atomically(self.here / "ca.pem", b"".join(file.read_bytes() for file in files))

    def call(self) -> Any:
        return self.caller.call(self.stub.GetInfo, replay_pb2.GetReplayInfoRequest(peer=LEARNER), timeout_s=2)

    def call_with(self, security: ClientSecurity) -> Any:
        """One call over a new connection."""
        with connect(self.server.address, security) as channel:
            stub = replay_pb2_grpc.ReplayServiceStub(channel)
            return call_once(stub.GetInfo, replay_pb2.GetReplayInfoRequest(peer=LEARNER), timeout_s=2)

    def taken(self, name: str) -> int:
        """How often a replacement of that name came into force."""
        return self.log.events("info").count(f"the replaced {name} is in force")

    def shown(self, port: int) -> int:
        """Serial number of the certificate that a new connection to `port` is shown."""
        context = ssl.create_default_context(cafile=str(self.here / "ca.pem"))
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(("127.0.0.1", port), 5)
        with plain, context.wrap_socket(plain, server_hostname=HOST) as secured:
            der = secured.getpeercert(binary_form=True)
        assert der is not None
        return x509.load_der_x509_certificate(der).serial_number

    def scrape(self, role: str = "monitor") -> str:
        """The metrics, read with the token that lies in the CA's folder now."""
        token = (self.pki / f"{role}.token").read_text().strip()
        context = ssl.create_default_context(cafile=str(self.here / "ca.pem"))
        url = f"https://127.0.0.1:{self.metrics_port}/metrics"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:  # noqa: S310
            text: str = answer.read().decode()
        return text

    def days_left(self) -> float:
        (ends,) = re.findall(r"^shoal_replay_certificate_expires_timestamp_seconds\S* (\S+)$", self.scrape(), re.M)
        return (float(ends) - time.time()) / 86400


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System(tmp_path)
    yield made
    made.close()


def test_a_new_certificate_is_shown_and_the_connection_goes_on(system: System, eventually: Eventually) -> None:
    assert system.call().run_id == RUN_ID
    assert 29 < system.days_left() < 31
    before = system.shown(system.server.port)
    (connection,) = _connections_to(system.server.port)
    system.issue(days=90)
    newest = load_certificates(system.there / "machine.pem")[0].serial_number
    assert newest != before
    assert [system.shown(system.server.port), system.shown(system.metrics_port)] == [newest, newest]
    assert 89 < system.days_left() < 91
    assert system.call().run_id == RUN_ID
    assert _connections_to(system.server.port) == [connection]
    assert system.call_with(system.client()).run_id == RUN_ID
    assert system.taken("security.certificate and security.key") == 1


def test_half_of_a_replacement_changes_nothing_and_is_said_once(system: System) -> None:
    before = system.shown(system.server.port)
    _certs("issue", system.pki, "machine", HOST, "--days", 90)
    shutil.copyfile(system.pki / "machine.pem", system.there / "machine.pem")  # the key is still to come
    for _ in range(3):
        assert [system.shown(port) for port in (system.server.port, system.metrics_port)] == [before, before]
    assert 29 < system.days_left() < 31  # of what is shown, not of what lies there
    said = [event for event in system.log.events("warning") if "cannot be used" in event]
    assert said == ["the replaced security.certificate and security.key cannot be used: the earlier one stays in force"]
    shutil.copyfile(system.pki / "machine-key.pem", system.there / "machine-key.pem")
    assert system.shown(system.server.port) != before


def test_another_ca_is_taken_over_step_by_step(system: System, eventually: Eventually) -> None:
    old, new = system.pki / "ca.pem", system.pki.with_name("pki2") / "ca.pem"
    _certs("init", new.parent)
    assert system.call().run_id == RUN_ID
    system.copy_ca(old, new)
    eventually(lambda: system.call() and system.taken("security.ca") == 1)
    system.issue(days=30, pki="pki2")
    assert system.call_with(system.client()).run_id == RUN_ID
    stranger = client_security(system.section.model_copy(update={"ca": str(old)}), system.server.address)
    with pytest.raises(Unavailable):
        system.call_with(stranger)
    system.copy_ca(new)
    eventually(lambda: system.call() and system.taken("security.ca") == 2)
    assert system.call().run_id == RUN_ID


def test_calls_under_way_outlive_the_ca_that_they_began_with(system: System, eventually: Eventually) -> None:
    answers: List[str] = []
    calling = threading.Event()

    def call_on() -> None:
        while not calling.wait(0.001):
            answers.append(system.call().run_id)

    threads = [threading.Thread(target=call_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    ca = (system.pki / "ca.pem").read_bytes()
    for round_ in range(3):
        write_atomically(system.here / "ca.pem", ca + b"\n" * (round_ + 1))
        taken = round_ + 1
        eventually(lambda n=taken: system.taken("security.ca") == n)
    calling.set()
    for thread in threads:
        thread.join(10)
    assert set(answers) == {RUN_ID}
    assert system.log.events("warning") == []
    eventually(lambda: len(_connections_to(system.server.port)) == 1)  # lines of earlier certificates are hung up


def test_a_withdrawn_token_is_refused_and_the_next_one_goes_on_where_it_was(
    system: System, eventually: Eventually
) -> None:
    old = (system.here / "learner.token").read_text().strip()
    past = ClientSecurity(system.client().certificates, token=lambda: old)
    monitor = system.scrape()
    assert "rejected_calls_total" in monitor
    assert system.call().run_id == RUN_ID
    _certs("token", system.pki, "learner")  # a further one: both are good
    system.copy_book()
    system.copy_token("learner")
    time.sleep(1.1)
    assert [system.call().run_id, system.call_with(past).run_id] == [RUN_ID, RUN_ID]
    _certs("token", system.pki, "learner", "--replace")
    system.copy_book()  # and not yet to the client, which is in the middle of its work
    time.sleep(1.1)
    with pytest.raises(TokenRefused, match="does not know the caller's token"):
        system.call_with(past)
    answers: List[Any] = []
    asking = threading.Thread(target=lambda: answers.append(system.call()))
    asking.start()
    eventually(lambda: "this service does not know the caller's token" in system.caller.waiting_for)
    system.copy_token("learner")
    asking.join(10)
    assert [answer.run_id for answer in answers] == [RUN_ID]
    assert system.caller.waiting_for == ""


def test_the_token_of_the_metrics_endpoint_is_changed_likewise(system: System) -> None:
    assert "shoal_replay" in system.scrape()
    old = (system.pki / "monitor.token").read_bytes()
    _certs("token", system.pki, "monitor", "--replace")
    system.copy_book()
    time.sleep(1.1)
    assert "shoal_replay" in system.scrape()
    (system.pki / "monitor.token").write_bytes(old)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        system.scrape()


def test_a_token_that_was_never_known_ends_the_process_with_a_sentence(system: System) -> None:
    _certs("token", system.pki, "learner")  # its list was never copied to the service
    system.copy_token("learner")
    time.sleep(1.1)
    stranger = Caller("replay", system.server.address, system.stopping, system.log, security=system.client())
    ask = replay_pb2_grpc.ReplayServiceStub(stranger.channel).GetInfo
    with contextlib.closing(stranger), pytest.raises(TokenRefused, match="does not know the caller's token"):
        stranger.call(ask, replay_pb2.GetReplayInfoRequest(peer=LEARNER), timeout_s=2)


def _connections_to(port: int) -> List[str]:
    """Local ends of this machine's established TCP connections to `port`."""
    found = []
    for table in ("tcp", "tcp6"):  # gRPC's sockets are of the second kind, whatever the address
        for line in Path(f"/proc/net/{table}").read_text(encoding="utf-8").splitlines()[1:]:
            _, here, there, state = line.split()[:4]
            if int(there.split(":")[1], 16) == port and state == "01":
                found.append(here)
    return found
