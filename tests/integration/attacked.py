"""Services that strangers attack, in this process, as theirs builds them: a replay or a chief, with its metrics."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import grpc
import numpy as np
import pytest
from typing_extensions import Self

from services.common.config.gradients import GradientsSection
from services.common.config.security import SecuritySection
from services.common.metrics import Metrics
from services.common.peer import Peer
from services.common.rpc import MAX_HELD_BYTES, Server, Unavailable, call_once, connect
from services.common.run_folder import RunFolder
from services.common.schema import Schema
from services.common.security.transport import client_security, server_security
from services.learner.collaboration import Collaboration
from services.learner.parameter_service import ParameterServicer, Status
from services.learner.parameter_service import add_to_server as add_parameters
from services.learner.parameter_store import ACT, ParameterStore
from services.learner.readers import Readers
from services.learner.version_reservation import VersionReservation
from services.replay.footprint import TableTooLarge
from services.replay.registration import add_to_server
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import (
    experience_pb2,
    gradients_pb2,
    gradients_pb2_grpc,
    parameters_pb2,
    parameters_pb2_grpc,
    replay_pb2,
    replay_pb2_grpc,
)
from tests.fakes import RUN_ID, FakeLog, ReplayPeers, make_chunk

WORKERS = 8
MAX_PEERS = 20
HONEST_S = 5.0  # within which an honest call must be answered, whatever strangers do
SCHEMA_DIGEST = "0123456789abcdef"


def resident_bytes() -> int:
    """Memory of this process, client and server together."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


class Peak:
    """How much memory this process took at most, looked at a thousand times a second."""

    grown_bytes = 0

    def __enter__(self) -> Self:
        before, self._over = resident_bytes(), threading.Event()

        def look() -> None:
            while not self._over.wait(0.001):
                self.grown_bytes = max(self.grown_bytes, resident_bytes() - before)

        self._thread = threading.Thread(target=look)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join()


class Attacked:
    """A server and its metrics; `pki` is a folder of `shoal certs`, or None: in the clear, and without tokens."""

    name: str  # of the service
    protos: Tuple[str, ...]  # full names of what it serves
    info: str  # path of a method that all tokens may call
    large: str  # of one whose answers to `large_request` are large, by callers of `large_role`
    large_role: str
    large_request: bytes

    def __init__(self, pki: Any = None, *, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self.log = FakeLog()
        self.metrics = Metrics(self.name, RUN_ID)
        self._pki = pki
        self._section = SecuritySection()
        if pki is not None:
            names = {"ca": "ca.pem", "certificate": "box.pem", "key": "box-key.pem", "tokens": "tokens.toml"}
            self._section = SecuritySection(**{key: str(pki / file) for key, file in names.items()})
        security = server_security(self._section, log=self.log)
        self.server = Server(
            "127.0.0.1:0",
            max_workers=WORKERS,
            max_held_bytes=max_held_bytes,
            option_name="test",
            security=security,
            on_rejected=self.metrics.rejected_calls(),
            observe=self.metrics.calls(),
        )
        self.add_services()
        self.server.start()
        self.metrics_port = self.metrics.serve(0, "test", security=security)
        self._channels: Dict[str, grpc.Channel] = {}

    def add_services(self) -> None:
        """Build what is served, and add it to the server."""
        raise NotImplementedError

    def serve_honest(self) -> None:
        """Make some calls of each kind, as peers of ours do."""
        raise NotImplementedError

    def check_served(self) -> None:
        """Honest peers are answered, and Prometheus reads, each in time."""
        began_s = time.monotonic()
        self.serve_honest()
        self.scrape()
        assert time.monotonic() - began_s < 3 * HONEST_S

    def token(self, role: str) -> str:
        """The token of a role; empty where none is asked for."""
        return "" if self._pki is None else (self._pki / f"{role}.token").read_text().strip()

    def channel(self, role: str) -> grpc.Channel:
        """A connection with the token of a role."""
        if role not in self._channels:
            section = self._section
            if self._pki is not None:
                section = SecuritySection(ca=section.ca, token=str(self._pki / f"{role}.token"))
            self._channels[role] = connect(self.server.address, client_security(section, log=self.log))
        return self._channels[role]

    def channel_of_a_stranger(self) -> grpc.Channel:
        """A connection of gRPC's own, without a token, that may make calls of all kinds."""
        if self._pki is None:
            return self._channels.setdefault("", grpc.insecure_channel(self.server.address))
        ca = grpc.ssl_channel_credentials(Path(self._section.ca).read_bytes())
        return self._channels.setdefault("", grpc.secure_channel(self.server.address, ca))

    def send(self, path: str, data: bytes, role: str = "actor", **options: Any) -> Any:
        """Call with bytes of the test's own making; the error, or the answer's bytes."""
        try:
            return self.channel(role).unary_unary(path)(data, timeout=20.0, **options)
        except grpc.RpcError as error:
            return error

    def dial(self, port: int, *, inside: bool = True) -> socket.socket:
        """A socket of a stranger's; `inside`: of TLS, where there is TLS."""
        plain = socket.create_connection(("127.0.0.1", port), 5)
        if self._pki is None or not inside:
            return plain
        context = ssl.create_default_context(cafile=self._section.ca)
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def until_answered(self, call: Callable[[], Any]) -> Any:
        """Repeat a call as clients of ours do where a server is at its limit of calls."""
        deadline_s = time.monotonic() + HONEST_S
        while True:
            try:
                return call()
            except Unavailable:
                assert time.monotonic() < deadline_s, "honest peers are not served"
                time.sleep(0.05)

    def scrape(self) -> str:
        """The metrics, as Prometheus reads them."""
        deadline_s = time.monotonic() + HONEST_S
        scheme = "http" if self._pki is None else "https"
        asked = urllib.request.Request(f"{scheme}://127.0.0.1:{self.metrics_port}/metrics")  # noqa: S310
        asked.add_header("Authorization", f"Bearer {self.token('monitor')}")
        context = None if self._pki is None else ssl.create_default_context(cafile=self._section.ca)
        while True:
            try:
                with urllib.request.urlopen(asked, timeout=2, context=context) as answer:  # noqa: S310
                    text: str = answer.read().decode()
                    return text
            except OSError:
                assert time.monotonic() < deadline_s, "nobody gets at the metrics"
                time.sleep(0.1)

    def rejected(self, reason: str) -> float:
        """Calls that were rejected for a reason."""
        labels = {"run": RUN_ID, "reason": reason}
        return self.metrics.registry.get_sample_value(f"shoal_{self.name}_rejected_calls_total", labels) or 0.0

    def stop(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self.server.stop(0)
        self.metrics.stop()


class Replay(Attacked):
    """A replay of small rows."""

    name = "replay"
    protos = ("shoal.v1.ReplayService",)
    info, large = "/shoal.v1.ReplayService/GetInfo", "/shoal.v1.ReplayService/Sample"
    large_role = "learner"
    large_request = replay_pb2.SampleRequest(
        peer=Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "stranger").to_proto(), num_batches=16, batch_size=512
    ).SerializeToString()  # answered with some hundred kilobytes

    def add_services(self) -> None:
        settings = TableSettings(capacity=512, n_step=2, max_batch_size=512, max_num_batches=16, max_peers=MAX_PEERS)

        def make_table(schema: Schema) -> Table:
            if sum(spec.num_bytes for spec in schema.observation) > 1 << 20:
                raise TableTooLarge("the table of 512 rows takes more memory than there is")
            return Table(settings, schema, clock=time.monotonic)

        self.servicer = ReplayServicer(
            run_id=RUN_ID, incarnation=99, make_table=make_table, log=self.log, fail=pytest.fail
        )
        self.server.add(add_to_server, self.servicer)
        self.sequence = 0

    @property
    def peers(self) -> ReplayPeers:
        """An actor, where there are tokens."""
        return ReplayPeers(replay_pb2_grpc.ReplayServiceStub(self.channel("actor")))

    def serve_honest(self) -> None:
        chunk = make_chunk(2, 2, sequence=self.sequence, first_step=2 * self.sequence)
        status = self.until_answered(lambda: self.peers.insert(chunk, "honest")).status
        assert status in (replay_pb2.INSERT_STATUS_APPLIED, replay_pb2.INSERT_STATUS_DUPLICATE)
        self.sequence += 1
        if self.sequence > 2:
            learner = ReplayPeers(replay_pb2_grpc.ReplayServiceStub(self.channel("learner")))
            self.until_answered(lambda: learner.draw(1, 4))
        table = self.servicer.table
        assert table is not None
        assert table.check_valid() is None

    def raw(self, method: str, data: bytes) -> Any:
        """Call a method of the service by its name."""
        return self.send(f"/shoal.v1.ReplayService/{method}", data)


class Chief(Attacked):
    """A chief with a published set of some megabytes, and no training: its services alone."""

    name = "learner"
    protos = ("shoal.v1.ParameterService", "shoal.v1.GradientService")
    info, large = "/shoal.v1.ParameterService/GetInfo", "/shoal.v1.ParameterService/Get"
    large_role = "actor"
    large_request = parameters_pb2.GetParametersRequest(
        peer=Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "stranger").to_proto(), role=ACT, version=1, max_bytes=1 << 22
    ).SerializeToString()  # answered with 4 MiB

    def __init__(self, folder: Path, pki: Any = None, **options: Any) -> None:
        self._folder = folder
        super().__init__(pki, **options)

    def add_services(self) -> None:
        store = ParameterStore(VersionReservation(self._folder / "versions.json"))
        store.publish({ACT: {"policy.bias": np.zeros(3 << 20, np.float32)}}, 5)
        self.servicer = ParameterServicer(
            fail=pytest.fail,
            run_id=RUN_ID,
            incarnation=77,
            store=store,
            readers=Readers(time.monotonic, num_actors=2, max_peers=MAX_PEERS),
            folder=RunFolder(self._folder),
            status=Status(),
            num_actors=2,
            max_updates=100,
            waiting_for=lambda: "",
            log=self.log,
        )
        self.collaboration = Collaboration(
            GradientsSection(lease_s=30.0, max_helpers=MAX_PEERS),
            num_planned=2,
            run_id=RUN_ID,
            incarnation=77,
            metrics=self.metrics,
            log=self.log,
        )
        self.collaboration.servicer.expect({"q.0.bias": (30,)}, SCHEMA_DIGEST)
        self.server.add(add_parameters, self.servicer)
        self.server.add(gradients_pb2_grpc.add_GradientServiceServicer_to_server, self.collaboration.servicer)

    @property
    def readers(self) -> Any:
        """The stub of an actor."""
        return parameters_pb2_grpc.ParameterServiceStub(self.channel("actor"))

    @property
    def helpers(self) -> Any:
        """The stub of a helper."""
        return gradients_pb2_grpc.GradientServiceStub(self.channel("learner"))

    def serve_honest(self) -> None:
        actor = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "honest").to_proto()
        helper = Peer(RUN_ID, experience_pb2.ROLE_HELPER, "helper-0", 5).to_proto(SCHEMA_DIGEST)
        ask = parameters_pb2.GetManifestRequest(peer=actor, role=ACT)
        get = parameters_pb2.GetParametersRequest(peer=actor, role=ACT, version=1)
        push = gradients_pb2.PushRequest(peer=helper, sequence=1, base_version=1, chief_incarnation=3)
        calls = (
            (self.readers.GetManifest, ask),
            (self.readers.Get, get),
            (self.helpers.Join, gradients_pb2.JoinRequest(peer=helper)),
            (self.helpers.Push, push),  # of an earlier life: it is answered at once
        )
        for method, request in calls:
            self.until_answered(lambda m=method, r=request: call_once(m, r, timeout_s=HONEST_S))  # type: ignore[misc]

    def stop(self) -> None:
        self.collaboration.end("the test is over")
        super().stop()
