"""Who fetches parameters: which version and digest each reader runs, and the rungs of the ladder that actors lease."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Callable, Dict, List, Set, Tuple, Union

from services.common.peer import MAX_NAME_LENGTH
from shoal.v1 import experience_pb2, parameters_pb2

FORGET_S = 600.0  # a reader that is silent for longer is gone, and its rung is free
MAX_QUESTIONS_PER_S = 20.0  # of all readers together for a version that there may not be; each costs about 1 ms of CPU
MAX_SENTENCE = 300  # characters that are kept of what a reader says about itself
NEEDED_S = 60.0  # a reader that is silent for longer makes room for a newcomer
MAX_MISMATCHES = 4096  # that are told apart; beyond them one may be told twice
MAX_ASK_AGAIN_S = 15.0  # beyond some hundred readers the end of training must still reach them soon

Question = Union[parameters_pb2.GetManifestRequest, parameters_pb2.GetParametersRequest]


@dataclass
class Reader:
    """A process that fetches parameters."""

    peer: experience_pb2.Peer
    role: parameters_pb2.ParameterRole.ValueType  # of the set that it fetches
    version: int  # what it runs; 0: nothing yet
    digest: str
    waiting_for: str  # in its own words; empty: nothing
    digest_differs: bool  # from that of the version as it was published
    seen_at: float
    told_finished: bool
    unheeded: int  # questions in a row that were answered with a newer set while it went on with this version
    drained: bool = False  # it is at rest, and all that it made is acknowledged
    waiting_since: float = 0.0  # when it first said that it waits


class Readers:
    """The readers that were heard of lately. Thread-safe."""

    def __init__(self, clock: Callable[[], float], num_actors: int, max_peers: int = 4096) -> None:
        """Know nobody.

        Args:
            clock: monotonic seconds.
            num_actors: rungs of the ladder.
            max_peers: readers that are let in at once.
        """
        self._clock = clock
        self._num_actors = num_actors
        self._max_peers = max_peers
        self._lock = threading.Lock()
        self._readers: Dict[str, Reader] = {}
        self._rungs: Dict[str, int] = {}
        self._mismatches: Set[Tuple[str, int, int]] = set()
        self.mismatches_total = 0

    def why_no_room(self, name: str) -> str:
        """One sentence that says why a reader of this name is not let in; empty if it is."""
        now = self._clock()
        with self._lock:
            if name in self._readers or len(self._readers) < self._max_peers:
                return ""
            oldest = min(self._readers.values(), key=lambda reader: reader.seen_at)
            if now - oldest.seen_at > NEEDED_S:
                self._forget(oldest.peer.name)
                return ""
        return (
            f"{self._max_peers} readers fetch parameters, as many as learner.max_peers lets in: raise it, or stop some"
        )

    def saw(
        self, question: Question, *, finished: bool, offered: bool = False, published_digest: str = ""
    ) -> Tuple[Reader, bool]:
        """Note a reader's question.

        Args:
            question: what it sent.
            finished: whether the answer says that training is finished.
            offered: whether the answer brings it another set.
            published_digest: of the version that it says it runs; empty where that is not known, as after a restart.

        Returns:
            The reader, and whether it is the first time that this life of it runs something else than this version.
        """
        now, peer, version = self._clock(), question.peer, question.running_version
        reader = Reader(
            peer=peer,
            role=question.role,
            version=version,
            digest=question.running_digest[:MAX_NAME_LENGTH],
            waiting_for=question.waiting_for[:MAX_SENTENCE],
            digest_differs=bool(version and published_digest and question.running_digest != published_digest),
            seen_at=now,
            told_finished=finished,
            unheeded=int(offered),
            drained=question.drained,
            waiting_since=now,
        )
        with self._lock:
            before = self._readers.get(peer.name)
            if offered and before and (before.peer.incarnation, before.version) == (peer.incarnation, version):
                reader.unheeded += before.unheeded
            if before and before.peer.incarnation == peer.incarnation and before.waiting_for and reader.waiting_for:
                reader.waiting_since = before.waiting_since
            self._readers[peer.name] = reader
            self._forget_silent(now)
            key = (peer.name, peer.incarnation, version)
            is_new = reader.digest_differs and key not in self._mismatches
            if len(self._mismatches) >= MAX_MISMATCHES:
                self._mismatches.clear()
            if is_new:
                self._mismatches.add(key)
                self.mismatches_total += 1
        return reader, is_new

    def _forget_silent(self, now: float) -> None:
        for name in [name for name, one in self._readers.items() if now - one.seen_at > FORGET_S]:
            self._forget(name)

    def _forget(self, name: str) -> None:
        del self._readers[name]
        self._rungs.pop(name, None)
        self._mismatches = {key for key in self._mismatches if key[0] != name}

    def lease_rung(self, name: str) -> int:
        """The ladder's rung of actor `name`: the same in each of its lives, shared once all are taken.

        A rung whose actor is gone is leased to the next newcomer.
        """
        with self._lock:
            if name not in self._rungs:
                taken = list(self._rungs.values())
                self._rungs[name] = min(range(self._num_actors), key=taken.count)
            return self._rungs[name]

    def living(self, within_s: float) -> List[Reader]:
        """Readers that asked within the last `within_s` seconds."""
        now = self._clock()
        with self._lock:
            return [reader for reader in self._readers.values() if now - reader.seen_at <= within_s]

    def waited_s(self, reader: Reader) -> float:
        """Seconds since the reader first said that it waits, up to its last question; 0 if it does not wait."""
        return reader.seen_at - reader.waiting_since if reader.waiting_for else 0.0

    def silence_s(self, reader: Reader) -> float:
        """Seconds since the reader asked."""
        return self._clock() - reader.seen_at

    @property
    def ask_again_s(self) -> float:
        """After how long a reader should ask again: all of them together ask no more than so often."""
        with self._lock:
            return min(MAX_ASK_AGAIN_S, len(self._readers) / MAX_QUESTIONS_PER_S)
