"""Drain: how a run is brought to rest, actors first and then the learner, and how it goes on."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass
from typing import Callable, List, Tuple

from services.common.log import Log
from services.learner.readers import Reader, Readers
from shoal.v1 import experience_pb2

LIVING_WITHIN_S = 10.0  # an actor that asked for nothing for longer is not waited for
FIRST_QUESTIONS_S = 5.0  # of a chief's life: until then it does not know all of its actors
UNDO = "`shoal drain --undo` lets it go on"


class DrainPhase(enum.IntEnum):
    """How far the run is; the numbers are those of the wire."""

    NONE = 0
    ACTORS = 1
    LEARNER = 2
    DRAINED = 3


@dataclass(frozen=True)
class DrainState:
    """How far a drain is at one moment."""

    phase: DrainPhase
    waiting_for: str  # one sentence; empty at rest, and where nothing is drained
    seconds: float  # since the phase began
    held_up: Tuple[str, ...]  # actors that are not at rest though their time is over, each with what it waits for
    checkpoint_updates: int


class Drain:
    """Whose turn it is. Thread-safe: an operator's calls begin and undo it, the training loop asks and obeys.

    Actors are at rest before the learner is: as long as it draws, nothing holds their last chunks back. It is kept
    nowhere: a new life of the chief lets the run go on.
    """

    def __init__(self, readers: Readers, clock: Callable[[], float], log: Log) -> None:
        """Begin undrained.

        Args:
            readers: say whether they are at rest.
            clock: monotonic seconds.
            log: where each turn is said.
        """
        self._readers = readers
        self._clock = clock
        self._log = log
        self._lock = threading.RLock()
        self._born_s = clock()
        self._phase = DrainPhase.NONE
        self._since_s = self._born_s
        self._actors_until_s = 0.0
        self._has_loop = False
        self._checkpoint_updates = 0

    @property
    def is_on(self) -> bool:
        """Whether the run is drained, or about to be."""
        return self._phase is not DrainPhase.NONE

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is trained until it is undone."""
        return self._phase is DrainPhase.DRAINED

    def begin(self, actors_within_s: float) -> None:
        """Bring the run to rest; once more, give actors that are not at rest yet their time anew.

        Args:
            actors_within_s: those that are not at rest by then are not waited for.
        """
        with self._lock:
            self._actors_until_s = self._clock() + actors_within_s
            if self._phase is DrainPhase.NONE:
                self._go_to(DrainPhase.ACTORS)
                self._log.info("the run is drained: actors send what they have", within_s=actors_within_s)

    def undo(self) -> None:
        """Let the run go on; harmless if it does."""
        with self._lock:
            if self._phase is not DrainPhase.NONE:
                self._go_to(DrainPhase.NONE)
                self._log.info("the run goes on")

    def loop_begins(self) -> None:
        """There is a training loop from now on: the run is at rest only when it says so."""
        with self._lock:
            self._has_loop = True
            if self._phase is DrainPhase.DRAINED:
                self._go_to(DrainPhase.LEARNER)

    def is_learners_turn(self) -> bool:
        """Whether the learner draws no more."""
        if self._phase is DrainPhase.NONE:  # the usual case, asked for each draw
            return False
        with self._lock:
            self._advance()
            return self._phase in (DrainPhase.LEARNER, DrainPhase.DRAINED)

    def learner_rests(self, updates: int) -> None:
        """The learner has trained on all that it had drawn, and has written its checkpoint of `updates`."""
        with self._lock:
            self._checkpoint_updates = updates
            if self._phase is DrainPhase.LEARNER:
                self._go_to(DrainPhase.DRAINED)
                self._log.info(f"the run is drained; {UNDO}", updates=updates)

    def state(self) -> DrainState:
        """How far it is now."""
        with self._lock:
            self._advance()
            is_over = self._phase in (DrainPhase.LEARNER, DrainPhase.DRAINED)
            active = self._active() if self.is_on else []
            return DrainState(
                phase=self._phase,
                waiting_for=self._waiting_for(active),
                seconds=self._clock() - self._since_s,
                held_up=tuple(_sentence(reader) for reader in active) if is_over else (),
                checkpoint_updates=self._checkpoint_updates,
            )

    def _advance(self) -> None:
        now_s = self._clock()
        if self._phase is DrainPhase.ACTORS:
            is_heard = now_s - self._born_s >= FIRST_QUESTIONS_S
            active = self._active()
            if (is_heard and not active) or now_s >= self._actors_until_s:
                self._go_to(DrainPhase.LEARNER)
                for reader in active:
                    self._log.warning("an actor is not at rest in its time", actor=_sentence(reader))
        if self._phase is DrainPhase.LEARNER and not self._has_loop:
            self._go_to(DrainPhase.DRAINED)  # nothing was trained yet: there is nothing to save

    def _active(self) -> List[Reader]:
        """Living actors that are not at rest, by name."""
        living = self._readers.living(max(LIVING_WITHIN_S, 2 * self._readers.ask_again_s))
        actors = [reader for reader in living if reader.peer.role == experience_pb2.ROLE_ACTOR and not reader.drained]
        return sorted(actors, key=lambda reader: reader.peer.name)

    def _waiting_for(self, active: List[Reader]) -> str:
        if self._phase is DrainPhase.ACTORS:
            if not active:
                return "waiting to hear of all actors: the learner has just begun"
            return f"waiting for actors to come to rest: {'; '.join(map(_sentence, active))}"
        if self._phase is DrainPhase.LEARNER:
            return "waiting for the learner to train on what it has drawn, and to write its checkpoint"
        return ""

    def _go_to(self, phase: DrainPhase) -> None:
        self._phase = phase
        self._since_s = self._clock()


def _sentence(reader: Reader) -> str:
    return f"{reader.peer.name}: {reader.waiting_for or 'it has not come to rest yet'}"
