"""The gate of a gRPC server: requests are received in time, within bounds, and whole, before anybody looks at them."""

from __future__ import annotations

import threading
import time
from functools import lru_cache
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from services.common.message_bounds import check_bounds
from services.common.wire import WireError

RECEIVE_S = 20.0  # a request that takes longer to arrive is given up: callers of ours wait ten seconds at most
CROWDED_S = 2.0  # the same while half of the threads or more wait for requests to arrive
SWEEP_S = 0.5  # between two looks
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


class RequestGate(grpc.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Receives the requests of all methods: the outermost interceptor of a server.

    gRPC has a thread wait for a request for as long as its caller likes. Here it waits for RECEIVE_S, and for CROWDED_S
    where slow callers take the threads of others. Reasons that are counted: slow, malformed.
    """

    def __init__(self, max_workers: int, on_rejected: OnRejected, clock: Callable[[], float] = time.monotonic) -> None:
        """Make the gate of a server with `max_workers` threads; `on_rejected` is told a word for each lost request."""
        self._crowd = max(1, max_workers // 2)
        self._on_rejected = on_rejected
        self._clock = clock
        self._arriving: Dict[int, Tuple[float, Any]] = {}  # by id of its context: since when a thread waits, for what
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

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return the method's handler behind the gate; streams of answers are not served, since each takes a call."""
        handler: Any = continuation(handler_call_details)
        if handler is None or handler.response_streaming:
            return None
        if handler.unary_unary is None:  # one that refuses, and does not even receive
            return handler
        method = handler_call_details.method.rpartition("/")[2]
        answer = handler.unary_unary

        def receive(requests: Any, context: grpc.ServicerContext) -> Any:
            request = self._next(requests, context)
            if isinstance(request, Malformed):
                self._on_rejected("malformed")
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.sentence)
            return answer(request, context)

        return grpc.stream_unary_rpc_method_handler(
            receive,
            request_deserializer=careful(method, handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )

    def _next(self, requests: Any, context: grpc.ServicerContext) -> Any:
        key = id(context)
        self._arriving[key] = (self._clock(), context)
        try:
            return next(requests, Malformed("the call brought no request"))
        finally:
            self._arriving.pop(key, None)

    def _sweep_until_stopped(self) -> None:
        while not self._stopped.wait(SWEEP_S):
            self.sweep()

    def sweep(self) -> None:
        """Give up what takes too long to arrive."""
        now_s = self._clock()
        waiting = list(self._arriving.values())
        patience_s = CROWDED_S if len(waiting) >= self._crowd else RECEIVE_S
        for since_s, context in waiting:
            if now_s - since_s > patience_s:
                self._on_rejected("slow")
                context.cancel()


def careful(method: str, parse: Optional[Callable[[bytes], Any]]) -> Callable[[bytes], Any]:
    """A deserializer that never raises: gRPC would log a traceback for each stranger's bytes."""
    most = 0 if method in _WITH_DATA else MAX_SMALL_BYTES
    owner = getattr(parse, "__self__", None)  # of `FromString`: the class of the message
    descriptor: Optional[Descriptor] = getattr(owner, "DESCRIPTOR", None)

    def deserialize(data: bytes) -> Any:
        if most and len(data) > most:
            return Malformed(f"the request of {method} has {len(data)} bytes; it may have {most}")
        if parse is None:
            return data
        try:
            if descriptor is not None:
                check_bounds(data, descriptor)
            request = parse(data)
        except WireError as error:
            return Malformed(f"the request of {method} is refused: {error}")
        except DecodeError:
            return Malformed(f"the request of {method} is no such message: install the same version of shoal on both")
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
