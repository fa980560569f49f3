"""The chunk log's records: what they hold, how they are packed, and how a damaged one is told from a good one.

Each record is a header (CRC32C of all that follows it, length of the whole, kind), then its body. Every kind but the
summary begins with the counts as they stand after the event, so that the last record alone says how things are.
"""

from __future__ import annotations

import enum
import json
import struct
from dataclasses import astuple, dataclass, fields
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from services.replay.step_counters import StepCounters

HEADER = struct.Struct("<IIB3x")  # CRC32C, length, kind
_CRC_BYTES = 4

_COUNTS_FIELDS = (
    *((field.name, "q") for field in fields(StepCounters)),
    ("reserved", "q"),  # next key of the ring
    ("inserted", "q"),  # the limiter's counts
    ("sampled", "q"),
    ("now_s", "d"),  # the table's clock, and seconds since 1970
    ("wall_s", "d"),
)
_CHUNK_FIELDS = (
    *_COUNTS_FIELDS,
    ("first_key", "q"),
    ("incarnation", "Q"),
    ("sequence", "Q"),
    ("first_step", "Q"),
    ("last_policy_version", "q"),
    ("newest_version", "Q"),
    ("produced_steps", "Q"),
    ("buffered_steps", "Q"),
    ("actor", "I"),
    ("lane_group", "I"),
    ("num_steps", "I"),  # T
    ("num_lanes", "I"),  # B
    ("num_final", "I"),  # F
    ("num_valid", "I"),  # transitions, quarantined ones included
    ("quarantined_steps", "I"),
    ("rows_crc", "I"),
    ("acting_s", "f"),
    ("queued_s", "f"),
)
_NUMPY_CODES = {"q": "<i8", "Q": "<u8", "d": "<f8", "I": "<u4", "f": "<f4"}
CHUNK_DTYPE = np.dtype([(name, _NUMPY_CODES[code]) for name, code in _CHUNK_FIELDS])
_COUNTS = struct.Struct("<" + "".join(code for _, code in _COUNTS_FIELDS))
_CHUNK = struct.Struct("<" + "".join(code for _, code in _CHUNK_FIELDS))
_INDEX = struct.Struct("<I")
_GROUP = struct.Struct("<II")  # actor, lane group
_KEY = struct.Struct("<q")
_VERSION = struct.Struct("<qq")  # version, updates; when it was is in the counts


class RecordKind(enum.IntEnum):
    """What a record tells; numbers are never reused."""

    SUMMARY = 1  # first of each segment: everything that the segments before it said
    CHUNK = 2  # a chunk is acknowledged
    ACTOR = 3  # an actor has begun a life, which ends its earlier ones
    CLOSED = 4  # the open windows of an actor were closed with what was known
    STATE = 5  # the counts, outside of any event
    DROPPED = 6  # a chunk's rows were found damaged: it is no longer there
    VERSION = 7  # the chief's newest version and its updates; one below its forerunner begins another history
    GAP = 8  # the open windows of one lane group of an actor were closed: steps are missing behind them


_KINDS = frozenset(RecordKind)


@dataclass(frozen=True)
class Counts:
    """The counters as they stood after an event."""

    steps: StepCounters
    reserved: int
    inserted: int
    sampled: int
    now_s: float
    wall_s: float

    def values(self) -> Tuple[float, ...]:
        """In the order of the record."""
        return (*astuple(self.steps), self.reserved, self.inserted, self.sampled, self.now_s, self.wall_s)


class Record(NamedTuple):
    """One record as read: its kind and its body."""

    kind: RecordKind
    body: bytes


def _seal(kind: RecordKind, body: bytes) -> bytes:
    whole = bytearray(HEADER.pack(0, HEADER.size + len(body), kind) + body)
    whole[:_CRC_BYTES] = struct.pack("<I", google_crc32c.value(bytes(whole[_CRC_BYTES:])))
    return bytes(whole)


def pack_chunk(counts: Counts, values: Dict[str, Any], dropped_steps: Dict[str, int]) -> bytes:
    """A chunk's record; `values` by the names of CHUNK_DTYPE's fields behind the counts."""
    body = _CHUNK.pack(*counts.values(), *(values[name] for name, _ in _CHUNK_FIELDS[len(_COUNTS_FIELDS) :]))
    return _seal(RecordKind.CHUNK, body + (json.dumps(dropped_steps).encode() if dropped_steps else b""))


def pack_actor(counts: Counts, index: int, name: str, incarnation: int) -> bytes:
    """The record of an actor's new life."""
    facts = json.dumps({"index": index, "name": name, "incarnation": incarnation})
    return _seal(RecordKind.ACTOR, _COUNTS.pack(*counts.values()) + facts.encode())


def pack_closed(counts: Counts, actor: int) -> bytes:
    """The record of closed windows."""
    return _seal(RecordKind.CLOSED, _COUNTS.pack(*counts.values()) + _INDEX.pack(actor))


def pack_gap(counts: Counts, actor: int, lane_group: int) -> bytes:
    """The record of a lane group's closed windows."""
    return _seal(RecordKind.GAP, _COUNTS.pack(*counts.values()) + _GROUP.pack(actor, lane_group))


def pack_state(counts: Counts) -> bytes:
    """The record of the counts alone."""
    return _seal(RecordKind.STATE, _COUNTS.pack(*counts.values()))


def pack_dropped(counts: Counts, first_key: int) -> bytes:
    """The record of a damaged chunk."""
    return _seal(RecordKind.DROPPED, _COUNTS.pack(*counts.values()) + _KEY.pack(first_key))


def pack_version(counts: Counts, version: int, updates: int) -> bytes:
    """The record of a version that was heard of."""
    return _seal(RecordKind.VERSION, _COUNTS.pack(*counts.values()) + _VERSION.pack(version, updates))


def pack_summary(
    counts: Counts,
    actors: List[Dict[str, Any]],
    versions: Sequence[Tuple[int, int]],
    *,
    after_crash: bool = False,
    rewritten: bool = False,
) -> bytes:
    """The record that begins a segment.

    Args:
        counts: as they stand.
        actors: as `history.summarize` has it.
        versions: (version, updates) of those that were heard of.
        after_crash: the machine had stopped in between: segments before this one may have holes.
        rewritten: this one held records that are gone, so that it does not follow from those before it.
    """
    facts = {
        "counts": list(counts.values()),
        "actors": actors,
        "versions": versions,
        "after_crash": after_crash,
        "rewritten": rewritten,
    }
    return _seal(RecordKind.SUMMARY, json.dumps(facts).encode())


def _counts(values: Tuple[Any, ...]) -> Counts:
    num = len(fields(StepCounters))
    return Counts(StepCounters(*values[:num]), *values[num:])


def counts_of(record: Record) -> Counts:
    """The counts of any record."""
    if record.kind is RecordKind.SUMMARY:
        return _counts(tuple(json.loads(record.body)["counts"]))
    return _counts(_COUNTS.unpack_from(record.body))


def chunk_facts(record: Record) -> bytes:
    """The fixed part of a chunk's record: one element of CHUNK_DTYPE."""
    return record.body[: _CHUNK.size]


def check_chunks(chunks: npt.NDArray[Any], capacity: int, reserved: int) -> None:
    """Refuse chunks that no replay can have acknowledged, before memory is taken for what they claim.

    Args:
        chunks: CHUNK_DTYPE[M], as they were acknowledged.
        capacity: of the ring.
        reserved: next key of the ring.

    Raises:
        ValueError: one of them claims more rows than a ring holds, or rows of another.
    """
    steps = chunks["num_steps"].astype(np.float64) * chunks["num_lanes"]  # no int64 holds every product
    final = chunks["num_final"].astype(np.float64)
    absurd = np.flatnonzero((steps + final > capacity) | (final > steps))
    if len(absurd):
        chunk = {name: chunks[absurd[0]][name].item() for name in ("num_steps", "num_lanes", "num_final")}
        raise ValueError(f"a chunk of {chunk} in a ring of {capacity} rows")
    first_key = chunks["first_key"]
    end_key = first_key + (steps + final).astype(np.int64)
    next_key = np.append(first_key[1:], reserved)
    if (first_key < 0).any() or (end_key > next_key).any() or (end_key < first_key).any():
        raise ValueError(f"chunks whose rows are not behind one another, or not below key {reserved}")


def dropped_steps_of(record: Record) -> Dict[str, int]:
    """The rest of a chunk's record: steps that the actor dropped in its life, by reason."""
    rest = record.body[_CHUNK.size :]
    dropped: Dict[str, int] = json.loads(rest) if rest else {}
    return dropped


def actor_facts(record: Record) -> Tuple[int, str, int]:
    """Index, name and incarnation of an actor's record."""
    facts = json.loads(record.body[_COUNTS.size :])
    return facts["index"], facts["name"], facts["incarnation"]


def closed_actor(record: Record) -> int:
    """The actor's index of a record of closed windows."""
    return int(_INDEX.unpack_from(record.body, _COUNTS.size)[0])


def gap_facts(record: Record) -> Tuple[int, int]:
    """The actor's index and the lane group of a gap's record."""
    actor, lane_group = _GROUP.unpack_from(record.body, _COUNTS.size)
    return actor, lane_group


def dropped_key(record: Record) -> int:
    """The first key of a damaged chunk."""
    return int(_KEY.unpack_from(record.body, _COUNTS.size)[0])


def version_facts(record: Record) -> Tuple[int, int]:
    """Version and updates of a version's record."""
    version, updates = _VERSION.unpack_from(record.body, _COUNTS.size)
    return version, updates


def summary_versions(record: Record) -> List[Tuple[int, int]]:
    """What a summary says of versions: (version, updates); nothing in those from before it was kept."""
    return [(int(version), int(updates)) for version, updates in json.loads(record.body).get("versions", [])]


def summary_actors(record: Record) -> List[Dict[str, Any]]:
    """What a summary says of the actors."""
    actors: List[Dict[str, Any]] = json.loads(record.body)["actors"]
    return actors


def is_after_crash(record: Record) -> bool:
    """Whether a record is the summary that ended the recovery from a crash of the machine."""
    return record.kind is RecordKind.SUMMARY and bool(json.loads(record.body)["after_crash"])


def is_rewritten(record: Record) -> bool:
    """Whether a record is the summary of a segment that was written anew."""
    return record.kind is RecordKind.SUMMARY and bool(json.loads(record.body).get("rewritten"))


class Parsed(NamedTuple):
    """A segment's records, and how it ended."""

    records: List[Record]
    end: int  # offset behind the last good record
    torn: bool  # a record was begun there and is not whole; nothing follows it
    fault: Optional[str]  # why what lies there is neither free space nor a torn record


def parse(data: bytes) -> Parsed:
    """Read records up to free space (zeros), a record that is not whole, or the end."""
    records: List[Record] = []
    offset, size = 0, len(data)
    while offset + HEADER.size <= size:
        crc, length, kind = HEADER.unpack_from(data, offset)
        if length == 0 and crc == 0:
            break
        whole = HEADER.size <= length <= size - offset
        if not whole or google_crc32c.value(data[offset + _CRC_BYTES : offset + length]) != crc:
            # What a kill left of a record reaches to where the record would have ended, and not a byte beyond.
            reach = offset + (length if whole else HEADER.size)
            torn = not data[reach:].strip(b"\0")
            fault = None if torn else f"the record at byte {offset} does not match its CRC32C"
            return Parsed(records, offset, torn, fault)
        if kind not in _KINDS:
            return Parsed(records, offset, False, f"the record at byte {offset} is of the unknown kind {kind}")
        records.append(Record(RecordKind(kind), data[offset + HEADER.size : offset + length]))
        offset += length
    if data[offset:].strip(b"\0"):
        return Parsed(records, offset, False, f"something lies behind its last record, at byte {offset}")
    return Parsed(records, offset, False, None)
