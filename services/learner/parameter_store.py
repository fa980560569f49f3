"""Published parameter sets: the newest of each role, what is being fetched, and what an evaluator looks at."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from services.common.config.values import WireDtype
from services.common.parameter_set import check_range
from services.learner.published_set import PublishedSet, Role
from services.learner.version_history import VersionFacts, VersionHistory, VersionRecord
from services.learner.version_reservation import VersionReservation
from shoal.v1 import parameters_pb2

ACT: Role = parameters_pb2.PARAMETER_ROLE_ACT
LEARN: Role = parameters_pb2.PARAMETER_ROLE_LEARN
AVERAGE: Role = parameters_pb2.PARAMETER_ROLE_AVERAGE

DOWNLOAD_LEASE_S = 10.0  # between two parts; a reader that pauses for longer begins anew
MAX_DOWNLOAD_S = 60.0  # a superseded set is kept no longer than that for those who have begun to fetch it
HOLD_LEASE_S = 900.0  # an evaluator that is silent for longer holds nothing
MAX_HOLDERS = 4  # evaluators; the one that has been silent for longest loses its set
MAX_DIGESTS = 1024  # of versions that were fetched by somebody
LEARN_WINDOW = 4096  # versions of role `learn` whose updates are known


@dataclass
class _Kept:
    """The sets of one role that can be fetched: two at most, whoever reads however slowly."""

    newest: PublishedSet
    older: Optional[PublishedSet] = None
    older_since: float = 0.0  # when `older` was superseded


@dataclass
class _Held:
    """What an evaluator looks at."""

    held: PublishedSet
    seen_at: float


class ParameterStore:
    """The newest published sets, the history of versions, and what the evaluator is looking at.

    Sets that belong together (role `act` and its average) are published together under one version. A set of role
    `learn` follows each update where helpers learn too: its versions come from the same counter but are no part of the
    history, since no step is ever produced with one.

    Of each role two sets are kept: the newest, and the one before it or, while somebody fetches it in parts, an older
    one, so that a reader that is slower than the publishing gets to an end. Memory does not depend on readers.

    Thread-safe: the training loop publishes, calls of readers fetch.
    """

    def __init__(
        self,
        reservation: VersionReservation,
        history: Sequence[VersionRecord] = (),
        *,
        wire_dtype: WireDtype = "float32",
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Start empty.

        Args:
            reservation: where versions come from.
            history: of earlier lives, versions rising.
            wire_dtype: what the sets of roles `act` and `average` travel in; `learn` always is float32.
            clock: monotonic seconds.
            wall_clock: seconds since 1970.
        """
        self._reservation = reservation
        self._wire_dtype = wire_dtype
        self._clock = clock
        self._lock = threading.Lock()
        self._history = VersionHistory(history, clock=clock, wall_clock=wall_clock)
        self._kept: Dict[Role, _Kept] = {}
        self._held: Dict[str, _Held] = {}
        self._fetching: Dict[Tuple[Role, int, str], float] = {}  # role, version, reader -> when it took a part
        self._digests: OrderedDict[Tuple[Role, int], str] = OrderedDict()
        self._learn_updates: OrderedDict[int, int] = OrderedDict()
        self._unknown_versions = 0
        self.published = 0  # versions of role `act`, in this life

    def publish(self, sets: Mapping[Role, Mapping[str, npt.NDArray[Any]]], updates: int) -> PublishedSet:
        """Make `sets` the newest of their roles, under one version.

        Args:
            sets: role -> name -> array. Arrays are taken over: nobody may write into them afterwards. Those that view
                memory of others (a torch tensor's) are copied.
            updates: behind all of them.

        Returns:
            That of role `act`, which must be there.

        Raises:
            UserError: a value does not fit `wire_dtype`, or no version can be reserved; nothing is published.
        """
        for parameters in sets.values():
            check_range(parameters, self._wire_dtype)
        version = self._reservation.take()
        made = {
            role: PublishedSet(role, version, updates, _owned(parameters), self._wire_dtype)
            for role, parameters in sets.items()
        }
        with self._lock:
            self._history.append(version, updates)
            for published in made.values():
                self._keep(published)
            self.published += 1
        return made[ACT]

    def publish_learn(self, parameters: Mapping[str, npt.NDArray[Any]], updates: int) -> PublishedSet:
        """Make `parameters` the newest set of role `learn`, under a version of its own.

        Args:
            parameters: all that gradients are computed from; taken over, as in `publish`.
            updates: behind it.
        """
        published = PublishedSet(LEARN, self._reservation.take(), updates, _owned(parameters), "float32")
        with self._lock:
            self._learn_updates[published.version] = updates
            if len(self._learn_updates) > LEARN_WINDOW:
                self._learn_updates.popitem(last=False)
            self._keep(published)
        return published

    @property
    def newest(self) -> Optional[PublishedSet]:
        """The newest set of role `act`."""
        return self.newest_of(ACT)

    def newest_of(self, role: Role) -> Optional[PublishedSet]:
        """The newest set of `role`, None before the first."""
        with self._lock:
            kept = self._kept.get(role)
            return kept.newest if kept else None

    def find(self, role: Role, version: int) -> Optional[PublishedSet]:
        """The set of `role` and `version` if it is kept, or held for an evaluator."""
        with self._lock:
            return next((s for s in self._sets() if s.role == role and s.version == version), None)

    def find_held(self, version: int, digest: str) -> Optional[PublishedSet]:
        """The set of `version` with `digest`, whatever its role; it was fetched, so it has one."""
        with self._lock:
            candidates = [s for s in self._sets() if s.version == version and s.is_serialized]
        return next((s for s in candidates if s.digest == digest), None)

    def note_fetch(self, published: PublishedSet, reader: str, *, is_last_part: bool) -> None:
        """A reader took a part of a set: a set of several parts is kept until its readers are done, or pause."""
        key, digest = (published.role, published.version, reader), published.digest
        with self._lock:
            if is_last_part:
                self._fetching.pop(key, None)
            else:
                self._fetching[key] = self._clock()
            self._digests[published.role, published.version] = digest
            if len(self._digests) > MAX_DIGESTS:
                self._digests.popitem(last=False)

    def digest_of(self, role: Role, version: int) -> str:
        """Digest of a version of this life that somebody fetched lately; empty where it is not known."""
        with self._lock:
            return self._digests.get((role, version), "")

    def hold_newest(self, reader: str, role: Role = ACT) -> Optional[PublishedSet]:
        """Keep the newest set for `reader` (an evaluator) until it takes a newer one, or is silent: one a reader.

        Returns:
            That set; None before the first.
        """
        with self._lock:
            kept = self._kept.get(role)
            if kept is not None:
                self._held[reader] = _Held(kept.newest, self._clock())
            self._drop_silent_holders()
            return kept.newest if kept else None

    def look_up(self, versions: npt.NDArray[np.int64]) -> VersionFacts:
        """Updates and ages of versions that acted, see `VersionHistory`."""
        return self._history.look_up(versions)

    def lag(self, versions: npt.NDArray[np.int64], updates: int) -> npt.NDArray[np.int64]:
        """Staleness in updates of things that `versions` produced, when they are used at `updates`.

        A version that is not in the history was lost in a crash of the chief: it counts as fresh (lag 0).
        """
        facts = self._history.look_up(versions)
        lag: npt.NDArray[np.int64] = np.where(facts.is_known, np.maximum(updates - facts.updates, 0), 0)
        self._unknown_versions += len(lag) - int(np.count_nonzero(facts.is_known))
        return lag

    def updates_of(self, versions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Updates behind `versions`; those of the newest version for one that is not known."""
        return self._history.look_up(versions).updates

    def known_updates_of(self, versions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Updates behind `versions` <int64>[N]; -1 for one that is not known."""
        facts = self._history.look_up(versions)
        return np.where(facts.is_known, facts.updates, -1)

    def age_s(self, versions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Seconds since `versions` were published; 0 for one that is not known."""
        return self._history.look_up(versions).age_s

    def updates_of_learn(self, version: int) -> Optional[int]:
        """Updates behind a set of role `learn`; None if it is of another life, or long gone."""
        with self._lock:
            return self._learn_updates.get(version)

    def lag_of_reader(self, role: Role, version: int, updates: int) -> int:
        """Lag of what a reader runs, in updates; 0 for a version that is not known."""
        if role == LEARN:
            return max(0, updates - (self.updates_of_learn(version) or updates))
        facts = self._history.look_up(np.array([version], np.int64))
        return max(0, updates - int(facts.updates[0])) if facts.is_known[0] else 0

    @property
    def unknown_versions(self) -> int:
        """How often `lag` was asked about a version that is not known."""
        return self._unknown_versions

    def history(self) -> List[VersionRecord]:
        """Every version that can be looked up, versions rising; for a checkpoint."""
        return self._history.records()

    @property
    def num_sets(self) -> int:
        """Sets in memory."""
        with self._lock:
            return len({id(published) for published in self._sets()})

    def _keep(self, published: PublishedSet) -> None:
        now = self._clock()
        kept = self._kept.get(published.role)
        if kept is None:
            self._kept[published.role] = _Kept(published)
            return
        self._fetching = {key: at for key, at in self._fetching.items() if now - at <= DOWNLOAD_LEASE_S}
        older = kept.older
        if older is None or now - kept.older_since > MAX_DOWNLOAD_S or not self._is_fetched(older):
            kept.older, kept.older_since = kept.newest, now
        kept.newest = published
        self._drop_silent_holders()

    def _is_fetched(self, published: PublishedSet) -> bool:
        return any(key[:2] == (published.role, published.version) for key in self._fetching)

    def _drop_silent_holders(self) -> None:
        now = self._clock()
        by_silence = sorted(self._held, key=lambda reader: now - self._held[reader].seen_at)
        for number, reader in enumerate(by_silence):
            if number >= MAX_HOLDERS or now - self._held[reader].seen_at > HOLD_LEASE_S:
                del self._held[reader]

    def _sets(self) -> List[PublishedSet]:
        found = [published for kept in self._kept.values() for published in (kept.newest, kept.older)]
        found += [held.held for held in self._held.values()]
        return [published for published in found if published is not None]


def _owned(parameters: Mapping[str, npt.NDArray[Any]]) -> Dict[str, npt.NDArray[Any]]:
    """The arrays themselves where their memory is numpy's own, else copies: a set must not change once published."""
    owned: Dict[str, npt.NDArray[Any]] = {}
    for name, given in parameters.items():
        array = np.asarray(given)
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        owned[name] = array if root.flags.owndata else array.copy()
    return owned
