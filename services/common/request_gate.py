"""The gate of a gRPC server: requests are received in time, within bounds, and whole; answers are taken in time."""

from __future__ import annotations

import threading
import time
from functools import lru_cache
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from services.common.held_bytes import HeldBytes
from services.common.message_bounds import check_bounds
from services.common.wire import WireError

RECEIVE_S = 20.0  # a request that takes longer to arrive is given up: callers of ours wait ten seconds at most
CROWDED_S = 2.0  # the same while half of the threads or more wait for requests to arrive
TAKE_S = 10.0  # an answer that is not taken after that is given up: so is its call, by callers of ours
SWEEP_S = 0.5  # between two looks
CALL_BYTES = 24 << 10  # of what gRPC keeps of a call until its answer is taken, beside the answer: 23 KiB were seen
MAX_COUNT = 1 << 62  # of counters and versions: what is done with them stays within 64 bits
MAX_STRING_BYTES = 4096  # of a name, a digest, a path
MAX_SMALL_BYTES = 1 << 20  # of a request that carries no data
_WITH_DATA = ("Insert", "Push", "Sample", "UpdatePriorities")  # methods whose requests may be as large as any message
# Their own decoders judge them, and say which tensor it is.
_JUDGED_ELSEWHERE = ("shoal.v1.Tensor", "shoal.v1.TensorSpec", "shoal.v1.GradientSegment")

OnRejected = Callable[[str], None]


class Malformed(NamedTuple):
    """What stands for a request that cannot be read."""

    sentence: str


class Crowded(NamedTuple):
    """What stands for a request that there is no room for."""

    sentence: str


class RequestGate(grpc.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Receives the requests of all methods and hands their answers over: the outermost interceptor of a server.

    gRPC has a thread wait for a request for as long as its caller likes. Here it waits for RECEIVE_S, and for CROWDED_S
    where slow callers take the threads of others. gRPC also keeps an answer for as long as its caller does not read,
    and counts the call as over. Here answers have a budget, and TAKE_S; the requests that handlers work on have a
    budget of their own, since those that wait for room in the table must not keep answers back that make some.
    Reasons that are counted: slow, malformed, crowded, untaken.
    """

    def __init__(
        self,
        max_workers: int,
        on_rejected: OnRejected,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_held_bytes: int,
    ) -> None:
        """Make the gate of a server.

        Args:
            max_workers: threads of the server.
            on_rejected: told a word for each request or answer that is lost.
            clock: seconds that do not go back.
            max_held_bytes: of requests under way, those of up to MAX_SMALL_BYTES not counted; and likewise of answers.
        """
        self._crowd = max(1, max_workers // 2)
        self._on_rejected = on_rejected
        self._clock = clock
        self._requests = HeldBytes(max_held_bytes)
        self._answers = HeldBytes(max_held_bytes)
        self._arriving: Dict[int, Tuple[float, Any]] = {}  # by id of its context: since when a thread waits, for what
        self._untaken: Dict[int, Tuple[float, Any]] = {}  # by id of its hold: since when an answer is ready
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sweep_until_stopped, name="request-gate", daemon=True)

    def start(self) -> None:
        """Begin to watch the clock."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer; harmless before `start`."""
        self._stopped.set()

    @property
    def num_arriving(self) -> int:
        """Requests that threads wait for."""
        return len(self._arriving)

    @property
    def held_bytes(self) -> Tuple[int, int]:
        """Of requests that handlers work on, and of answers that are not taken."""
        return self._requests.num_bytes, self._answers.num_bytes

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return the method's handler behind the gate; streams of answers are not served, since each takes a call."""
        handler: Any = continuation(handler_call_details)
        if handler is None or handler.response_streaming:
            return None
        if handler.unary_unary is None:  # one that refuses, and does not even receive
            return handler
        method = handler_call_details.method.rpartition("/")[2]
        answer, encode = handler.unary_unary, handler.response_serializer
        request_bytes = self._requests.hold()

        def receive(requests: Any, context: grpc.ServicerContext) -> Any:
            try:
                request = self._next(requests, context)
                if isinstance(request, Malformed):
                    self._on_rejected("malformed")
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.sentence)
                if isinstance(request, Crowded):
                    self._refuse_for_room(request.sentence, context)
                response = answer(request, context)
                return self._hand_over(encode(response) if encode else response, context)
            finally:
                request_bytes.release()

        return grpc.stream_unary_rpc_method_handler(
            receive, request_deserializer=careful(method, handler.request_deserializer, request_bytes.add)
        )

    def _next(self, requests: Any, context: grpc.ServicerContext) -> Any:
        key = id(context)
        self._arriving[key] = (self._clock(), context)
        try:
            return next(requests, Malformed("the call brought no request"))
        finally:
            self._arriving.pop(key, None)

    def _hand_over(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Hold an answer until its call is over, which is when the caller's connection has taken it."""
        hold = self._answers.hold()
        if not hold.add(len(data) + CALL_BYTES):
            self._refuse_for_room(f"no room is left for an answer of {len(data)} bytes", context)
        self._untaken[id(hold)] = (self._clock(), context)

        def is_over() -> None:
            self._untaken.pop(id(hold), None)
            hold.release()

        if not context.add_callback(is_over):  # it was cancelled
            is_over()
        return data

    def _refuse_for_room(self, sentence: str, context: grpc.ServicerContext) -> None:
        self._on_rejected("crowded")
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{sentence}: come again")

    def _sweep_until_stopped(self) -> None:
        while not self._stopped.wait(SWEEP_S):
            self.sweep()

    def sweep(self) -> None:
        """Give up what takes too long to arrive, or to be taken."""
        self._cancel(self._arriving, CROWDED_S if len(self._arriving) >= self._crowd else RECEIVE_S, "slow")
        self._cancel(self._untaken, TAKE_S, "untaken")

    def _cancel(self, waiting: Dict[int, Tuple[float, Any]], patience_s: float, word: str) -> None:
        now_s = self._clock()
        for key, (since_s, context) in list(waiting.items()):
            if now_s - since_s > patience_s and waiting.pop(key, None) is not None:
                self._on_rejected(word)
                context.cancel()


def careful(
    method: str, parse: Optional[Callable[[bytes], Any]], has_room: Callable[[int], bool] = lambda _num_bytes: True
) -> Callable[[bytes], Any]:
    """A deserializer that never raises: gRPC would log a traceback for each stranger's bytes.

    Args:
        method: without its service.
        parse: of its requests; None: they stay bytes.
        has_room: asked, with its size, whether a request may be held that is larger than those without data.
    """
    most = 0 if method in _WITH_DATA else MAX_SMALL_BYTES
    owner = getattr(parse, "__self__", None)  # of `FromString`: the class of the message
    descriptor: Optional[Descriptor] = getattr(owner, "DESCRIPTOR", None)

    def deserialize(data: bytes) -> Any:
        if most and len(data) > most:
            return Malformed(f"the request of {method} has {len(data)} bytes; it may have {most}")
        if len(data) > MAX_SMALL_BYTES and not has_room(len(data)):
            return Crowded(f"no room is left for a request of {len(data)} bytes")
        if parse is None:
            return data
        try:
            if descriptor is not None:
                check_bounds(data, descriptor)
            request = parse(data)
        except WireError as error:
            return Malformed(f"the request of {method} is refused: {error}")
        except DecodeError:
            return Malformed(
                f"the request of {method} is no such message, or packed by gRPC, which no peer of ours does: "
                "install the same version of shoal on both"
            )
        why = why_absurd(request) if descriptor is not None else ""
        return Malformed(f"the request of {method} is refused: {why}") if why else request

    return deserialize


class _Plan(NamedTuple):
    """The fields of a message that are judged, by their kind."""

    counts: Tuple[str, ...]  # of 64 bits
    strings: Tuple[str, ...]
    messages: Tuple[str, ...]  # that are there once
    lists: Tuple[str, ...]  # of messages


def why_absurd(message: Any) -> str:
    """One sentence about a number or a string of `message` that no peer of ours sends; empty if there is none."""
    plan = _plan_of(message.DESCRIPTOR)
    for name in plan.counts:
        if not -MAX_COUNT < getattr(message, name) < MAX_COUNT:
            return f"{name} is {getattr(message, name)}, and counts lie below 2^62"
    for name in plan.strings:
        if len(getattr(message, name)) > MAX_STRING_BYTES:
            return f"{name} has more than {MAX_STRING_BYTES} characters"
    for name in plan.messages:
        why = why_absurd(getattr(message, name)) if message.HasField(name) else ""
        if why:
            return why
    for name in plan.lists:
        for inner in getattr(message, name):
            why = why_absurd(inner)
            if why:
                return why
    return ""


@lru_cache(maxsize=None)
def _plan_of(descriptor: Descriptor) -> _Plan:
    counts: List[str] = []
    strings: List[str] = []
    messages: List[str] = []
    lists: List[str] = []
    for field in descriptor.fields:
        inner = field.message_type
        if inner is not None:
            if inner.full_name in _JUDGED_ELSEWHERE or inner.GetOptions().map_entry:
                continue
            (lists if _is_repeated(field) else messages).append(field.name)
        elif not _is_repeated(field):
            if field.type in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_INT64):
                counts.append(field.name)
            elif field.type == FieldDescriptor.TYPE_STRING:
                strings.append(field.name)
    return _Plan(tuple(counts), tuple(strings), tuple(messages), tuple(lists))


def _is_repeated(field: FieldDescriptor) -> bool:
    """Whether the field is a list; newer releases of protobuf name it otherwise than older ones."""
    is_repeated = getattr(field, "is_repeated", None)
    if is_repeated is None:
        is_repeated = getattr(field, "label") == FieldDescriptor.LABEL_REPEATED  # noqa: B009 (not there in the types)
    return bool(is_repeated)
