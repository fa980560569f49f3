"""Chunk stamps: what is known of each resident chunk's way, found by the key of any of its rows.

Kept a chunk and not a row: the ring's rows take no further bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from services.common.batch import Stamps
from services.common.chunk_id import chunk_id
from services.common.stamps_codec import PackedStamps, StampSource, last_bits

Keys = npt.NDArray[np.int64]

Facts = Dict[str, npt.NDArray[Any]]
_COLUMNS = {  # what is kept of a chunk, ready to be sent
    "first_key": np.int64,
    "inserted_s": np.float64,
    "per_lane": np.float64,  # 1 / num_lanes
    "step_s": np.float32,  # acting_s / num_steps
    "acting_s": np.float32,
    "transit_s": np.float32,
    "actor": np.uint32,
    "known_version": np.uint32,  # last bits
    "arrival_version": np.uint32,
    "num_steps": np.uint32,
    "num_lanes": np.uint32,
    "incarnation": np.uint64,  # with these three and the actor a person names the chunk
    "sequence": np.uint64,
    "lane_group": np.uint32,
}
_SENT = tuple(
    name for name in _COLUMNS if not name.startswith("num_") and name not in ("incarnation", "sequence", "lane_group")
)
_NEVER = np.iinfo(np.int64).max
_LARGEST_S = 1e9
BLOCK_SHIFT = 7  # keys of a block of the index
MAX_STEPS = 2  # further chunks of a block that are looked at, before a search is faster


class ChunkStamp(NamedTuple):
    """One chunk with T >= 1 steps of B lanes, and F final observations behind them."""

    first_key: int
    known_version: int  # newest that the actor knew at the last step
    arrival_version: int  # newest that the replay knew at the insertion
    inserted_s: float  # the table's clock
    acting_s: float  # for all T steps
    transit_s: float  # from the last step to the insertion
    actor: int  # index of the actor's record
    num_lanes: int
    num_steps: int
    num_final: int
    incarnation: int = 0  # of the actor
    sequence: int = 0
    lane_group: int = 0

    @property
    def end_key(self) -> int:
        """The key behind its rows."""
        return self.first_key + self.num_steps * self.num_lanes + self.num_final


@dataclass(frozen=True)
class FoundStamps:
    """Where the chunks of N drawn items are: all that must be looked up under the table's lock."""

    keys: Keys  # [N]
    places: Keys  # [N], of their chunks in `facts`
    facts: Facts  # columns [C], which do not change any more where they are set
    now_s: float
    source: StampSource

    def pack(self) -> PackedStamps:
        """The items' stamps.

        An item's share of its chunk's acting begins where its step begins: of T steps T - t are still to come.
        """
        found = {name: self.facts[name].take(self.places) for name in _SENT}
        offset = (self.keys - found["first_key"]) + 0.5  # by half a lane, so that no rounding moves it to another step
        step = np.floor(offset * found["per_lane"]).astype(np.float32)
        return PackedStamps(
            source=self.source,
            actor_index=found["actor"],
            known_version=found["known_version"],
            arrival_version=found["arrival_version"],
            acting_seconds=found["acting_s"] - step * found["step_s"],
            transit_seconds=found["transit_s"],
            age_seconds=(self.now_s - found["inserted_s"]).astype(np.float32),
        )

    def resolve(self) -> Stamps:
        """The same, as who receives them sees them."""
        return self.pack().unpack()


class ChunkStamps:
    """The stamps of the chunks in a ring, in the order of their keys."""

    def __init__(self, capacity: int) -> None:
        """Make an empty one for a ring of `capacity` rows."""
        self._capacity = capacity
        self._facts: Facts = {name: np.zeros(64, dtype) for name, dtype in _COLUMNS.items()}
        self._first = np.full(65, _NEVER, np.int64)  # first keys, and an end for the search
        self._least = np.full(64, _NEVER, np.int64)  # oldest version of the steps that have not expired
        self._count = 0
        self._shortest = _NEVER  # rows of the shortest chunk
        self._end_key = 0
        num_blocks = 1 << ((capacity >> BLOCK_SHIFT) + 2).bit_length()
        self._mask = num_blocks - 1
        self._blocks = np.zeros(num_blocks, np.int64)  # place of the chunk that holds a block's first key, or the next

    def __len__(self) -> int:
        return self._count

    def first_keys(self) -> Keys:
        """First keys of the chunks, <int64>[C], ascending; of the oldest some rows may be overwritten."""
        return self._first[: self._count].copy()

    def add(self, stamp: ChunkStamp, oldest_version: int = _NEVER) -> None:
        """Append a chunk, whose keys are above all others.

        Args:
            stamp: of the chunk; what makes no sense (NaN, negative seconds) is taken for 0.
            oldest_version: the smallest of its steps, unless `recount` is to find it.
        """
        if self._count == len(self._least):
            self._make_room(stamp.end_key - self._capacity)
        at = self._count
        acting_s = _seconds(stamp.acting_s)
        values = {
            "first_key": stamp.first_key,
            "inserted_s": stamp.inserted_s,
            "per_lane": 1.0 / stamp.num_lanes,
            "step_s": acting_s / stamp.num_steps,
            "acting_s": acting_s,
            "transit_s": _seconds(stamp.transit_s),
            "actor": stamp.actor,
            "known_version": last_bits(stamp.known_version),
            "arrival_version": last_bits(stamp.arrival_version),
            "num_steps": stamp.num_steps,
            "num_lanes": stamp.num_lanes,
            "incarnation": stamp.incarnation,
            "sequence": stamp.sequence,
            "lane_group": stamp.lane_group,
        }
        for name, value in values.items():
            self._facts[name][at] = value
        self._first[at] = stamp.first_key
        self._least[at] = oldest_version
        begin = max(self._end_key, stamp.end_key - self._capacity)
        for block in range(-(-begin >> BLOCK_SHIFT), (stamp.end_key - 1 >> BLOCK_SHIFT) + 1):  # one or two, as a rule
            self._blocks[block & self._mask] = at
        self._shortest = min(self._shortest, stamp.end_key - stamp.first_key)
        self._end_key = stamp.end_key
        self._count = at + 1

    def _make_room(self, oldest_key: int) -> None:
        """Drop chunks that the ring has overwritten, or take twice the memory where there are few."""
        dead = int(np.searchsorted(self._first[: self._count], oldest_key, side="right")) - 1
        if 2 * dead >= self._count:
            kept, size = self._count - dead, len(self._least)
            self._take_over(dead, size)
            self._count = kept
            self._blocks = np.maximum(self._blocks - dead, 0)  # a block may begin in a chunk that is gone
            self._shortest = int(np.diff(self._first[:kept]).min(initial=_NEVER))
            return
        self._take_over(0, 2 * len(self._least))

    def _take_over(self, begin: int, size: int) -> None:
        """Move the chunks from place `begin` on to fresh arrays: who has found one without the lock still reads it."""
        facts, first, least = self._facts, self._first[begin:-1], self._least[begin:]
        self._facts = {name: np.zeros(size, dtype) for name, dtype in _COLUMNS.items()}
        for name, column in facts.items():
            self._facts[name][: len(least)] = column[begin:]
        self._first = np.full(size + 1, _NEVER, np.int64)
        self._least = np.full(size, _NEVER, np.int64)
        self._first[: len(first)] = first
        self._least[: len(least)] = least

    def _find(self, keys: Keys) -> Keys:
        """Places of the chunks that hold `keys` <int64>[N]."""
        at: Keys = self._blocks.take((keys >> BLOCK_SHIFT) & self._mask)
        at += self._first.take(at + 1) <= keys
        if self._shortest >> BLOCK_SHIFT:  # no block holds the beginnings of two chunks
            return at
        for _ in range(MAX_STEPS):
            behind = self._first.take(at + 1) <= keys
            if not behind.any():
                return at
            at += behind
        return np.searchsorted(self._first, keys, side="right") - 1

    def look_up(self, keys: Keys, now_s: float, sampling_version: int, actor_names: Tuple[str, ...]) -> FoundStamps:
        """What is known of the chunks that hold `keys`.

        Args:
            keys: <int64>[N], of resident steps.
            now_s: the table's clock.
            sampling_version: newest that the replay knows.
            actor_names: by index.
        """
        source = StampSource(sampling_version, actor_names)
        return FoundStamps(keys, self._find(keys), self._facts, now_s, source)

    def name_of(self, key: int, actor_names: Sequence[str]) -> str:
        """Name of the chunk that holds `key`, which is resident."""
        place = int(self._find(np.array([key], np.int64))[0])
        facts = {name: int(self._facts[name][place]) for name in ("actor", "incarnation", "sequence", "lane_group")}
        return chunk_id(actor_names[facts["actor"]], facts["incarnation"], facts["sequence"], facts["lane_group"])

    def take_older(self, version: int, policy_version: npt.NDArray[np.int64], oldest_key: int) -> Keys:
        """Keys of resident steps that are older than `version`; some may have been named before.

        Args:
            version: it never falls from call to call.
            policy_version: the ring's column <int64>[capacity].
            oldest_key: of the ring.
        """
        older = np.flatnonzero(self._least[: self._count] < version)
        found: List[Keys] = [np.zeros(0, np.int64)]
        for place in older.tolist():
            keys = self._resident_steps(place, oldest_key)
            versions = policy_version[keys % self._capacity]
            is_older = versions < version
            newer = versions[~is_older]
            self._least[place] = newer.min() if len(newer) > 0 else _NEVER
            found.append(keys[is_older])
        return np.concatenate(found)

    def recount(self, policy_version: npt.NDArray[np.int64], oldest_key: int) -> None:
        """Forget what has expired: take the oldest version of each chunk from the ring's column again."""
        for place in range(self._count):
            keys = self._resident_steps(place, oldest_key)
            self._least[place] = policy_version[keys % self._capacity].min() if len(keys) > 0 else _NEVER

    def _resident_steps(self, place: int, oldest_key: int) -> Keys:
        first = int(self._first[place])
        num_rows = int(self._facts["num_steps"][place]) * int(self._facts["num_lanes"][place])
        return np.arange(max(first, oldest_key), first + num_rows)

    def check_valid(self) -> Optional[str]:
        """What is wrong, or None."""
        first = self._first[: self._count]
        if (np.diff(first) <= 0).any() or (first != self._facts["first_key"][: self._count]).any():
            return "the chunks' stamps are not in the order of their keys"
        return None


def _seconds(value: float) -> float:
    return min(max(0.0, value), _LARGEST_S)  # max takes NaN for 0 in this order
