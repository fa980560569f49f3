"""The guard of a gRPC server: which role may call which method, by the token that came with the call."""

from __future__ import annotations

from typing import Any, Callable, Dict, FrozenSet, Tuple

import grpc

from services.common.security.tokens import TokenBook
from shoal.v1 import experience_pb2

AUTHORIZATION = "authorization"
BEARER = "Bearer "
HEALTH = "/grpc.health.v1.Health/"  # orchestrators ask it, and it tells nothing but that the process lives

ALL = frozenset({"actor", "learner", "evaluator", "operator", "monitor"})
READERS = frozenset({"actor", "learner", "evaluator", "operator"})
_ROLES: Dict[str, FrozenSet[str]] = {
    "/shoal.v1.ReplayService/Insert": frozenset({"actor"}),
    "/shoal.v1.ReplayService/Sample": frozenset({"learner"}),
    "/shoal.v1.ReplayService/UpdatePriorities": frozenset({"learner"}),
    "/shoal.v1.ReplayService/GetInfo": ALL,
    # A learner draws all that there is to see anyway.
    "/shoal.v1.ReplayService/Inspect": frozenset({"operator", "learner"}),
    "/shoal.v1.ReplayService/Snapshot": frozenset({"operator"}),
    "/shoal.v1.ParameterService/GetManifest": READERS,
    "/shoal.v1.ParameterService/Get": READERS,
    "/shoal.v1.ParameterService/ReportEvaluation": frozenset({"evaluator"}),
    "/shoal.v1.ParameterService/GetInfo": ALL,
    "/shoal.v1.GradientService/Join": frozenset({"learner"}),
    "/shoal.v1.GradientService/Push": frozenset({"learner"}),
    "/shoal.v1.GradientService/Leave": frozenset({"learner"}),
}
_PEERS: Dict[str, FrozenSet[int]] = {  # which roles of a Peer a token stands for
    "actor": frozenset({experience_pb2.ROLE_ACTOR}),
    "learner": frozenset({experience_pb2.ROLE_LEARNER, experience_pb2.ROLE_HELPER}),
    "evaluator": frozenset({experience_pb2.ROLE_EVALUATOR}),
    "operator": frozenset({experience_pb2.ROLE_OPERATOR}),
    "monitor": frozenset({experience_pb2.ROLE_OPERATOR}),
}


class Guard(grpc.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Lets a call through when its token's role may make it, and its peer claims no other role."""

    def __init__(self, book: TokenBook, on_rejected: Callable[[str], None]) -> None:
        """Guard a server.

        Args:
            book: tokens that are accepted.
            on_rejected: told the reason's word of each rejected call: no_token, unknown_token, wrong_role, false_peer.
        """
        self._book = book
        self._on_rejected = on_rejected

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Any],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler, or one that refuses."""
        details: Any = handler_call_details
        method: str = details.method
        if method.startswith(HEALTH):
            return continuation(handler_call_details)
        verdict = self._judge(method, dict(details.invocation_metadata or ()))
        if isinstance(verdict, tuple):
            code, word, sentence = verdict
            self._on_rejected(word)
            return _refusing(code, sentence)
        handler: Any = continuation(handler_call_details)
        return handler if handler is None else self._checking_peer(handler, verdict)

    def _judge(self, method: str, metadata: Dict[str, Any]) -> Any:
        """The role of the call's token, or (code, word, sentence) of why it is refused."""
        presented = metadata.get(AUTHORIZATION, "")
        if not isinstance(presented, str) or not presented.startswith(BEARER):
            return (
                grpc.StatusCode.UNAUTHENTICATED,
                "no_token",
                "this service asks for a token: set security.token to the file of one",
            )
        role = self._book.role_of(presented[len(BEARER) :])
        if role is None:
            return (
                grpc.StatusCode.UNAUTHENTICATED,
                "unknown_token",
                "this service does not know the caller's token: compare its security.token with our security.tokens",
            )
        allowed = _ROLES.get(method, frozenset())
        if role not in allowed:
            name = method.rpartition("/")[2]
            may = f"that takes a token of {' or '.join(sorted(allowed))}" if allowed else "there is no such method"
            return grpc.StatusCode.PERMISSION_DENIED, "wrong_role", f"a token of {role} may not call {name}: {may}"
        return role

    def _checking_peer(self, handler: Any, role: str) -> Any:
        allowed = _PEERS[role]
        answer = handler.unary_unary

        def checked(request: Any, context: grpc.ServicerContext) -> Any:
            if request.peer.role not in allowed:
                self._on_rejected("false_peer")
                context.abort(
                    grpc.StatusCode.PERMISSION_DENIED,
                    f"a token of {role} came with a peer of role {experience_pb2.Role.Name(request.peer.role)}: "
                    "give each process the token of its own role",
                )
            return answer(request, context)

        return grpc.unary_unary_rpc_method_handler(
            checked,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _refusing(code: grpc.StatusCode, sentence: str) -> Any:
    """A handler that does not even parse the request."""

    def refuse(_request: bytes, context: grpc.ServicerContext) -> None:
        context.abort(code, sentence)

    return grpc.unary_unary_rpc_method_handler(refuse)


class TokenBearer(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Adds the process's token to each call."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def intercept_unary_unary(
        self,
        continuation: Callable[[Any, Any], Any],
        client_call_details: Any,
        request: Any,
    ) -> Any:
        """Go on with the header."""
        header: Tuple[str, str] = (AUTHORIZATION, BEARER + self._token())
        return continuation(_CallDetails(client_call_details, header), request)


class _CallDetails(grpc.ClientCallDetails):
    """The details of a call with one more header."""

    def __init__(self, details: Any, header: Tuple[str, str]) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = (*(details.metadata or ()), header)
        self.credentials = details.credentials
        self.wait_for_ready = getattr(details, "wait_for_ready", None)
        self.compression = getattr(details, "compression", None)
