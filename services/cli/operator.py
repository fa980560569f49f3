"""A person's calls to a running system: the one way from every command to its replay and its learner."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Callable, Dict, Optional, Type

import grpc
from typing_extensions import Self

from services.cli.target import Addresses
from services.common.config.security import SecuritySection
from services.common.config.values import check_address
from services.common.errors import UserError
from services.common.peer import Peer
from services.common.rpc import Refused, Unavailable, call_once, connect
from services.common.security.transport import client_security
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc, replay_pb2, replay_pb2_grpc

INFO_S = 3.0
PATIENCE_S = 1.5  # for the first call of a connection, which a busy machine may not set up at once
INSPECT_S = 10.0
SNAPSHOT_S = 3600.0
NO_SUCH_METHOD = "Method not found!"  # what gRPC's server says of a service that it does not have
REPLAY, LEARNER = "replay", "learner"


class Operator:
    """Connections to the replay and the learner of a run, whatever its name. Any thread may ask."""

    def __init__(self, addresses: Addresses, section: SecuritySection) -> None:
        """Name the services; each is called when it is asked something.

        Args:
            addresses: where they listen; one may be empty, and is not to be asked then.
            section: certificates and token.

        Raises:
            UserError: an address is none, or what it takes to call it is missing.
        """
        self.addresses = addresses
        named = [address for address in (addresses.replay, addresses.learner) if address]
        try:
            for address in named:
                check_address(address)
        except ValueError as error:
            raise UserError(str(error)) from None
        security = client_security(section, *named)
        self._channels: Dict[str, grpc.Channel] = {address: connect(address, security) for address in set(named)}
        self._why: Dict[str, str] = {}  # by service, why it did not answer last
        self._peer = Peer("", experience_pb2.ROLE_OPERATOR, "operator").to_proto()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls under way are cancelled."""
        for channel in self._channels.values():
            channel.close()

    def replay(
        self, *, timeout_s: float = INFO_S, patience_s: float = PATIENCE_S
    ) -> Optional[replay_pb2.GetReplayInfoResponse]:
        """The replay's answer; None if nobody answers at its address for `patience_s`.

        Raises:
            UserError: it refuses; the sentence is its own.
        """
        request = replay_pb2.GetReplayInfoRequest(peer=self._peer)
        answer: Optional[replay_pb2.GetReplayInfoResponse] = self._until_there(
            self._replay.GetInfo, request, REPLAY, timeout_s, patience_s
        )
        return answer

    def learner(
        self, *, timeout_s: float = INFO_S, patience_s: float = PATIENCE_S
    ) -> Optional[parameters_pb2.GetLearnerInfoResponse]:
        """The learner's answer; None if nobody answers at its address for `patience_s`.

        Raises:
            UserError: as `replay`.
        """
        request = parameters_pb2.GetLearnerInfoRequest(peer=self._peer)
        answer: Optional[parameters_pb2.GetLearnerInfoResponse] = self._until_there(
            self._learner.GetInfo, request, LEARNER, timeout_s, patience_s
        )
        return answer

    def inspect(self, **wanted: Any) -> replay_pb2.InspectResponse:
        """Items of the replay.

        Args:
            wanted: fields of an InspectRequest.

        Raises:
            UserError: it refuses, or does not answer.
        """
        request = replay_pb2.InspectRequest(peer=self._peer, **wanted)
        answer: replay_pb2.InspectResponse = self._definite(self._replay.Inspect, request, REPLAY, INSPECT_S)
        return answer

    def snapshot(self, folder: str) -> replay_pb2.SnapshotResponse:
        """A copy of the ring in a new folder of the replay's machine.

        Raises:
            UserError: as `inspect`.
        """
        request = replay_pb2.SnapshotRequest(peer=self._peer, folder=folder)
        answer: replay_pb2.SnapshotResponse = self._definite(self._replay.Snapshot, request, REPLAY, SNAPSHOT_S)
        return answer

    def flush(self, timeout_s: float) -> replay_pb2.FlushResponse:
        """Have the replay bring all that it acknowledged to its disk.

        Raises:
            UserError: as `inspect`.
        """
        request = replay_pb2.FlushRequest(peer=self._peer)
        answer: replay_pb2.FlushResponse = self._definite(self._replay.Flush, request, REPLAY, timeout_s)
        return answer

    def drain(self, *, undo: bool, actors_within_s: float = 0.0) -> parameters_pb2.DrainState:
        """Have the learner bring the run to rest, or let it go on.

        Raises:
            UserError: as `inspect`.
        """
        request = parameters_pb2.DrainRequest(peer=self._peer, undo=undo, actors_within_seconds=actors_within_s)
        answer: parameters_pb2.DrainResponse = self._definite(self._learner.Drain, request, LEARNER, INFO_S)
        return answer.drain

    @property
    def _replay(self) -> replay_pb2_grpc.ReplayServiceStub:
        return replay_pb2_grpc.ReplayServiceStub(self._channels[self.addresses.replay])

    @property
    def _learner(self) -> parameters_pb2_grpc.ParameterServiceStub:
        return parameters_pb2_grpc.ParameterServiceStub(self._channels[self.addresses.learner])

    def _until_there(
        self, method: Callable[..., Any], request: Any, service: str, timeout_s: float, patience_s: float
    ) -> Any:
        until_s = time.monotonic() + patience_s
        while True:
            try:
                return self._ask(method, request, service, timeout_s)
            except Unavailable as error:
                self._why[service] = str(error)
                if time.monotonic() > until_s:
                    return None
            time.sleep(0.05)

    def _definite(self, method: Callable[..., Any], request: Any, service: str, timeout_s: float) -> Any:
        try:
            return self._ask(method, request, service, timeout_s)
        except Unavailable as error:
            self._why[service] = str(error)
            raise UserError(self.silence(service)) from None

    def silence(self, service: str) -> str:
        """The sentence for a service that did not answer."""
        address = getattr(self.addresses, service)
        because = f" ({self._why[service]})" if service in self._why else ""
        return (
            f"no answer from a {service} at {address}{because}; is it running? The line `{service} listens` of its log "
            "has the address"
        )

    def _ask(self, method: Callable[..., Any], request: Any, service: str, timeout_s: float) -> Any:
        try:
            return call_once(method, request, timeout_s=timeout_s)
        except Refused as error:
            address = getattr(self.addresses, service)
            if str(error) == NO_SUCH_METHOD:
                raise UserError(
                    f"what listens at {address} is not a {service}; the line `{service} listens` of a {service}'s log "
                    "has its address, and one of an older version of shoal does not know every call"
                ) from None
            raise UserError(f"the {service} at {address} refuses: {error}") from None
