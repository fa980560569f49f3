"""Calls of a gRPC server by method, code and latency, for Prometheus."""

from __future__ import annotations

import time
from typing import Any, Callable

import grpc

Observe = Callable[[str, str, float], None]  # method, name of the status code, seconds


class CallObserver(grpc.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Tells `observe` of each call that ends, the time included that it waited inside of its handler.

    Methods that there are not are told as "unknown": a stranger must not be able to make up names for metrics.
    """

    def __init__(self, observe: Observe, clock: Callable[[], float] = time.monotonic) -> None:
        self._observe = observe
        self._clock = clock

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return the method's handler, timed."""
        handler = continuation(handler_call_details)
        if handler is None:
            self._observe("unknown", grpc.StatusCode.UNIMPLEMENTED.name, 0.0)
            return None
        if handler.response_streaming:  # the health service's watch, whose length says nothing
            return handler
        method = handler_call_details.method.rpartition("/")[2]
        answer = handler.unary_unary or handler.stream_unary  # the guard refuses by the latter
        make = grpc.unary_unary_rpc_method_handler if handler.unary_unary else grpc.stream_unary_rpc_method_handler

        def timed(request: Any, context: Any) -> Any:
            began_s = self._clock()
            code = grpc.StatusCode.OK.name
            try:
                return answer(request, context)
            except BaseException:
                code = (context.code() or grpc.StatusCode.UNKNOWN).name
                raise
            finally:
                self._observe(method, code, self._clock() - began_s)

        return make(
            timed,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
