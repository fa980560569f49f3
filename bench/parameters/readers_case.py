"""Actors' sides: the product's client, each with its thread and connection, several in a process."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Dict, List

from bench.parameters.chief_case import RUN_ID
from bench.replay.protocol import serve_calls
from services.actor.parameter_client import ParameterClient
from services.common.config.run import ActorSection
from services.common.lifecycle import Lifecycle
from services.common.log import make_log
from services.common.peer import Peer
from shoal.v1 import experience_pb2


class TimedClient(ParameterClient):
    """The product's client; notes when it had which version at hand."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.swapped_at: Dict[int, float] = {}
        self.swapped = threading.Event()

    def fetch(self) -> Any:
        manifest = super().fetch()
        if manifest.available:
            self.swapped_at[manifest.version] = time.monotonic()
            self.swapped.set()
        return manifest


class ReadersCase:
    """Some actors' parameter clients."""

    def __init__(self) -> None:
        self._lifecycle = Lifecycle()
        self._clients: List[TimedClient] = []

    def open(self, address: str, first: int, count: int) -> Dict[str, Any]:
        log = make_log(sys.stderr)
        for number in range(first, first + count):
            client = TimedClient(
                address=address,
                peer=Peer(RUN_ID, experience_pb2.ROLE_ACTOR, f"actor-{number}"),
                poll_period_s=ActorSection().poll_period_s,
                lifecycle=self._lifecycle,
                log=log,
            )
            self._clients.append(client)
            self._lifecycle.spawn(f"parameters-{number}", client.run)
        return {}

    def hint(self, version: int) -> Dict[str, Any]:
        """What an actor hears with its next Insert's answer."""
        for client in self._clients:
            client.hint(version)
        return {}

    def wait(self, version: int, within_s: float) -> Dict[str, Any]:
        """When each client had `version` at hand, by CLOCK_MONOTONIC."""
        deadline = time.monotonic() + within_s
        times: List[float] = []
        for client in self._clients:
            while version not in client.swapped_at:
                client.swapped.clear()
                if version in client.swapped_at:
                    break
                if not client.swapped.wait(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"a reader did not take version {version} within {within_s:.0f} s")
            times.append(client.swapped_at[version])
        return {"at_s": times, "cpu_s": time.process_time()}

    def close(self) -> None:
        self._lifecycle.stop("the benchmark is over")
        self._lifecycle.join()
        for client in self._clients:
            client.close()


if __name__ == "__main__":
    case = ReadersCase()
    try:
        sys.exit(serve_calls({"open": case.open, "hint": case.hint, "wait": case.wait}))
    finally:
        case.close()
