from __future__ import annotations

import contextlib
import gc
import math
import random
import threading
import time
import weakref
from functools import partial
from typing import Any, Callable, List

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common import rpc
from services.common.errors import UserError
from services.common.rpc import (
    MAX_MESSAGE_BYTES,
    Backoff,
    Caller,
    Refused,
    Server,
    Stopped,
    Unavailable,
    call_once,
    connect,
    refuse,
)
from services.common.security.transport import ClientSecurity
from services.common.waits import Waits
from shoal.v1 import replay_pb2, replay_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import FakeLog

INFO = replay_pb2.GetReplayInfoRequest()


class Replay(replay_pb2_grpc.ReplayServiceServicer):
    """Answers GetInfo by `answer`, and echoes a Sample's priorities."""

    Insert: Any = None
    UpdatePriorities: Any = None
    Inspect: Any = None
    Snapshot: Any = None

    def __init__(self, answer: Callable[[grpc.ServicerContext], Any]) -> None:
        self.answer = answer
        self.calls = 0

    def GetInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.calls += 1
        self.answer(context)
        return replay_pb2.GetReplayInfoResponse(run_id="here")

    def Sample(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return replay_pb2.SampleResponse(items=replay_pb2.SampledItems(keys=request.priorities.keys))


@pytest.fixture
def caller(log: FakeLog) -> Any:
    made: List[Caller] = []

    def make(address: str, **options: Any) -> Caller:
        made.append(Caller("replay", address, threading.Event(), log, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _abort(code: grpc.StatusCode) -> Callable[[grpc.ServicerContext], Any]:
    return lambda context: context.abort(code, f"said {code.name}")


def test_a_busy_port_is_refused_with_what_to_change() -> None:
    first = Server("127.0.0.1:0", max_workers=1, option_name="replay.addresses")
    try:
        with pytest.raises(UserError) as caught:
            Server(first.address, max_workers=1, option_name="replay.addresses")
        assert f"cannot listen on {first.address}: is another process using port {first.port}?" in str(caught.value)
        assert "replay.addresses" in str(caught.value)
    finally:
        first.stop(0)


def test_a_server_tells_its_health_until_it_stops(eventually: Eventually) -> None:
    server = Server("127.0.0.1:0", max_workers=2, option_name="x")
    server.start()
    with connect(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        health = call_once(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=5)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        server.stop(0)
        with pytest.raises(Unavailable):
            call_once(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=0.5)
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("rpc")])


def test_calls_are_repeated_until_the_server_comes_up(
    caller: Any, log: FakeLog, eventually: Eventually, free_address: Callable[[], str]
) -> None:
    address, waits = free_address(), Waits(("replay_away",))
    replay, answers = Replay(lambda _context: None), []
    client = caller(address, held=partial(waits.on, "replay_away"))
    stub = replay_pb2_grpc.ReplayServiceStub(client.channel)
    asking = threading.Thread(target=lambda: answers.append(client.call(stub.GetInfo, INFO, timeout_s=5)))
    asking.start()
    eventually(lambda: client.waiting_for)
    assert waits.is_on("replay_away")
    assert client.waiting_for == f"waiting for the replay at {address}"
    server = Server(address, max_workers=1, option_name="x")
    server.add(replay_pb2_grpc.add_ReplayServiceServicer_to_server, replay)
    server.start()
    try:
        asking.join(10)
        assert [answer.run_id for answer in answers] == ["here"]
        assert client.waiting_for == ""
        assert not waits.is_on("replay_away")
        waited_s = waits.seconds()["replay_away"].total_s
        client.call(stub.GetInfo, INFO, timeout_s=5)
        assert waits.seconds()["replay_away"].total_s == waited_s > 0
        assert log.events("warning") == []  # it was only starting
        assert log.events("info") == [f"waiting for the replay at {address}", f"the replay at {address} is there"]
        assert log.lines[0] == ("info", f"waiting for the replay at {address}", {})
    finally:
        server.stop(0)


def test_a_wait_that_lasts_is_one_warning_with_its_reason(log: FakeLog, eventually: Eventually) -> None:
    stopping = threading.Event()
    client = Caller("replay", "127.0.0.1:1", stopping, log, patience_s=math.inf)
    stub, tries = replay_pb2_grpc.ReplayServiceStub(client.channel), []

    def try_it(*arguments: Any, **options: Any) -> Any:
        tries.append(arguments)
        return stub.GetInfo(*arguments, **options)

    def ask() -> None:
        with contextlib.suppress(Stopped):
            client.call(try_it, INFO, timeout_s=5)

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: client.waiting_for)
    client._patience_s = 0.3
    eventually(lambda: log.events("warning"))
    until_then = len(tries)
    eventually(lambda: len(tries) > until_then + 1)
    stopping.set()
    asking.join(5)
    client.close()
    assert log.events() == ["waiting for the replay at 127.0.0.1:1"] * 2  # however often it tried
    (values,) = [values for level, _event, values in log.lines if level == "warning"]
    assert values["waited_s"] >= 0.3
    assert values["reason"].startswith("unavailable: ")


def test_a_stop_ends_the_repeating(caller: Any, eventually: Eventually) -> None:
    client, ended = caller("127.0.0.1:1"), []
    stub = replay_pb2_grpc.ReplayServiceStub(client.channel)

    def ask() -> None:
        try:
            client.call(stub.GetInfo, INFO, timeout_s=5)
        except Stopped:
            ended.append(True)

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: client.waiting_for)
    client._stopping.set()
    asking.join(5)
    assert ended == [True]


def test_a_deadline_is_unavailable(serve: Serve) -> None:
    release = threading.Event()
    replay = Replay(lambda _context: release.wait(5))
    try:
        with connect(serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, replay)) as channel:
            began = time.monotonic()
            with pytest.raises(Unavailable, match="deadline_exceeded"):
                call_once(replay_pb2_grpc.ReplayServiceStub(channel).GetInfo, INFO, timeout_s=0.2)
            assert time.monotonic() - began < 3
    finally:
        release.set()


def test_a_token_that_was_known_and_is_no_more_is_waited_out(serve: Serve, caller: Any, eventually: Eventually) -> None:
    refuse_it, answers = _abort(grpc.StatusCode.UNAUTHENTICATED), []
    replay = Replay(lambda _context: None)
    address = serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, replay)
    client = caller(address)
    ask = replay_pb2_grpc.ReplayServiceStub(client.channel).GetInfo
    client.call(ask, INFO, timeout_s=5)
    replay.answer = refuse_it
    asking = threading.Thread(target=lambda: answers.append(client.call(ask, INFO, timeout_s=5)))
    asking.start()
    eventually(lambda: client.waiting_for)
    assert client.waiting_for == f"waiting for the replay at {address}: said UNAUTHENTICATED"
    replay.answer = lambda _context: None
    asking.join(10)
    assert [answer.run_id for answer in answers] == ["here"]
    assert client.waiting_for == ""


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    ],
)
def test_a_refusal_is_told_and_not_repeated(code: grpc.StatusCode, serve: Serve, caller: Any) -> None:
    replay = Replay(_abort(code))
    client = caller(serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, replay))
    with pytest.raises(Refused, match=f"said {code.name}"):
        client.call(replay_pb2_grpc.ReplayServiceStub(client.channel).GetInfo, INFO, timeout_s=5)
    assert replay.calls == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION])
def test_a_refusal_that_comes_in_a_stop_is_a_warning(
    code: grpc.StatusCode, serve: Serve, caller: Any, log: FakeLog
) -> None:
    def refuse_late(context: grpc.ServicerContext) -> None:
        client._stopping.set()
        _abort(code)(context)

    client = caller(serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, Replay(refuse_late)))
    with pytest.raises(Stopped):
        client.call(replay_pb2_grpc.ReplayServiceStub(client.channel).GetInfo, INFO, timeout_s=5)
    ((level, event, values),) = log.lines
    assert (level, values) == ("warning", {"reason": f"said {code.name}"})
    assert event.endswith("refused the last call")


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED]
)
def test_what_may_pass_is_repeated(code: grpc.StatusCode, serve: Serve, caller: Any) -> None:
    faults = [code, code]
    replay = Replay(lambda context: _abort(faults.pop())(context) if faults else None)
    client = caller(serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, replay))
    answer = client.call(replay_pb2_grpc.ReplayServiceStub(client.channel).GetInfo, INFO, timeout_s=5)
    assert answer.run_id == "here"
    assert replay.calls == 3


def test_a_server_at_its_limit_of_calls_is_not_a_refusal(eventually: Eventually) -> None:
    release = threading.Event()
    server = Server("127.0.0.1:0", max_workers=1, option_name="x")  # takes four calls at once
    server.add(replay_pb2_grpc.add_ReplayServiceServicer_to_server, Replay(lambda _context: release.wait(10)))
    server.start()
    try:
        with connect(server.address) as channel:
            stub = replay_pb2_grpc.ReplayServiceStub(channel)
            calls = [stub.GetInfo.future(INFO, timeout=20) for _ in range(6)]
            eventually(lambda: sum(call.done() for call in calls) == 2)
            with pytest.raises(Unavailable, match="resource_exhausted"):
                call_once(stub.GetInfo, INFO, timeout_s=5)
            release.set()
            answered = [call.result().run_id for call in calls if call.code() is grpc.StatusCode.OK]
            assert answered == ["here"] * 4
    finally:
        release.set()
        server.stop(0)


def test_a_fault_of_the_server_is_an_error_and_not_a_refusal(serve: Serve) -> None:
    def fail(_context: grpc.ServicerContext) -> None:
        raise ZeroDivisionError

    address = serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, Replay(fail))
    with connect(address) as channel, pytest.raises(grpc.RpcError):
        call_once(replay_pb2_grpc.ReplayServiceStub(channel).GetInfo, INFO, timeout_s=5)


@pytest.mark.parametrize("megabytes", [3.9, 4.1, 64])
def test_messages_beyond_grpcs_own_limit_pass_both_ways(megabytes: float, serve: Serve) -> None:
    keys = np.random.default_rng(0).bytes(int(megabytes * 2**20))
    request = replay_pb2.SampleRequest(priorities=replay_pb2.PriorityUpdates(keys=keys))
    address = serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, Replay(lambda _context: None))
    with connect(address) as channel:
        answer = call_once(replay_pb2_grpc.ReplayServiceStub(channel).Sample, request, timeout_s=30)
    assert answer.items.keys == keys


def test_an_oversize_message_is_refused_where_it_is_made(serve: Serve, caller: Any) -> None:
    request = replay_pb2.SampleRequest(priorities=replay_pb2.PriorityUpdates(keys=bytes(MAX_MESSAGE_BYTES)))
    client = caller(serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, Replay(lambda _context: None)))
    with pytest.raises(Refused, match="larger than max"):
        client.call(replay_pb2_grpc.ReplayServiceStub(client.channel).Sample, request, timeout_s=30)


@pytest.mark.parametrize(
    "security", [ClientSecurity(), ClientSecurity(token=lambda: "a token")], ids=["plain", "token"]
)
def test_a_call_that_fails_keeps_nothing_of_its_callers_alive(security: ClientSecurity, free_address: Any) -> None:
    class Held:
        """What a caller's frame holds, as a mapped ring with all of its files."""

    def fail() -> weakref.ref[Held]:
        held = Held()
        with connect(free_address(), security) as channel, pytest.raises(Unavailable):
            call_once(replay_pb2_grpc.ReplayServiceStub(channel).GetInfo, INFO, timeout_s=5.0)
        return weakref.ref(held)

    gc.disable()  # nothing may have to wait for the collector
    try:
        assert fail()() is None
    finally:
        gc.enable()


def test_a_connection_on_which_nobody_calls_is_closed_and_the_next_call_opens_another(
    monkeypatch: pytest.MonkeyPatch, serve: Serve, eventually: Any
) -> None:
    options = dict(rpc.SERVER_OPTIONS)
    assert 0 < options["grpc.max_connection_idle_ms"] <= 60_000
    options["grpc.max_connection_idle_ms"] = 200
    monkeypatch.setattr(rpc, "SERVER_OPTIONS", list(options.items()))
    address = serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, Replay(lambda _context: None))
    states: List[grpc.ChannelConnectivity] = []
    with connect(address) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        call_once(stub.GetInfo, INFO, timeout_s=5)
        channel.subscribe(states.append)
        eventually(lambda: states[-1:] == [grpc.ChannelConnectivity.IDLE])
        assert call_once(stub.GetInfo, INFO, timeout_s=5).run_id == "here"
        channel.unsubscribe(states.append)


def test_backoff_is_full_jitter_up_to_its_limit() -> None:
    class Rng(random.Random):
        asked: List[Any] = []

        def uniform(self, a: float, b: float) -> float:
            self.asked.append((a, b))
            return super().uniform(a, b)

    rng = Rng(1)
    backoff = Backoff(rng, first_s=0.1, limit_s=1.0)
    waits = [backoff.next_s() for _ in range(6)]
    assert rng.asked == [(0, 0.1), (0, 0.2), (0, 0.4), (0, 0.8), (0, 1.0), (0, 1.0)]
    assert all(0 <= wait <= ceiling for wait, (_, ceiling) in zip(waits, rng.asked))


def test_two_backoffs_do_not_wait_alike() -> None:
    one, other = Backoff(random.Random(1)), Backoff(random.Random(2))
    assert [one.next_s() for _ in range(3)] != [other.next_s() for _ in range(3)]


@pytest.mark.parametrize("sentence", ["", None, "not in this run"])
def test_refuse_ends_a_call_if_there_is_a_reason(sentence: Any, serve: Serve) -> None:
    replay = Replay(lambda context: refuse(context, sentence))
    with connect(serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, replay)) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        if not sentence:
            assert call_once(stub.GetInfo, INFO, timeout_s=5).run_id == "here"
            return
        with pytest.raises(Refused, match=sentence):
            call_once(stub.GetInfo, INFO, timeout_s=5)
