"""The newest parameters: whole sets, fetched when the chief has a newer one, swapped at once."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass
from typing import Callable, Dict, Optional

import google_crc32c
import numpy as np
import numpy.typing as npt
import safetensors.numpy

from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.peer import Peer
from services.common.rpc import Caller, Stopped
from shoal.v1 import parameters_pb2, parameters_pb2_grpc

CALL_TIMEOUT_S = 5.0
PART_BYTES = 4 * 1024 * 1024
RETRY_S = 0.1  # between two questions when the answer was not what is known to be there


@dataclass(frozen=True)
class ParameterSet:
    """One version of the set of role `act`. Never changed after it was made: readers keep it as long as they like."""

    version: int
    updates: int
    digest: str
    parameters: Dict[str, npt.NDArray[np.float32]]


class ParameterClient:
    """Keeps the newest set at hand; one slot, no queue."""

    def __init__(
        self,
        address: str,
        *,
        peer: Peer,
        poll_period_s: float,
        lifecycle: Lifecycle,
        log: Log,
        waiting_for: Callable[[], str] = lambda: "",
    ) -> None:
        """Prepare; `run` is the thread.

        Args:
            address: of the chief.
            peer: who asks.
            poll_period_s: between two questions when no hint comes.
            lifecycle: of the process.
            log: where waits are said.
            waiting_for: what the process waits for, in one sentence or none; told to the chief, whom people ask.
        """
        self._process_waits_for = waiting_for
        self._caller = Caller("chief", address, lifecycle.stopping, log)
        self._stub = parameters_pb2_grpc.ParameterServiceStub(self._caller.channel)
        self._peer = peer
        self._poll_period_s = poll_period_s
        self._lifecycle = lifecycle
        self._log = log
        self._newest: Optional[ParameterSet] = None
        self._hinted_version = 0
        self._changed = threading.Condition()
        self._confirmed_at = time.monotonic()
        self.run_state: parameters_pb2.RunState.ValueType = parameters_pb2.RUN_STATE_UNSPECIFIED
        lifecycle.on_stop(self._wake)

    @property
    def newest(self) -> Optional[ParameterSet]:
        """The newest set at hand; None before the first."""
        return self._newest

    @property
    def newest_known_version(self) -> int:
        """The newest version that this process has heard of."""
        return max(self._hinted_version, self._newest.version if self._newest else 0)

    @property
    def age_s(self) -> float:
        """Seconds since the chief last confirmed that this is the newest set."""
        return time.monotonic() - self._confirmed_at

    @property
    def waiting_for(self) -> str:
        """One sentence while the chief does not answer; empty otherwise."""
        return self._caller.waiting_for

    def hint(self, version: int) -> None:
        """Somebody said that the chief's newest version is `version`."""
        with self._changed:
            if version != self._hinted_version:
                self._hinted_version = version
                self._changed.notify_all()

    def fetch(self) -> parameters_pb2.GetManifestResponse:
        """Ask the chief once and take the newest set if there is one.

        Raises:
            Stopped: the process is to end.
        """
        while True:
            current = self._newest
            request = parameters_pb2.GetManifestRequest(
                peer=self._peer.to_proto(),
                newer_than=current.version if current else 0,
                role=parameters_pb2.PARAMETER_ROLE_ACT,
                running_version=current.version if current else 0,
                running_digest=current.digest if current else "",
                waiting_for=self._process_waits_for(),
            )
            manifest = self._caller.call(self._stub.GetManifest, request, timeout_s=CALL_TIMEOUT_S)
            if manifest.available:
                data = self._get(manifest)
                if data is None:
                    continue  # a newer version came meanwhile
                parameters = safetensors.numpy.load(data)
                with self._changed:
                    self._newest = ParameterSet(manifest.version, manifest.updates, manifest.digest, parameters)
                    self._changed.notify_all()
            self._confirmed_at = time.monotonic()
            self.run_state = manifest.run_state
            return manifest

    def run(self) -> None:
        """Fetch on hints, and by the poll period without one; run it on a thread."""
        while not self._lifecycle.stopping.is_set():
            hinted_version = self._hinted_version
            try:
                self.fetch()
            except Stopped:
                return
            if self.run_state == parameters_pb2.RUN_STATE_FINISHED:
                self._lifecycle.stop("training is finished")
                return
            # A chief that has just restarted does not have the hinted version yet: it is asked soon, not at once.
            is_behind = self._newest is None or self._newest.version < hinted_version
            with self._changed:
                if self._hinted_version == hinted_version and not self._lifecycle.stopping.is_set():
                    self._changed.wait(min(RETRY_S, self._poll_period_s) if is_behind else self._poll_period_s)

    def wait_for_newest(self, max_age_s: float) -> ParameterSet:
        """The newest set; waits for the first, and parks while none was confirmed for `max_age_s`.

        Raises:
            Stopped: the process is to end.
        """
        newest = self._newest
        if newest is not None and self.age_s <= max_age_s:
            return newest
        said = False
        while not self._lifecycle.stopping.is_set():
            newest = self._newest
            if newest is not None and self.age_s <= max_age_s:
                if said:
                    self._log.info("acting goes on", version=newest.version)
                return newest
            if not said:
                said = True
                what = "parked: the parameters are too old" if newest else "waiting for the chief's first parameters"
                self._log.warning(what, age_s=round(self.age_s, 1)) if newest else self._log.info(what)
            self._lifecycle.stopping.wait(0.05)
        raise Stopped

    def close(self) -> None:
        self._caller.close()

    def _get(self, manifest: parameters_pb2.GetManifestResponse) -> Optional[bytes]:
        parts = bytearray()
        while len(parts) < manifest.size_bytes:
            request = parameters_pb2.GetParametersRequest(
                peer=self._peer.to_proto(),
                role=parameters_pb2.PARAMETER_ROLE_ACT,
                version=manifest.version,
                offset_bytes=len(parts),
                max_bytes=PART_BYTES,
            )
            part = self._caller.call(self._stub.Get, request, timeout_s=CALL_TIMEOUT_S)
            if part.superseded:
                return None
            if google_crc32c.value(part.data) != part.crc32c or not part.data:
                self._log.warning("a part of the parameters was damaged: fetched again", version=manifest.version)
                self._lifecycle.stopping.wait(RETRY_S)
                continue
            parts += part.data
        data = bytes(parts)
        if hashlib.blake2b(data, digest_size=16).hexdigest() != manifest.digest:
            self._log.warning("the parameters do not match their digest: fetched again", version=manifest.version)
            self._lifecycle.stopping.wait(RETRY_S)
            return None
        return data

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
