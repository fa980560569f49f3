from __future__ import annotations

from typing import Iterator

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.rpc import Server
from services.common.security.certificate_files import CertificateFiles
from services.common.security.renewed_channel import RenewedChannel
from services.common.security.transport import client_security, server_security
from tests.unit.common.security.conftest import MakeSection

REQUEST = health_pb2.HealthCheckRequest()


@pytest.fixture
def address(section: MakeSection) -> Iterator[str]:
    security = server_security(section(), "127.0.0.1:0")
    server = Server("127.0.0.1:0", max_workers=1, option_name="x", security=security)
    server.start()
    yield server.address
    server.stop(0)


@pytest.fixture
def files(section: MakeSection) -> CertificateFiles:
    found = client_security(section()).certificates
    assert found is not None
    return found


def test_a_stub_calls_through_it(address: str, files: CertificateFiles) -> None:
    with RenewedChannel(address, [], files) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer, call = stub.Check.with_call(REQUEST, timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert call.code().name == "OK"
        assert stub.Check(REQUEST, timeout=5) == answer


def test_streams_and_connectivity_are_not_offered(address: str, files: CertificateFiles) -> None:
    with RenewedChannel(address, [], files) as channel:
        with pytest.raises(NotImplementedError, match="unary calls alone"):
            health_pb2_grpc.HealthStub(channel).Watch(REQUEST, timeout=5)
        for offered in (channel.subscribe, channel.unsubscribe):
            with pytest.raises(NotImplementedError, match="no connectivity of its own"):
                offered(lambda _state: None)


def test_a_closed_one_makes_no_calls(address: str, files: CertificateFiles) -> None:
    channel = RenewedChannel(address, [], files)
    stub = health_pb2_grpc.HealthStub(channel)
    channel.close()
    with pytest.raises(ValueError, match="closed channel"):
        stub.Check(REQUEST, timeout=5)
