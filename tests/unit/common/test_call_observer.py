"""Calls of a real server, as its metrics count them."""

from __future__ import annotations

import urllib.request
from typing import Any

import grpc
import pytest

from services.common.metrics import Metrics
from services.common.rpc import Refused, Server, call_once, connect, refuse
from shoal.v1 import replay_pb2, replay_pb2_grpc


class _Replay(replay_pb2_grpc.ReplayServiceServicer):
    def GetInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        refuse(context, "another run" if request.peer.run_id else "")
        return replay_pb2.GetReplayInfoResponse()


def test_calls_are_counted_by_method_and_code_and_strangers_make_up_no_names() -> None:
    metrics = Metrics("replay", "run-a")
    server = Server("127.0.0.1:0", max_workers=2, option_name="x", observe=metrics.calls())
    server.add(replay_pb2_grpc.add_ReplayServiceServicer_to_server, _Replay())
    server.start()
    try:
        with connect(server.address) as channel:
            call = replay_pb2_grpc.ReplayServiceStub(channel).GetInfo
            request = replay_pb2.GetReplayInfoRequest()
            for _ in range(3):
                call_once(call, request, timeout_s=5)
            request.peer.run_id = "other"
            with pytest.raises(Refused):
                call_once(call, request, timeout_s=5)
            for number in range(20):
                with pytest.raises(grpc.RpcError):
                    channel.unary_unary(f"/made.up/Name{number}")(b"", timeout=5)
        port = metrics.serve(0, "x")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        server.stop(0)
        metrics.stop()
    counts = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if "#" not in line}
    assert {name: value for name, value in counts.items() if "_calls_total" in name} == {
        'shoal_replay_calls_total{code="OK",method="GetInfo",run="run-a"}': 3,
        'shoal_replay_calls_total{code="FAILED_PRECONDITION",method="GetInfo",run="run-a"}': 1,
        'shoal_replay_calls_total{code="UNIMPLEMENTED",method="unknown",run="run-a"}': 20,
    }
    assert counts['shoal_replay_call_seconds_count{method="GetInfo",run="run-a"}'] == 4
