"""Fetching parameters from the chief: the newest set alone, in checked parts, taken whole or not at all.

Actors, evaluators and helping learners share it:

    caller = Caller("chief", address, lifecycle.stopping, log)
    role = parameters_pb2.PARAMETER_ROLE_LEARN
    download = ParameterDownload(caller, peer=peer, role=role, stopping=lifecycle.stopping, log=log)
    manifest = download.fetch()          # one call if there is nothing newer, or if the set fits into one part
    newest = download.newest             # ParameterSet(version, updates, digest, parameters, chief_incarnation) or None

`fetch` asks once for what is newer than `newest`. A set of several parts is fetched part by part, each with its CRC32C,
and the whole has a digest. A set that a newer one superseded meanwhile is left for the newer one; a damaged part or set
is fetched again. `newest` changes at the end of a download, at once, to another frozen object.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Mapping, Optional

import google_crc32c
import numpy as np
import numpy.typing as npt

from services.common.errors import Crash
from services.common.log import Log
from services.common.parameter_set import ParameterSet, ParameterShapes, decode_set, digest_of
from services.common.peer import Peer
from services.common.rpc import Caller, Refused, Stopped
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc

CALL_TIMEOUT_S = 5.0
PART_BYTES = 1024 * 1024  # what a reader that stops reading may hold of the chief's memory
MAX_SET_BYTES = 2 * 1024**3  # beyond it a manifest is damaged, or not ours
RETRY_S = 0.1  # between a damaged answer and the next question
MAX_DAMAGED = 50  # damaged answers in a row, after which something else is wrong than a wire
MAX_SUPERSEDED = 8  # sets in a row that a newer one supersedes before the next is asked for at once
MAX_VERSION = 1 << 62


class ParameterDownload:
    """Keeps the newest set of one role at hand; one slot, no queue. One thread fetches, any may read `newest`."""

    def __init__(
        self,
        caller: Caller,
        *,
        peer: Peer,
        role: parameters_pb2.ParameterRole.ValueType,
        stopping: threading.Event,
        log: Log,
        part_bytes: int = PART_BYTES,
        waiting_for: Callable[[], str] = lambda: "",
        is_drained: Callable[[], bool] = lambda: False,
        shapes: Optional[ParameterShapes] = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            caller: calls the chief and repeats what is not answered; its owner closes it.
            peer: who fetches, as the chief lists it.
            role: which set: PARAMETER_ROLE_ACT, _LEARN or _AVERAGE.
            stopping: ends the pause before a damaged answer is asked for again.
            log: told of damaged answers.
            part_bytes: bytes of one call at most.
            waiting_for: what the process waits for, in one sentence or none; told to the chief, whom people ask.
            is_drained: whether the process is at rest since the run is drained; told likewise.
            shapes: of the network that is to run on the sets; None: any.
        """
        self._caller = caller
        self._stub = parameters_pb2_grpc.ParameterServiceStub(caller.channel)
        self._peer = peer
        self._role = role
        self._stopping = stopping
        self._log = log
        self._part_bytes = part_bytes
        self._waiting_for = waiting_for
        self._is_drained = is_drained
        self._shapes = shapes
        self._newest: Optional[ParameterSet] = None
        self._damaged = 0  # answers in a row

    @property
    def newest(self) -> Optional[ParameterSet]:
        """The newest set at hand, None before the first; its arrays are read-only."""
        return self._newest

    def fetch(self) -> parameters_pb2.GetManifestResponse:
        """Ask the chief once, and take the newest set if it is newer than the one at hand.

        Returns:
            What the chief answered: `run_state`, `chief_incarnation`, `actor_index`, `num_actors`,
            `ask_again_seconds`, and whether a set was `available` (then it is `newest` now).

        Raises:
            Stopped: the process is to end; `newest` is what it was.
            Refused: the chief will not serve this caller (another run, another protocol version, a set that this run
                does not publish), or its set cannot be read, is not finite, or is of other parameters than this
                process's network or than before.
            Crash: one answer after the other was damaged.
        """
        superseded = 0
        while True:
            answer = self._caller.call(self._stub.Get, self._first_request(), timeout_s=CALL_TIMEOUT_S)
            manifest = answer.manifest
            if not manifest.available:
                return manifest
            if manifest.size_bytes > MAX_SET_BYTES:
                raise Refused(f"the chief announces parameters of {manifest.size_bytes} bytes; more than can be right")
            if max(manifest.version, manifest.updates) >= MAX_VERSION:
                raise Refused(f"the chief announces version {manifest.version}; more than can be right")
            data = self._collect(answer)
            if data is None:  # a newer version came meanwhile
                superseded += 1
                if superseded > MAX_SUPERSEDED and self._stopping.wait(RETRY_S):
                    raise Stopped
                continue
            if digest_of(data) != manifest.digest:
                self._say_damaged("the parameters do not match their digest: fetched again", manifest.version)
                continue
            self._newest = self._decode(manifest, data)
            self._damaged = 0
            return manifest

    def _first_request(self) -> parameters_pb2.GetParametersRequest:
        current = self._newest
        return parameters_pb2.GetParametersRequest(
            peer=self._peer.to_proto(),
            role=self._role,
            max_bytes=self._part_bytes,
            newer_than=current.version if current else 0,
            running_version=current.version if current else 0,
            running_digest=current.digest if current else "",
            waiting_for=self._waiting_for(),
            drained=self._is_drained(),
        )

    def _collect(self, first: parameters_pb2.GetParametersResponse) -> Optional[bytes]:
        """All parts of the set that `first` begins; None when it was superseded."""
        manifest, part = first.manifest, first
        parts = bytearray()
        while True:
            room = manifest.size_bytes - len(parts)
            if part.data and len(part.data) <= room and google_crc32c.value(part.data) == part.crc32c:
                parts += part.data
                self._damaged = 0
            else:
                self._say_damaged("a part of the parameters was damaged: fetched again", manifest.version)
            if len(parts) == manifest.size_bytes:
                return bytes(parts)
            request = parameters_pb2.GetParametersRequest(
                peer=self._peer.to_proto(),
                role=self._role,
                version=manifest.version,
                offset_bytes=len(parts),
                max_bytes=self._part_bytes,
            )
            part = self._caller.call(self._stub.Get, request, timeout_s=CALL_TIMEOUT_S)
            if part.superseded:
                return None

    def _decode(self, manifest: parameters_pb2.GetManifestResponse, data: bytes) -> ParameterSet:
        try:
            parameters = decode_set(data)
        except ValueError as error:  # its digest is right: another fetch would bring the same
            raise Refused(
                f"version {manifest.version} of the chief cannot be read: {error}; install the same version of shoal "
                "on both"
            ) from None
        difference = self._shapes.difference(parameters) if self._shapes else ""
        if difference:
            who = experience_pb2.Role.Name(self._peer.role)[len("ROLE_") :].lower()
            raise Refused(
                f"the chief's parameters do not fit this {who}: {difference}; start both with the same run file: "
                "[algorithm], the section of the algorithm, [normalization] and [env] must agree"
            )
        why = _why_unusable(parameters, self._newest)
        if why:
            raise Refused(f"version {manifest.version} of the chief is not used: {why}")
        return ParameterSet(
            version=manifest.version,
            updates=manifest.updates,
            digest=manifest.digest,
            parameters=parameters,
            chief_incarnation=manifest.chief_incarnation,
        )

    def _say_damaged(self, what: str, version: int) -> None:
        self._damaged += 1
        if self._damaged > MAX_DAMAGED:
            raise Crash(f"the chief's parameters were damaged {MAX_DAMAGED} times in a row: look at the chief")
        self._log.warning(what, version=version)
        if self._stopping.wait(RETRY_S):
            raise Stopped


def _why_unusable(parameters: Mapping[str, npt.NDArray[Any]], before: Optional[ParameterSet]) -> str:
    """Why nobody should act on a set; empty if nothing speaks against it."""
    for name, array in parameters.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"{name!r} holds values that are not finite"
    if before is not None:
        shapes = {name: array.shape for name, array in parameters.items()}
        earlier = {name: array.shape for name, array in before.parameters.items()}
        odd = [name for name in {**shapes, **earlier} if shapes.get(name) != earlier.get(name)]
        if odd:
            return f"{odd[0]!r} is {shapes.get(odd[0], 'missing')}, and was {earlier.get(odd[0], 'missing')} before"
    return ""
