"""What a person asks of a replay that runs: its items, one of them in full, a copy of its ring."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Optional, Type

from typing_extensions import Self

from services.cli import figures, item_view
from services.common.config.security import SecuritySection
from services.common.config.values import check_address
from services.common.errors import UserError
from services.common.peer import Peer
from services.common.rpc import Refused, Unavailable, call_once, connect
from services.common.security.transport import client_security
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc

PATIENCE_S = 1.5
ANSWER_S = 10.0
SNAPSHOT_S = 3600.0
NO_SUCH_METHOD = "Method not found!"  # what gRPC's server says of a service that it does not have
ORDERS = {
    "highest-priority": replay_pb2.INSPECT_ORDER_HIGHEST_PRIORITY,
    "oldest": replay_pb2.INSPECT_ORDER_OLDEST,
    "newest": replay_pb2.INSPECT_ORDER_NEWEST,
}


class ReplayOperator:
    """A connection to one replay, whatever its run; every answer is text for a terminal."""

    def __init__(self, address: str, section: SecuritySection) -> None:
        """Name the replay; it is called when it is asked something.

        Raises:
            UserError: `address` is none, or `section` lacks what it takes to call it.
        """
        try:
            check_address(address)
        except ValueError as error:
            raise UserError(str(error)) from None
        self._address = address
        self._channel = connect(address, client_security(section, address))
        self._stub = replay_pb2_grpc.ReplayServiceStub(self._channel)
        self._peer = Peer("", experience_pb2.ROLE_OPERATOR, "shoal-replay").to_proto()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._channel.close()

    def items(self, order: str, max_items: int, actor: str) -> str:
        """The first items in an order, and how all items spread.

        Args:
            order: one of ORDERS.
            max_items: to show.
            actor: of this one alone; empty: of all.

        Raises:
            UserError: the replay knows no such actor.
            Unavailable: it does not answer.
        """
        info = self._info()
        names = [each.name for each in info.actors]
        if actor and actor not in names:
            raise UserError(f"the replay knows no actor {actor!r}; it has {', '.join(sorted(names)) or 'none yet'}")
        request = replay_pb2.InspectRequest(peer=self._peer, order=ORDERS[order], max_items=max_items, actor=actor)
        answer: replay_pb2.InspectResponse = self._ask(self._stub.Inspect, request, ANSWER_S)
        return item_view.items(info, answer)

    def item(self, key: int) -> str:
        """One item in full.

        Raises:
            UserError: no item in the ring starts at `key`.
            Unavailable: as `items`.
        """
        info = self._info()
        request = replay_pb2.InspectRequest(peer=self._peer, one=True, key=key)
        answer: replay_pb2.InspectResponse = self._ask(self._stub.Inspect, request, ANSWER_S)
        if not answer.items:
            raise UserError(
                f"no item in the ring starts at key {key}: the row is overwritten, not written yet, or starts none "
                "(`shoal replay items` shows keys that do)"
            )
        return item_view.item(info, answer.items[0])

    def snapshot(self, folder: str) -> str:
        """Copy the ring to a new folder; a relative path is meant from here, since the replay is on this machine.

        Raises:
            UserError: the replay cannot copy; the sentence is its own.
            Unavailable: as `items`.
        """
        self._info()
        target = Path(folder).absolute()
        request = replay_pb2.SnapshotRequest(peer=self._peer, folder=str(target))
        answer: replay_pb2.SnapshotResponse = self._ask(self._stub.Snapshot, request, SNAPSHOT_S)
        return (
            f"{figures.count(answer.steps)} steps are copied to {target}: {answer.bytes / 2**20:.1f} MiB in "
            f"{answer.seconds:.1f} s\n"
        )

    def _info(self) -> replay_pb2.GetReplayInfoResponse:
        """The first call of a connection, which a busy machine may not set up at once."""
        request = replay_pb2.GetReplayInfoRequest(peer=self._peer)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer: replay_pb2.GetReplayInfoResponse = self._ask(self._stub.GetInfo, request, ANSWER_S)
            except Unavailable:
                if time.monotonic() > until:
                    raise
            else:
                return answer
            time.sleep(0.05)

    def _ask(self, method: Callable[..., Any], request: Any, timeout_s: float) -> Any:
        try:
            return call_once(method, request, timeout_s=timeout_s)
        except Refused as error:
            if str(error) == NO_SUCH_METHOD:
                raise UserError(
                    f"what listens at {self._address} is not a replay; the line `replay listens` of a replay's log has "
                    "its address"
                ) from None
            raise UserError(f"the service at {self._address} refuses: {error}") from None
