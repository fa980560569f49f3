"""Published parameter sets: versions that are never reused, and the history that turns a version into updates."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from services.common.errors import UserError
from services.common.files import write_atomically

RESERVED_BLOCK = 1000  # versions written to disk ahead of their use


@dataclass(frozen=True)
class PublishedSet:
    """One version of the set of role `act`, as it travels."""

    version: int
    updates: int
    data: bytes  # safetensors
    digest: str  # BLAKE2b of `data`, 32 hex digits


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class VersionReservation:
    """Numbers for versions, reserved on disk in blocks before their use: no life of the chief reuses one."""

    def __init__(self, file: Path, at_least: int = 0) -> None:
        """Continue above what any earlier life may have used.

        Args:
            file: where the reservation is kept.
            at_least: the last version of the history: the file may have been lost while checkpoints were not.

        Raises:
            UserError: the file exists and cannot be read.
        """
        self._file = file
        self._reserved = 0
        if file.exists():
            try:
                self._reserved = int(json.loads(file.read_text(encoding="utf-8"))["reserved"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"the version reservation {str(file)!r} cannot be read ({error!r}); restore it, or start a new run"
                ) from None
        self._next = max(self._reserved, at_least) + 1

    def take(self) -> int:
        """The next version; fsyncs a further block when the last is used up."""
        if self._next > self._reserved:
            self._reserved = self._next + RESERVED_BLOCK - 1
            write_atomically(self._file, json.dumps({"reserved": self._reserved}).encode())
        version, self._next = self._next, self._next + 1
        return version


class ParameterStore:
    """The newest published set, the history of versions, and what the evaluator is looking at.

    Thread-safe: the training loop publishes, calls of actors read.
    """

    def __init__(self, reservation: VersionReservation, history: Sequence[Tuple[int, int]] = ()) -> None:
        """Start empty.

        Args:
            reservation: where versions come from.
            history: (version, updates) of earlier lives, versions rising.
        """
        self._reservation = reservation
        self._lock = threading.Lock()
        self._versions: List[int] = [version for version, _ in history]
        self._updates: List[int] = [updates for _, updates in history]
        self._arrays = np.zeros(0, np.int64), np.zeros(0, np.int64)  # both, as of the last question
        self._newest: Optional[PublishedSet] = None
        self._previous: Optional[PublishedSet] = None  # a download of several parts may end while a newer one is out
        self._held: Dict[str, PublishedSet] = {}

    @property
    def newest(self) -> Optional[PublishedSet]:
        with self._lock:
            return self._newest

    def publish(self, parameters: Mapping[str, npt.NDArray[Any]], updates: int) -> PublishedSet:
        """Make `parameters` the newest set."""
        data = safetensors.numpy.save(dict(parameters))
        published = PublishedSet(self._reservation.take(), updates, data, digest_of(data))
        with self._lock:
            self._versions.append(published.version)
            self._updates.append(updates)
            self._previous, self._newest = self._newest, published
        return published

    def find(self, version: int) -> Optional[PublishedSet]:
        """The set of `version` if it is one of the two newest, or held for an evaluator."""
        with self._lock:
            sets = [self._newest, self._previous, *self._held.values()]
        return next((s for s in sets if s is not None and s.version == version), None)

    def hold_newest(self, reader: str) -> None:
        """Keep the newest set for `reader` (an evaluator) until it takes a newer one: one a reader."""
        with self._lock:
            if self._newest is not None:
                self._held[reader] = self._newest

    def history(self) -> List[Tuple[int, int]]:
        """(version, updates) of every version that can be looked up, versions rising."""
        with self._lock:
            return list(zip(self._versions, self._updates))

    def known_updates_of(self, versions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Updates behind each of `versions` <int64>[N]; -1 for one that is not in the history."""
        with self._lock:
            if len(self._arrays[0]) != len(self._versions):
                self._arrays = np.array(self._versions, np.int64), np.array(self._updates, np.int64)
            known, behind = self._arrays
        if len(known) == 0:
            return np.full(versions.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(known, versions), len(known) - 1)
        return np.where(known[at] == versions, behind[at], -1)

    def lag(self, versions: npt.NDArray[np.int64], updates: int) -> npt.NDArray[np.int64]:
        """Staleness in updates of things that `versions` produced, when they are used at `updates`.

        A version that is not in the history was lost in a crash of the chief: it counts as fresh (lag 0).
        """
        behind = self.known_updates_of(versions)
        return np.where(behind >= 0, np.maximum(updates - behind, 0), 0)
