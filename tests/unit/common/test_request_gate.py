from __future__ import annotations

import threading
from typing import Any, List

import grpc
import pytest

from services.common.request_gate import (
    CROWDED_S,
    MAX_COUNT,
    MAX_SMALL_BYTES,
    MAX_STRING_BYTES,
    RECEIVE_S,
    Malformed,
    RequestGate,
    careful,
    why_absurd,
)
from shoal.v1 import parameters_pb2, replay_pb2
from tests.conftest import Eventually
from tests.fakes import FakeClock

GET = parameters_pb2.GetParametersRequest


class Context:
    def __init__(self) -> None:
        self.is_cancelled = threading.Event()

    def cancel(self) -> None:
        self.is_cancelled.set()

    def abort(self, code: grpc.StatusCode, details: str) -> Any:
        raise ValueError(f"{code.name}: {details}")


class Requests:
    """What a slow caller sends: nothing, until it is told to."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __next__(self) -> Any:
        if not self._context.is_cancelled.wait(10):
            raise AssertionError("it waits for ever")
        raise RuntimeError("cancelled")


def _receive(gate: RequestGate, handler: Any, method: str = "/x/Get") -> Any:
    details: Any = type("Details", (), {"method": method})
    wrapped = gate.intercept_service(lambda _details: handler, details)
    return wrapped.stream_unary if wrapped is not None else None


ANSWERING = grpc.unary_unary_rpc_method_handler(lambda request, _context: ("answer", request), GET.FromString)


@pytest.mark.parametrize(("num_slow", "patience_s"), [(1, RECEIVE_S), (2, CROWDED_S)])
def test_who_sends_nothing_is_given_up_and_sooner_in_a_crowd(
    num_slow: int, patience_s: float, clock: FakeClock, eventually: Eventually
) -> None:
    words: List[str] = []
    gate = RequestGate(4, words.append, clock)
    receive = _receive(gate, ANSWERING)
    contexts = [Context() for _ in range(num_slow)]

    def call(context: Context) -> None:
        with pytest.raises(RuntimeError, match="cancelled"):
            receive(Requests(context), context)

    threads = [threading.Thread(target=call, args=(context,)) for context in contexts]
    for thread in threads:
        thread.start()
    eventually(lambda: gate.num_arriving == num_slow)
    clock.now_s += patience_s
    gate.sweep()
    assert not words
    clock.now_s += 0.1
    gate.sweep()
    for thread in threads:
        thread.join(10)
    assert words == ["slow"] * num_slow
    assert gate.num_arriving == 0


def test_what_came_whole_is_answered_and_what_did_not_is_refused() -> None:
    words: List[str] = []
    receive = _receive(RequestGate(4, words.append), ANSWERING)
    assert receive(iter(["request"]), Context()) == ("answer", "request")
    with pytest.raises(ValueError, match="INVALID_ARGUMENT: the call brought no request"):
        receive(iter([]), Context())
    with pytest.raises(ValueError, match="INVALID_ARGUMENT: too long"):
        receive(iter([Malformed("too long")]), Context())
    assert words == ["malformed", "malformed"]


def test_streams_of_answers_and_unknown_methods_are_not_served() -> None:
    gate = RequestGate(4, lambda _word: None)
    assert _receive(gate, None) is None
    assert _receive(gate, grpc.unary_stream_rpc_method_handler(lambda _request, _context: iter([]))) is None


def test_bytes_that_are_no_request_stand_for_a_sentence() -> None:
    assert careful("Get", GET.FromString)(GET(version=3).SerializeToString()).version == 3
    noise = careful("Get", GET.FromString)(b"\xff" * 10)
    assert isinstance(noise, Malformed)
    assert "no such message" in noise.sentence
    large = careful("Get", GET.FromString)(bytes(MAX_SMALL_BYTES + 1))
    assert isinstance(large, Malformed)
    assert f"it may have {MAX_SMALL_BYTES}" in large.sentence
    assert not isinstance(careful("Insert", None)(bytes(MAX_SMALL_BYTES + 1)), Malformed)


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (GET(version=MAX_COUNT - 1), ""),
        (GET(version=MAX_COUNT), "version"),
        (GET(running_digest="x" * (MAX_STRING_BYTES + 1)), "running_digest"),
        (replay_pb2.InspectRequest(key=-(2**63)), "key"),
        (replay_pb2.InspectRequest(key=-5), ""),
    ],
)
def test_absurd_numbers_and_strings_are_named(message: Any, word: str) -> None:
    assert word in why_absurd(message)
    assert bool(why_absurd(message)) == bool(word)


def test_absurd_values_are_found_within_messages() -> None:
    request = replay_pb2.InsertRequest()
    request.chunk.counters.produced_steps = 2**63
    assert "produced_steps" in why_absurd(request)
    request.chunk.counters.produced_steps = 5
    request.peer.incarnation = 2**64 - 1  # a random number, and no count
    assert not why_absurd(request)
