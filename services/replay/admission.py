"""Admission: which chunks may be applied, in which order, and which life of an actor may send them."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Deque, Dict, List, Optional, Tuple

import numpy as np
import numpy.typing as npt

from services.common.chunk import ActorCounters, Chunk
from services.common.errors import UserError

MAX_SENTENCE = 300  # characters of what an actor says that are kept
WORD_LASTS_S = 10.0  # an actor that waits says so again sooner
MAX_FENCED = 1024  # lives of one actor that are remembered as over
MAX_LANE_GROUPS = 64  # of one life of an actor
MAX_LANES = 65_536  # of them together: each takes room for its open windows


class InsertStatus(enum.IntEnum):
    """The answer to an insert; the numbers are those of the wire."""

    APPLIED = 1
    DUPLICATE = 2
    BLOCKED = 3
    OUT_OF_ORDER = 4
    NEED_SCHEMA = 5
    REFUSED = 6
    FENCED = 7


class TooManyPeers(UserError):
    """As many actors as are let in have introduced themselves; the message says what to change."""


@dataclass
class LaneGroup:
    """What the replay knows of one lane group in one life of its actor."""

    num_lanes: int  # 0 until the first chunk with steps
    next_sequence: int
    next_step: int  # index of the step that would follow without a gap
    open_keys: npt.NDArray[np.int64]  # [n_step, num_lanes], rows whose windows are open, aligned to the end; -1: none
    has_begun: bool = False  # a chunk of it was acknowledged
    may_jump: bool = False  # the replay is older than its actor: chunks in between are lost for good


@dataclass
class ActorRecord:
    """What the replay knows of one actor name, in its newest life."""

    name: str
    index: int
    incarnation: int
    last_seen_s: float
    groups: Dict[int, LaneGroup] = field(default_factory=dict)
    fenced: Deque[int] = field(default_factory=lambda: deque(maxlen=MAX_FENCED))
    calls_in_flight: int = 0
    acknowledged_steps: int = 0  # of all lives
    life_acknowledged_steps: int = 0  # of this life
    elsewhere_steps: int = 0  # of this life, that another ring acknowledged, or this one before it came back older
    last_policy_version: int = 0
    counters: ActorCounters = field(default_factory=ActorCounters)
    waiting_for: str = ""  # as it said, or was told; a chunk takes it back
    waiting_since_s: float = 0.0
    heard_s: float = 0.0  # when it was said last

    def wait(self, sentence: str, now_s: float) -> None:
        """Note what the actor waits for."""
        if not self.waiting_for or now_s - self.heard_s > WORD_LASTS_S:
            self.waiting_since_s = now_s
        self.waiting_for, self.heard_s = sentence[:MAX_SENTENCE], now_s


@dataclass(frozen=True)
class Verdict:
    """Whether a chunk may be applied (status APPLIED: it may) and why not."""

    status: InsertStatus
    reason: str
    next_sequence: int


class Admission:
    """The actors, their lives and their lane groups.

    A resend is harmless: (actor, incarnation, lane group, sequence) is applied once. A chunk that is ahead of its turn
    is refused, never parked. An incarnation that was not seen before is the newer one, and fences the older for good.
    A lane group that is not known may begin at any sequence, since the replay may be the one that restarted; so may one
    of a replay that came back older than it was (a snapshot, a crash of the machine), above what it knows.
    """

    def __init__(self, n_step: int, max_peers: int = 4096) -> None:
        """Know nobody.

        Args:
            n_step: of the table.
            max_peers: names of actors that are remembered; each is for good, since rows and counts bear it.
        """
        self._n_step = n_step
        self._max_peers = max_peers
        self.actors: Dict[str, ActorRecord] = {}
        self.names: List[str] = []  # by index
        self._name_table: Tuple[str, ...] = ()

    def name_table(self) -> Tuple[str, ...]:
        """The names by index; the same object as long as no actor comes."""
        if len(self._name_table) != len(self.names):
            self._name_table = tuple(self.names)
        return self._name_table

    def take_over(self, other: Admission) -> None:
        """Know from now on what `other` knows."""
        self.actors, self.names = other.actors, other.names

    def judge(self, actor: str, incarnation: int, chunk: Chunk) -> Verdict:
        """Say whether `chunk` may be applied now; changes nothing."""
        fenced = self.why_fenced(actor, incarnation)
        if fenced:
            return Verdict(InsertStatus.FENCED, fenced, 0)
        record = self.actors.get(actor)
        group, groups = None, {}
        if record is not None and record.incarnation == incarnation:
            groups = record.groups
            group = groups.get(chunk.lane_group)
        reason = self._why_no_room(groups, group, chunk, actor)
        if reason:
            return Verdict(InsertStatus.REFUSED, reason, chunk.sequence)
        if group is None:
            return Verdict(InsertStatus.APPLIED, "", chunk.sequence)
        status, reason = self._compare(group, chunk, f"lane group {chunk.lane_group} of actor {actor!r}")
        return Verdict(status, reason, group.next_sequence)

    def why_fenced(self, actor: str, incarnation: int) -> str:
        """One sentence if a newer life of this actor has taken over; empty otherwise."""
        record = self.actors.get(actor)
        if record is None or incarnation not in record.fenced:
            return ""
        return (
            f"actor {actor!r} was started anew as incarnation {record.incarnation:#x}; this one, {incarnation:#x}, "
            f"must stop, or be given a name of its own"
        )

    def note_wait(self, actor: str, incarnation: int, sentence: str, now_s: float) -> None:
        """Note what this life of an actor waits for, if it is the living one."""
        record = self.actors.get(actor)
        if record is not None and record.incarnation == incarnation:
            record.wait(sentence, now_s)

    def why_no_peer(self, actor: str) -> str:
        """One sentence that says why an actor of this name is not let in; empty if it is."""
        if actor in self.actors or len(self.actors) < self._max_peers:
            return ""
        return (
            f"{self._max_peers} actors have introduced themselves, as many as replay.max_peers lets in: raise it, or "
            "give actors names that last (actor.index or actor.name), for each new name counts"
        )

    @staticmethod
    def _why_no_room(groups: Dict[int, LaneGroup], group: Optional[LaneGroup], chunk: Chunk, actor: str) -> str:
        if group is None and len(groups) >= MAX_LANE_GROUPS:
            return f"actor {actor!r} sends a lane group beyond the {MAX_LANE_GROUPS} that an actor may have"
        if chunk.num_steps and (group is None or not group.num_lanes):
            lanes = chunk.num_lanes + sum(known.num_lanes for known in groups.values())
            if lanes > MAX_LANES:
                return f"actor {actor!r} would have {lanes} lanes; an actor may have {MAX_LANES}"
        return ""

    @staticmethod
    def _compare(group: LaneGroup, chunk: Chunk, where: str) -> Tuple[InsertStatus, str]:
        awaited, sequence = group.next_sequence, chunk.sequence
        if sequence < awaited:
            return InsertStatus.DUPLICATE, f"sequence {sequence} of {where} was acknowledged before"
        if sequence > awaited and not group.may_jump:
            return (
                InsertStatus.OUT_OF_ORDER,
                f"{where} sent sequence {sequence} while {awaited} is awaited; send that one first",
            )
        if chunk.num_steps > 0 and group.num_lanes not in (0, chunk.num_lanes):
            return (
                InsertStatus.REFUSED,
                f"{where} has {group.num_lanes} lanes, not {chunk.num_lanes}; a lane group never changes its size",
            )
        if chunk.first_step < group.next_step:
            already = (
                f"{where} sent steps from {chunk.first_step} on, but those below {group.next_step} were acknowledged"
            )
            return InsertStatus.REFUSED, f"{already} before; number the steps of a life without going back"
        return InsertStatus.APPLIED, ""

    def is_news(self, actor: str, incarnation: int) -> bool:
        """Whether this life of `actor` was not heard of before."""
        record = self.actors.get(actor)
        return record is None or record.incarnation != incarnation

    def enter(self, actor: str, incarnation: int, now_s: float) -> List[LaneGroup]:
        """Make `incarnation` the living one of `actor`.

        Returns:
            The lane groups of the life that it fences, whose open windows must be closed.
        """
        record = self.actors.get(actor)
        if record is None:
            self.actors[actor] = ActorRecord(actor, len(self.names), incarnation, now_s)
            self.names.append(actor)
            return []
        record.last_seen_s = now_s
        if record.incarnation == incarnation:
            return []
        orphans = list(record.groups.values())
        record.fenced.append(record.incarnation)
        record.incarnation = incarnation
        record.groups = {}
        record.life_acknowledged_steps = record.elsewhere_steps = 0
        record.counters = ActorCounters()
        record.waiting_for = ""
        return orphans

    def group_of(self, record: ActorRecord, chunk: Chunk) -> LaneGroup:
        """The lane group of an admitted chunk, made if it is new; its size is fixed by the first chunk with steps."""
        group = record.groups.get(chunk.lane_group)
        if group is None:
            group = LaneGroup(0, chunk.sequence, chunk.first_step, np.full((self._n_step, 0), -1, np.int64))
            record.groups[chunk.lane_group] = group
        if chunk.num_steps > 0 and group.num_lanes == 0:
            group.num_lanes = chunk.num_lanes
            group.open_keys = np.full((self._n_step, chunk.num_lanes), -1, np.int64)
        return group

    def acknowledge(self, record: ActorRecord, group: LaneGroup, chunk: Chunk) -> None:
        """Move on behind an applied chunk."""
        is_joining = chunk.sequence > (group.next_sequence if group.has_begun else 0)
        group.has_begun, group.may_jump = True, False
        group.next_sequence = chunk.sequence + 1
        group.next_step = chunk.first_step + chunk.num_steps
        record.acknowledged_steps += chunk.num_valid
        record.life_acknowledged_steps += chunk.num_valid
        record.counters = chunk.counters
        record.waiting_for = ""
        if is_joining:  # what came before this chunk was acknowledged where this ring does not know of it
            record.elsewhere_steps = max(0, settled_steps(record.counters) - record.life_acknowledged_steps)
        if chunk.num_steps > 0:
            record.last_policy_version = int(chunk.policy_version[-1])

    def silent(self, now_s: float, max_silence_s: float) -> List[ActorRecord]:
        """Actors with open windows that were not heard of for longer than `max_silence_s`."""
        return [
            record
            for record in self.actors.values()
            if record.calls_in_flight == 0
            and now_s - record.last_seen_s > max_silence_s
            and any((group.open_keys >= 0).any() for group in record.groups.values())
        ]


def settled_steps(counters: ActorCounters) -> int:
    """Steps of a life that were acknowledged, wherever, by what the actor sent with a chunk, that chunk included."""
    return counters.produced_steps - counters.buffered_steps - sum(counters.dropped_steps.values())
