"""What a chunk log tells: the actors, the counts, and the chunks of each lane group's life in order."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import numpy as np
import numpy.typing as npt

from services.common.chunk import ActorCounters
from services.common.errors import UserError
from services.common.files import files_in
from services.common.ring_layout import damaged
from services.replay import records
from services.replay.admission import MAX_LANES, ActorRecord, Admission, LaneGroup, settled_steps
from services.replay.chunk_log import ASIDE_SUFFIX, Segment, segments_in
from services.replay.heard_versions import HeardVersions
from services.replay.records import CHUNK_DTYPE, Counts, Parsed, Record, RecordKind

# What the reading of numbers, names and JSON raises where they are not what they should be.
_NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, struct.error)


class Life(NamedTuple):
    """One lane group in one life of its actor."""

    actor: int
    incarnation: int
    lane_group: int


@dataclass
class History:
    """The log, read."""

    counts: Counts  # after the last event
    admission: Admission  # without open windows: those come from the rows
    chunks: npt.NDArray[Any]  # CHUNK_DTYPE[M], as they were acknowledged, overwritten ones included
    arrival_versions: npt.NDArray[np.int64]  # [M], newest that the replay knew at each chunk's insertion; 0: none
    versions: HeardVersions  # of the chief, as far as it was heard of
    severed_after: npt.NDArray[np.bool_]  # [M], nothing that follows in its life belongs to this chunk's last steps
    lives: Dict[Life, npt.NDArray[np.int64]]  # indices of chunks, in order
    dropped_keys: Set[int] = field(default_factory=set)  # first keys of chunks that were found damaged
    segments: List[Segment] = field(default_factory=list)
    starts: List[int] = field(default_factory=list)  # next key of the ring at the beginning of each segment
    end: int = 0  # offset in the last segment behind its last good record
    leftovers: List[Path] = field(default_factory=list)  # files that were begun and never used
    num_damaged: int = 0  # segments of which something was passed over, since it could not be read

    def is_living(self, life: Life) -> bool:
        """Whether this life may go on."""
        name = self.admission.names[life.actor]
        return self.admission.actors[name].incarnation == life.incarnation


class _EndOfWindows(NamedTuple):
    """An event that closed windows."""

    num_before: int  # chunks that came before it
    actor: int
    lane_group: Optional[int] = None  # None: all of them


_Stretch = List[Record]  # of segments of which each follows from the one before it, summaries included


def summarize(admission: Admission) -> List[Dict[str, Any]]:
    """What a summary says of the actors, by index."""
    return [
        {
            "name": record.name,
            "incarnation": record.incarnation,
            "fenced": list(record.fenced),
            "acknowledged_steps": record.acknowledged_steps,
            "life_acknowledged_steps": record.life_acknowledged_steps,
            "elsewhere_steps": record.elsewhere_steps,
            "last_policy_version": record.last_policy_version,
            "produced_steps": record.counters.produced_steps,
            "buffered_steps": record.counters.buffered_steps,
            "dropped_steps": dict(record.counters.dropped_steps),
            "groups": [
                [index, group.num_lanes, group.next_sequence, group.next_step, group.may_jump]
                for index, group in record.groups.items()
            ],
        }
        for record in (admission.actors[name] for name in admission.names)
    ]


def read_history(folder: Path, n_step: int, now_s: float, *, capacity: int, strict: bool) -> History:
    """Read the log in `folder`.

    Args:
        folder: of the segments.
        n_step: of the table.
        now_s: the table's clock; no actor is taken to have been silent for longer.
        capacity: of the ring.
        strict: everything that was ever written must be there (a process died, the machine did not). Else what is
            damaged is passed over.

    Raises:
        UserError: a segment is missing or damaged; the message names it.
    """
    segments = segments_in(folder)
    parsed = [_parsed(segment) for segment in segments]
    leftovers = files_in(folder, f"*{ASIDE_SUFFIX}")
    if len(segments) > 1 and not parsed[-1].records:
        leftovers.append(segments.pop().file)
        parsed.pop()
    if not segments:
        raise damaged(folder / "00000000.log", "it is missing")
    try:
        history = _read(segments, parsed, leftovers, n_step, now_s, strict=strict)
        records.check_chunks(history.chunks, capacity, history.counts.reserved)
    except _NONSENSE as error:  # a checksum is no signature: what bears the right one may still hold anything
        raise make_no_sense(folder, repr(error)) from None
    return history


def make_no_sense(folder: Path, why: str) -> UserError:
    """The error for a log whose records bear the right checksums, and tell what cannot be."""
    return damaged(folder, f"its records are whole and make no sense ({why})")


def _parsed(segment: Segment) -> Parsed:
    try:
        return records.parse(segment.file.read_bytes())
    except FileNotFoundError:
        raise  # of a ring in use: whoever looks on looks again
    except OSError as error:
        raise damaged(segment.file, f"it cannot be read: {error.strerror}") from None


def _read(
    segments: List[Segment], parsed: List[Parsed], leftovers: List[Path], n_step: int, now_s: float, *, strict: bool
) -> History:
    stretches = _stretches(segments, parsed, strict=strict)
    counts = records.counts_of(stretches[-1][-1])
    history = History(
        counts=counts,
        admission=Admission(n_step),
        chunks=np.zeros(0, CHUNK_DTYPE),
        arrival_versions=np.zeros(0, np.int64),
        versions=HeardVersions(),
        severed_after=np.zeros(0, np.bool_),
        lives={},
        segments=segments,
        starts=_starts(parsed, counts.reserved),
        end=parsed[-1].end,
        leftovers=leftovers,
        num_damaged=sum(found.fault is not None for found in parsed),
    )
    _replay(history, stretches, n_step, now_s)
    return history


def check_complete(history: History, *, committed: int, reserved: int, oldest_key: int) -> None:
    """Refuse a log that lacks what was acknowledged in this life of the machine, or that tells of more.

    Args:
        history: the log, read.
        committed: keys below it were acknowledged.
        reserved: next key of the ring.
        oldest_key: of the ring.

    Raises:
        UserError: the end or the beginning of the log is missing, or it tells of rows that were never written; the
            message names the file.
    """
    if history.counts.reserved < committed:
        last = history.segments[-1].file
        raise damaged(last, f"it ends at key {history.counts.reserved}, but rows up to {committed} were acknowledged")
    if history.counts.reserved > reserved:
        raise make_no_sense(history.segments[-1].file, f"rows up to {history.counts.reserved}, of {reserved}")
    first = history.segments[0]
    if history.starts[0] > max(0, oldest_key):
        raise damaged(first.file.with_name(f"{first.number - 1:08d}.log"), "it is missing")


def _begins(parsed: Parsed) -> bool:
    """Whether a segment begins as it must."""
    return bool(parsed.records) and parsed.records[0].kind is RecordKind.SUMMARY


def _starts(parsed: List[Parsed], reserved: int) -> List[int]:
    """Next key at the beginning of each segment; of one that cannot be read, that of the one behind it."""
    starts: List[int] = []
    for found in reversed(parsed):
        reserved = records.counts_of(found.records[0]).reserved if _begins(found) else reserved
        starts.append(reserved)
    return starts[::-1]


def _stretches(segments: List[Segment], parsed: List[Parsed], *, strict: bool) -> List[_Stretch]:
    stretches: List[_Stretch] = []
    hole, number = True, segments[0].number
    recovered = max((i for i, p in enumerate(parsed) if _begins(p) and records.is_after_crash(p.records[0])), default=0)
    for place, (segment, found) in enumerate(zip(segments, parsed)):
        must_be_whole = strict and place >= recovered
        hole |= place == recovered or (_begins(found) and records.is_rewritten(found.records[0]))
        if segment.number != number:
            if must_be_whole and place > recovered:
                raise damaged(segment.file.with_name(f"{number:08d}.log"), "it is missing")
            hole = True
        number = segment.number + 1
        last = place + 1 == len(segments)
        fault = found.fault or ("its last record is not whole" if found.torn and not last else None)
        if not _begins(found):
            fault = fault or "it does not begin with a summary"
        if fault is not None and must_be_whole:
            raise damaged(segment.file, fault)
        if not _begins(found):
            hole = True
            continue
        if hole:
            stretches.append([])
        stretches[-1].extend(found.records)
        hole = fault is not None
    if not stretches:
        raise damaged(segments[0].file, "no segment of the log can be read")
    return stretches


def _replay(history: History, stretches: List[_Stretch], n_step: int, now_s: float) -> None:
    bodies: List[bytes] = []
    chunk_records: List[Record] = []
    arrivals: List[int] = []
    ends_of_windows: List[_EndOfWindows] = []
    for stretch in stretches:
        _load_summary(history.admission, stretch[0], n_step, now_s)
        first = len(bodies)
        for record in stretch:
            if record.kind is RecordKind.CHUNK:
                bodies.append(records.chunk_facts(record))
                chunk_records.append(record)
                arrivals.append(history.versions.newest_version)
            elif record.kind is RecordKind.ACTOR:
                index, name, incarnation = records.actor_facts(record)
                history.admission.enter(name, incarnation, now_s)
                ends_of_windows.append(_EndOfWindows(len(bodies), index))
            elif record.kind is RecordKind.CLOSED:
                ends_of_windows.append(_EndOfWindows(len(bodies), records.closed_actor(record)))
            elif record.kind is RecordKind.GAP:
                ends_of_windows.append(_EndOfWindows(len(bodies), *records.gap_facts(record)))
            elif record.kind is RecordKind.DROPPED:
                history.dropped_keys.add(records.dropped_key(record))
            elif record.kind is RecordKind.SUMMARY:  # a version for which there was no more room is in it alone
                history.versions.restart(records.summary_versions(record))
            elif record.kind is RecordKind.VERSION:
                _note_version(history.versions, *records.version_facts(record))
        chunks = np.frombuffer(b"".join(bodies[first:]), CHUNK_DTYPE)
        _acknowledge(history.admission, chunks, chunk_records[first:], n_step)
    history.chunks = np.frombuffer(b"".join(bodies), CHUNK_DTYPE)
    history.arrival_versions = np.array(arrivals, np.int64)
    history.severed_after = np.zeros(len(bodies), np.bool_)
    history.lives = _lives(history.chunks)
    _sever(history, ends_of_windows)


def _note_version(versions: HeardVersions, version: int, updates: int) -> None:
    if version < versions.newest_version:
        versions.restart()
    versions.note(version, updates)


def _load_summary(admission: Admission, summary: Record, n_step: int, now_s: float) -> None:
    admission.names.clear()
    admission.actors.clear()
    for index, facts in enumerate(records.summary_actors(summary)):
        record = ActorRecord(facts["name"], index, facts["incarnation"], now_s)
        record.fenced.extend(facts["fenced"])
        record.acknowledged_steps = facts["acknowledged_steps"]
        record.last_policy_version = facts["last_policy_version"]
        record.counters = ActorCounters(facts["produced_steps"], facts["buffered_steps"], facts["dropped_steps"])
        for group, num_lanes, next_sequence, next_step, may_jump in facts["groups"]:
            record.groups[group] = LaneGroup(
                num_lanes,
                next_sequence,
                next_step,
                _no_keys(n_step, num_lanes),
                has_begun=True,
                may_jump=may_jump,
            )
        # A log from before they were kept tells nothing of lives: the counters are believed.
        settled = settled_steps(record.counters)
        record.life_acknowledged_steps = facts.get("life_acknowledged_steps", min(settled, record.acknowledged_steps))
        record.elsewhere_steps = facts.get("elsewhere_steps", settled - record.life_acknowledged_steps)
        admission.names.append(record.name)
        admission.actors[record.name] = record


def _no_keys(n_step: int, num_lanes: int) -> npt.NDArray[np.int64]:
    if not 0 <= num_lanes <= MAX_LANES:  # before memory is taken: a damaged number may ask for gigabytes
        raise ValueError(f"a lane group of {num_lanes} lanes")
    return np.full((n_step, num_lanes), -1, np.int64)


def _acknowledge(admission: Admission, chunks: npt.NDArray[Any], chunk_records: List[Record], n_step: int) -> None:
    """Move the actors on behind `chunks`; only the last one of a life or an actor matters."""
    _account_for_lives(admission, chunks, chunk_records)
    for life, places in _lives(chunks).items():
        record = admission.actors[admission.names[life.actor]]
        record.acknowledged_steps += int(chunks["num_valid"][places].sum())
        if record.incarnation != life.incarnation:
            continue
        last = chunks[places[-1]]
        known = record.groups.get(life.lane_group)
        lanes = chunks["num_lanes"][places][chunks["num_steps"][places] > 0]
        before = known.num_lanes if known else 0
        num_lanes = int(lanes[0]) if len(lanes) else before
        record.groups[life.lane_group] = LaneGroup(
            num_lanes,
            int(last["sequence"]) + 1,
            int(last["first_step"]) + int(last["num_steps"]),
            _no_keys(n_step, num_lanes),
            has_begun=True,
        )
    last_of_actor = dict(zip(chunks["actor"].tolist(), range(len(chunks))))
    last_with_steps = {
        actor: place
        for place, (actor, steps) in enumerate(zip(chunks["actor"].tolist(), chunks["num_steps"].tolist()))
        if steps > 0
    }
    for actor, place in last_of_actor.items():
        chunk, record = chunks[place], admission.actors[admission.names[actor]]
        if int(chunk["incarnation"]) != record.incarnation:
            continue  # its newest life has sent nothing yet
        dropped = records.dropped_steps_of(chunk_records[place])
        record.counters = ActorCounters(int(chunk["produced_steps"]), int(chunk["buffered_steps"]), dropped)
    for actor, place in last_with_steps.items():
        admission.actors[admission.names[actor]].last_policy_version = int(chunks["last_policy_version"][place])


def _account_for_lives(admission: Admission, chunks: npt.NDArray[Any], chunk_records: List[Record]) -> None:
    """Add to the living ones' sums what `ActorRecord` keeps of a life; to be called before their groups move on."""
    for index, name in enumerate(admission.names):
        record = admission.actors[name]
        places = np.flatnonzero((chunks["actor"] == index) & (chunks["incarnation"] == record.incarnation))
        settled = record.life_acknowledged_steps + np.cumsum(chunks["num_valid"][places], dtype=np.int64)
        joins = [_joins(record, chunks[places], group) for group in set(chunks["lane_group"][places].tolist())]
        for at in sorted(np.concatenate(joins).tolist() if joins else [])[-1:]:
            chunk, dropped = chunks[places[at]], records.dropped_steps_of(chunk_records[places[at]])
            counters = ActorCounters(int(chunk["produced_steps"]), int(chunk["buffered_steps"]), dropped)
            record.elsewhere_steps = max(0, settled_steps(counters) - int(settled[at]))
        if len(places):
            record.life_acknowledged_steps = int(settled[-1])


def _joins(record: ActorRecord, chunks: npt.NDArray[Any], group: int) -> npt.NDArray[np.int64]:
    """Which of a life's chunks are of a lane group's, and have others before them that the log does not know."""
    places = np.flatnonzero(chunks["lane_group"] == group)
    known = record.groups.get(group)
    awaited = np.concatenate(([known.next_sequence if known else 0], chunks["sequence"][places[:-1]] + 1))
    return places[chunks["sequence"][places] > awaited]


def _lives(chunks: npt.NDArray[Any]) -> Dict[Life, npt.NDArray[np.int64]]:
    places: Dict[Life, List[int]] = {}
    columns = (chunks[name].tolist() for name in ("actor", "incarnation", "lane_group"))
    for place, life in enumerate(zip(*columns)):
        places.setdefault(Life(*life), []).append(place)
    return {life: np.array(found, np.int64) for life, found in places.items()}


def _sever(history: History, ends_of_windows: List[_EndOfWindows]) -> None:
    by_actor: Dict[int, List[Tuple[int, npt.NDArray[np.int64]]]] = {}
    for life, places in history.lives.items():
        by_actor.setdefault(life.actor, []).append((life.lane_group, places))
        if not history.is_living(life):
            history.severed_after[places[-1]] = True
    for end in ends_of_windows:
        for lane_group, places in by_actor.get(end.actor, []):
            at = int(np.searchsorted(places, end.num_before)) - 1
            if at >= 0 and end.lane_group in (None, lane_group):
                history.severed_after[places[at]] = True
