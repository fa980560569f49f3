"""A person's questions to a running system: how replay and learner are, asked once."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, Optional, Type

from typing_extensions import Self

from services.cli.target import Target
from services.common.errors import UserError
from services.common.peer import Peer
from services.common.rpc import Refused, Unavailable, call_once, connect
from services.common.security.transport import client_security
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc, replay_pb2, replay_pb2_grpc

TIMEOUT_S = 3.0


class Operator:
    """Connections to the replay and the learner of a run, whatever its name."""

    def __init__(self, target: Target) -> None:
        """Open channels; nothing is asked yet.

        Raises:
            UserError: what it takes to call the addresses is missing.
        """
        self.addresses = target.addresses
        security = client_security(target.security, target.addresses.replay, target.addresses.learner)
        self._channels = [connect(target.addresses.replay, security), connect(target.addresses.learner, security)]
        self._replay = replay_pb2_grpc.ReplayServiceStub(self._channels[0])
        self._learner = parameters_pb2_grpc.ParameterServiceStub(self._channels[1])
        self._peer = Peer("", experience_pb2.ROLE_OPERATOR, "operator").to_proto()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        for channel in self._channels:
            channel.close()

    def replay(self) -> Optional[replay_pb2.GetReplayInfoResponse]:
        """The replay's answer; None if nobody answers at its address.

        Raises:
            UserError: it refuses; the sentence is its own.
        """
        request = replay_pb2.GetReplayInfoRequest(peer=self._peer)
        answer: Optional[replay_pb2.GetReplayInfoResponse] = self._ask(self._replay.GetInfo, request, "replay")
        return answer

    def learner(self) -> Optional[parameters_pb2.GetLearnerInfoResponse]:
        """The learner's answer; None if nobody answers at its address.

        Raises:
            UserError: as `replay`.
        """
        request = parameters_pb2.GetLearnerInfoRequest(peer=self._peer)
        answer: Optional[parameters_pb2.GetLearnerInfoResponse] = self._ask(self._learner.GetInfo, request, "learner")
        return answer

    @staticmethod
    def _ask(method: Callable[..., Any], request: Any, name: str) -> Any:
        try:
            return call_once(method, request, timeout_s=TIMEOUT_S)
        except Unavailable:
            return None
        except Refused as error:
            raise UserError(f"the {name} refuses: {error}") from None
