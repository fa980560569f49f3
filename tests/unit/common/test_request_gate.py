from __future__ import annotations

import threading
from typing import Any, Callable, List

import grpc
import pytest

from services.common.request_gate import (
    CALL_BYTES,
    CROWDED_S,
    MAX_COUNT,
    MAX_SMALL_BYTES,
    MAX_STRING_BYTES,
    RECEIVE_S,
    TAKE_S,
    Crowded,
    Malformed,
    RequestGate,
    careful,
    why_absurd,
)
from shoal.v1 import parameters_pb2, replay_pb2
from tests.conftest import Eventually
from tests.fakes import FakeClock

GET = parameters_pb2.GetParametersRequest
ROOM = 5 * CALL_BYTES


class Context:
    def __init__(self) -> None:
        self.is_cancelled = threading.Event()
        self.callbacks: List[Callable[[], None]] = []
        self.is_over = False

    def cancel(self) -> None:
        self.is_cancelled.set()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if not self.is_over:
            self.callbacks.append(callback)
        return not self.is_over

    def end(self) -> None:
        for callback in self.callbacks:
            callback()

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


ANSWERING = grpc.unary_unary_rpc_method_handler(lambda request, _context: b"to " + request, GET.FromString)


@pytest.mark.parametrize(("num_slow", "patience_s"), [(1, RECEIVE_S), (2, CROWDED_S)])
def test_who_sends_nothing_is_given_up_and_sooner_in_a_crowd(
    num_slow: int, patience_s: float, clock: FakeClock, eventually: Eventually
) -> None:
    words: List[str] = []
    gate = RequestGate(4, words.append, clock, max_held_bytes=ROOM)
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
    receive = _receive(RequestGate(4, words.append, max_held_bytes=ROOM), ANSWERING)
    assert receive(iter([b"request"]), Context()) == b"to request"
    with pytest.raises(ValueError, match="INVALID_ARGUMENT: the call brought no request"):
        receive(iter([]), Context())
    with pytest.raises(ValueError, match="INVALID_ARGUMENT: too long"):
        receive(iter([Malformed("too long")]), Context())
    assert words == ["malformed", "malformed"]


def test_answers_are_held_until_their_calls_are_over(clock: FakeClock) -> None:
    words: List[str] = []
    gate = RequestGate(4, words.append, clock, max_held_bytes=ROOM)
    receive = _receive(gate, grpc.unary_unary_rpc_method_handler(lambda request, _context: request, bytes, bytes))
    contexts = [Context() for _ in range(2)]
    for context in contexts:
        receive(iter([b"x" * 8192]), context)
    assert gate.held_bytes == (0, 2 * (CALL_BYTES + 8192))
    with pytest.raises(
        ValueError, match=f"RESOURCE_EXHAUSTED: no room is left for an answer of {ROOM // 2} bytes: come again"
    ):
        receive(iter([bytes(ROOM // 2)]), Context())
    assert words == ["crowded"]
    assert receive(iter([b""]), Context()) == b"", "what still fits is held back for others"
    for context in contexts:
        context.end()
    assert gate.held_bytes == (0, CALL_BYTES)
    cancelled = Context()
    cancelled.is_over = True
    receive(iter([b"x"]), cancelled)
    assert gate.held_bytes == (0, CALL_BYTES)


def test_an_answer_that_is_not_taken_is_given_up_once(clock: FakeClock) -> None:
    words: List[str] = []
    gate = RequestGate(4, words.append, clock, max_held_bytes=ROOM)
    receive = _receive(gate, ANSWERING)
    context = Context()
    receive(iter([b"request"]), context)
    clock.now_s += TAKE_S
    gate.sweep()
    assert not context.is_cancelled.is_set()
    clock.now_s += 0.1
    gate.sweep()
    gate.sweep()
    assert context.is_cancelled.is_set()
    assert words == ["untaken"]
    assert gate.held_bytes[1] > 0, "what gRPC still keeps is no room"
    context.end()
    assert gate.held_bytes == (0, 0)


def test_large_requests_are_held_while_they_are_worked_on(clock: FakeClock) -> None:
    words: List[str] = []
    large = bytes(MAX_SMALL_BYTES + 1)
    gate = RequestGate(4, words.append, clock, max_held_bytes=2 * len(large) - 1)
    held: List[int] = []

    def answer(_request: Any, _context: Any) -> bytes:
        held.append(gate.held_bytes[0])
        second = gate.intercept_service(lambda _details: handler, details)
        assert isinstance(second.request_deserializer(large), Crowded)
        with pytest.raises(ValueError, match="RESOURCE_EXHAUSTED: no room is left for a request of 1048577 bytes"):
            second.stream_unary(iter([second.request_deserializer(large)]), Context())
        assert second.request_deserializer(large[1:]) == large[1:], "small ones have room: their threads bound them"
        return b""

    handler = grpc.unary_unary_rpc_method_handler(answer)
    details: Any = type("Details", (), {"method": "/x/Insert"})
    first = gate.intercept_service(lambda _details: handler, details)
    first.stream_unary(iter([first.request_deserializer(large)]), Context())
    assert held == [len(large)]
    assert words == ["crowded"]
    assert gate.held_bytes[0] == 0


def test_a_request_that_arrives_after_its_call_is_given_up_is_not_held() -> None:
    gate = RequestGate(4, lambda _word: None, max_held_bytes=1 << 30)
    details: Any = type("Details", (), {"method": "/x/Insert"})
    call = gate.intercept_service(lambda _details: grpc.unary_unary_rpc_method_handler(pytest.fail), details)
    context = Context()
    context.cancel()
    with pytest.raises(RuntimeError, match="cancelled"):
        call.stream_unary(Requests(context), context)
    assert isinstance(call.request_deserializer(bytes(2 << 20)), Crowded)
    assert gate.held_bytes == (0, 0)


def test_streams_of_answers_and_unknown_methods_are_not_served() -> None:
    gate = RequestGate(4, lambda _word: None, max_held_bytes=ROOM)
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
