"""The door of real servers: TLS, and who may call what."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.config.security import SecuritySection
from services.common.rpc import Refused, Server, Unavailable, call_once, connect
from services.common.security.guard import _ROLES, AUTHORIZATION
from services.common.security.tokens import ROLES
from services.common.security.transport import CALL_IN_THE_CLEAR, ClientSecurity, client_security, server_security
from shoal.v1 import (
    experience_pb2,
    gradients_pb2,
    gradients_pb2_grpc,
    parameters_pb2,
    parameters_pb2_grpc,
    replay_pb2,
    replay_pb2_grpc,
)
from tests.unit.common.security.conftest import MakeSection

FILES = (replay_pb2, parameters_pb2, gradients_pb2)
STUBS = {
    "ReplayService": replay_pb2_grpc.ReplayServiceStub,
    "ParameterService": parameters_pb2_grpc.ParameterServiceStub,
    "GradientService": gradients_pb2_grpc.GradientServiceStub,
}
PEER_ROLES = {
    "actor": experience_pb2.ROLE_ACTOR,
    "learner": experience_pb2.ROLE_LEARNER,
    "evaluator": experience_pb2.ROLE_EVALUATOR,
    "operator": experience_pb2.ROLE_OPERATOR,
    "monitor": experience_pb2.ROLE_OPERATOR,
}


def _methods() -> List[Tuple[str, str, Any]]:
    """(service, method, class of its request) of the whole contract."""
    return [
        (service.name, method.name, getattr(module, method.input_type.name))
        for module in FILES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


class _Everything:
    """Answers each method of each service with an empty message."""

    def __getattr__(self, method: str) -> Any:
        def answer(_request: Any, _context: Any) -> Any:
            return next(
                getattr(module, f"{prefix}Response")()
                for module in FILES
                for prefix in (method, f"{method}s", f"{method}Parameters", "GetReplayInfo", "GetLearnerInfo")
                if hasattr(module, f"{prefix}Response")
            )

        return answer


@contextlib.contextmanager
def _serving(section: SecuritySection, rejected: Counter) -> Iterator[str]:
    server = Server(
        "127.0.0.1:0",
        max_workers=4,
        option_name="x",
        security=server_security(section, "127.0.0.1:0"),
        on_rejected=lambda word: rejected.update([word]),
    )
    everything: Any = _Everything()
    server.add(replay_pb2_grpc.add_ReplayServiceServicer_to_server, everything)
    server.add(parameters_pb2_grpc.add_ParameterServiceServicer_to_server, everything)
    server.add(gradients_pb2_grpc.add_GradientServiceServicer_to_server, everything)
    server.start()
    try:
        yield server.address
    finally:
        server.stop(0)


@pytest.fixture
def rejected() -> Counter:
    return Counter()


@pytest.fixture
def address(section: MakeSection, rejected: Counter) -> Iterator[str]:
    with _serving(section(), rejected) as served:
        yield served


def _info(role: int = experience_pb2.ROLE_ACTOR) -> replay_pb2.GetReplayInfoRequest:
    return replay_pb2.GetReplayInfoRequest(peer=experience_pb2.Peer(role=role))


def _call(address: str, security: ClientSecurity) -> Any:
    with connect(address, security) as channel:
        return call_once(replay_pb2_grpc.ReplayServiceStub(channel).GetInfo, _info(), timeout_s=5)


def test_every_method_of_the_contract_has_its_roles() -> None:
    assert set(_ROLES) == {f"/shoal.v1.{service}/{method}" for service, method, _ in _methods()}
    assert all(roles <= set(ROLES) and roles for roles in _ROLES.values())


@pytest.mark.parametrize("role", ROLES)
def test_a_token_opens_what_its_role_may_and_nothing_else(
    role: str, address: str, section: MakeSection, rejected: Counter
) -> None:
    may, refusals = [], []
    with connect(address, client_security(section(role), address)) as channel:
        for service, method, request_class in _methods():
            request = request_class(peer=experience_pb2.Peer(role=PEER_ROLES[role]))
            try:
                call_once(getattr(STUBS[service](channel), method), request, timeout_s=5)
            except Refused as error:
                refusals.append((f"a token of {role} may not call {method}: that takes a token of", str(error)))
            else:
                may.append(f"{service}.{method}")
    assert all(said.startswith(expected) for expected, said in refusals)
    expected = {
        "actor": ["ReplayService.Insert", "ParameterService.GetManifest", "ParameterService.Get"],
        "learner": [
            "ReplayService.Inspect",
            "ReplayService.Sample",
            "ReplayService.UpdatePriorities",
            "ParameterService.GetManifest",
            "ParameterService.Get",
            "GradientService.Join",
            "GradientService.Push",
            "GradientService.Leave",
        ],
        "evaluator": ["ParameterService.GetManifest", "ParameterService.Get", "ParameterService.ReportEvaluation"],
        "operator": [
            "ReplayService.Inspect",
            "ReplayService.Snapshot",
            "ReplayService.Flush",
            "ParameterService.Drain",
            "ParameterService.GetManifest",
            "ParameterService.Get",
        ],
        "monitor": [],
    }[role]
    assert sorted(may) == sorted([*expected, "ReplayService.GetInfo", "ParameterService.GetInfo"])
    assert rejected == {"wrong_role": len(_methods()) - len(may)}


def test_a_token_stands_for_no_other_role(address: str, section: MakeSection, rejected: Counter) -> None:
    with connect(address, client_security(section("actor"), address)) as channel:
        stub = parameters_pb2_grpc.ParameterServiceStub(channel)
        request = parameters_pb2.GetManifestRequest(peer=experience_pb2.Peer(role=experience_pb2.ROLE_EVALUATOR))
        with pytest.raises(Refused, match="a token of actor came with a peer of role ROLE_EVALUATOR"):
            call_once(stub.GetManifest, request, timeout_s=5)
    assert rejected == {"false_peer": 1}


def test_without_a_token_or_with_a_wrong_one_nothing_is_answered(
    address: str, section: MakeSection, rejected: Counter
) -> None:
    known = client_security(section(), address)
    with pytest.raises(Refused, match=r"asks for a token: set security\.token"):
        _call(address, ClientSecurity(known.certificates))
    for token in ("shoal-actor-guess", "", "x" * 5000):
        with pytest.raises(Refused, match="does not know the caller's token"):
            _call(address, ClientSecurity(known.certificates, token=lambda token=token: token))
    assert rejected == {"no_token": 1, "unknown_token": 3}
    with connect(address, ClientSecurity(known.certificates)) as channel:  # another scheme than Bearer
        call = replay_pb2_grpc.ReplayServiceStub(channel).GetInfo
        with pytest.raises(grpc.RpcError):
            call(_info(), timeout=5, metadata=[(AUTHORIZATION, "Basic c2hvYWw6eA==")])
    assert rejected["no_token"] == 2


def test_health_is_answered_without_a_token(address: str, section: MakeSection, rejected: Counter) -> None:
    with connect(address, ClientSecurity(client_security(section(), address).certificates)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = call_once(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert not rejected


def test_a_caller_in_the_clear_and_one_that_trusts_another_ca_get_nowhere(
    address: str, section: MakeSection, tmp_path: Path
) -> None:
    import io

    from services.cli import certs_command

    certs_command.run(["init", str(tmp_path / "other")], io.StringIO())
    stranger = client_security(section(ca=str(tmp_path / "other" / "ca.pem")), address)
    for security in (CALL_IN_THE_CLEAR, stranger):
        with pytest.raises(Unavailable):
            _call(address, security)
    assert _call(address, client_security(section(), address)) is not None


def test_mutual_tls_asks_callers_for_a_certificate(section: MakeSection, rejected: Counter) -> None:
    with _serving(section(mutual=True), rejected) as address:
        with pytest.raises(Unavailable):
            _call(address, client_security(section(), address))
        assert _call(address, client_security(section(mutual=True), address)) is not None


def test_a_replaced_certificate_counts_for_new_connections_without_a_restart(
    address: str, folder: Path, section: MakeSection
) -> None:
    import io

    from services.cli import certs_command
    from services.common.security.certificates import load_certificates

    before = _peer_certificate(address, folder)
    assert _call(address, client_security(section(), address)) is not None
    certs_command.run(["issue", str(folder), "machine", "machine.example"], io.StringIO())
    after = _peer_certificate(address, folder)
    assert after != before
    assert after == load_certificates(folder / "machine.pem")[0].serial_number
    assert _call(address, client_security(section(), address)) is not None
    # Half a replacement, a certificate that is not the key's, locks nobody out.
    certs_command.run(["issue", str(folder), "other", "machine.example"], io.StringIO())
    (folder / "other.pem").replace(folder / "machine.pem")
    assert _peer_certificate(address, folder) == after


def _peer_certificate(address: str, folder: Path) -> int:
    """Serial number of the certificate that a new connection is shown."""
    import socket
    import ssl

    from cryptography import x509

    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), 5)
    with plain, context.wrap_socket(plain, server_hostname="machine.example") as secured:
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number
