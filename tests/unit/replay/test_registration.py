from __future__ import annotations

import time
from typing import Any

import grpc
import numpy as np
import pytest

from services.common.rpc import connect
from services.common.sample_codec import decode_batch, read_response
from services.replay.registration import add_to_server
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import replay_pb2, replay_pb2_grpc
from tests.conftest import Serve
from tests.fakes import RUN_ID, FakeLog, ReplayPeers, make_chunk


@pytest.fixture
def servicer() -> ReplayServicer:
    settings = TableSettings(capacity=256, max_batch_size=8, max_num_batches=3, min_size_to_sample=1)
    return ReplayServicer(
        run_id=RUN_ID,
        incarnation=1,
        make_table=lambda schema: Table(settings, schema, clock=time.monotonic),
        log=FakeLog(),
        fail=pytest.fail,
    )


def test_it_serves_what_the_generated_code_would(servicer: ReplayServicer) -> None:
    class Recorder:
        """A server that keeps what is added to it."""

        def __init__(self) -> None:
            self.handlers: Any = {}

        def add_generic_rpc_handlers(self, handlers: Any) -> None:
            (handler,) = handlers
            self.name, self.handlers = handler.service_name(), handler._method_handlers

        def add_registered_method_handlers(self, _name: str, _handlers: Any) -> None:
            """What newer versions of gRPC add, to the same effect."""

    ours, generated = Recorder(), Recorder()
    add_to_server(servicer, ours)  # type: ignore[arg-type]
    replay_pb2_grpc.add_ReplayServiceServicer_to_server(servicer, generated)
    assert ours.name == generated.name
    assert set(ours.handlers) == set(generated.handlers)
    for name, handler in ours.handlers.items():
        assert handler.request_deserializer == generated.handlers[name].request_deserializer
        assert (handler.request_streaming, handler.response_streaming) == (False, False)
        if not name.endswith("/Sample"):
            assert handler.unary_unary == generated.handlers[name].unary_unary
            assert handler.response_serializer == generated.handlers[name].response_serializer


def test_a_sample_reads_the_same_by_protobuf_and_without_copies(servicer: ReplayServicer, serve: Serve) -> None:
    with connect(serve(add_to_server, servicer)) as channel:
        peers = ReplayPeers(replay_pb2_grpc.ReplayServiceStub(channel))
        assert peers.sample().status == replay_pb2.SAMPLE_STATUS_WAITING
        chunk = make_chunk(8, 2, version=3)
        assert peers.insert(chunk).status == replay_pb2.INSERT_STATUS_APPLIED
        response = peers.sample(batches=3, size=8)
        assert response.status == replay_pb2.SAMPLE_STATUS_OK
        batches = decode_batch(response.items.SerializeToString(), response.num_items).split(8)
        assert [len(batch) for batch in batches] == [8, 8, 8]
        for batch in batches:
            for at, key in enumerate(batch.keys):
                item: Any = servicer.table.inspector.item(int(key)) if servicer.table else None
                np.testing.assert_array_equal(batch.observation["policy"][at], item.columns["observation.policy"])
        raw = channel.unary_unary(
            "/shoal.v1.ReplayService/Sample",
            request_serializer=replay_pb2.SampleRequest.SerializeToString,
            response_deserializer=read_response,
        )
        request = replay_pb2.SampleRequest(num_batches=1, batch_size=4)
        with pytest.raises(grpc.RpcError):
            raw(request, timeout=5)  # without a peer
