"""How `ReplayService` is added to a gRPC server: as the generated code does it, but a Sample is encoded already."""

from __future__ import annotations

from typing import Any, Callable, Dict

import grpc
from google.protobuf.message_factory import GetMessageClass

from services.replay.servicer import ReplayServicer
from shoal.v1 import replay_pb2

_SERVICE = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"]


def add_to_server(servicer: ReplayServicer, server: grpc.Server) -> None:
    """Register every method of the service."""
    handlers: Dict[str, Any] = {}
    for method in _SERVICE.methods:
        behaviour: Callable[..., Any] = getattr(servicer, method.name)
        encode: Callable[[Any], bytes] = GetMessageClass(method.output_type).SerializeToString
        if method.name == "Sample":
            behaviour, encode = servicer.sample_packed, bytes  # which copies no bytes
        decode = GetMessageClass(method.input_type).FromString
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(behaviour, decode, encode)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers),))
