"""The journal: what the table tells the chunk log, and how a table comes back from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Optional, Set, Tuple

import numpy as np

from services.common.chunk import Chunk
from services.common.errors import UserError
from services.common.ring_layout import CHUNKS_FOLDER, column_file, damaged
from services.replay import records
from services.replay.admission import ActorRecord, Admission
from services.replay.chunk_stamps import ChunkStamp
from services.replay.history import History, check_complete, make_no_sense, read_history, summarize
from services.replay.item_store import ItemStore
from services.replay.items import StepOutcome
from services.replay.rate_limiter import RateLimiter
from services.replay.rebuild import FlagsDisagree, damaged_chunks, rebuild_items, rebuilt_counters
from services.replay.records import Counts, RecordKind
from services.replay.ring_folder import RingFolder
from services.replay.table_view import check_windows

MAX_TAIL_BYTES = 1 << 12  # reasons for drops beyond this are not kept: they come with the next chunk again
_PACK: Dict[RecordKind, Callable[..., bytes]] = {
    RecordKind.CLOSED: records.pack_closed,
    RecordKind.DROPPED: records.pack_dropped,
    RecordKind.GAP: records.pack_gap,
}


class Journal:
    """The journal of a table in memory: nothing is written down."""

    damaged_chunks = 0  # that were found when the ring came back, for the first time
    damaged_segments = 0  # of the log, at the same time

    def why_full(self) -> str:
        """One sentence that says why nothing can be acknowledged now; empty if it can."""
        return ""

    def entered(self, record: ActorRecord) -> None:
        """An actor has begun a life, and the windows of the one before are closed."""

    def closed(self, record: ActorRecord) -> None:
        """The windows of an actor are closed."""

    def inserted(self, record: ActorRecord, chunk: Chunk, first_key: int, quarantined_steps: int) -> None:
        """A chunk is written; `chunk` is what came, with the lanes that were quarantined."""

    def noted_version(self) -> None:
        """The newest version that was heard of is another one."""

    def note_state(self) -> None:
        """Write the counts down if they have changed outside of any event."""


class FolderJournal(Journal):
    """The journal of a table whose ring lies in a folder. Every method is called with the table's lock held."""

    def __init__(
        self,
        folder: RingFolder,
        store: ItemStore,
        admission: Admission,
        limiter: RateLimiter,
        clocks: Dict[str, Callable[[], float]],
    ) -> None:
        """Take over the log of `folder`; `clocks` are "now" (the table's) and "wall" (seconds since 1970)."""
        self._folder = folder
        self._log = folder.log
        self._store = store
        self._admission = admission
        self._limiter = limiter
        self._clocks = clocks
        self._noted: Optional[Counts] = None
        self._written_version = store.history.newest_version
        # What the last segment's records say of chunks in older ones, which no summary tells: closed windows by actor
        # or lane group, damaged chunks by key. None: an earlier life wrote some of them, and the segment stays.
        self._said: Optional[Set[Tuple[RecordKind, Tuple[int, ...]]]] = None
        self._after_crash = False  # the last segment begins with what was saved from a crash

    def counts(self) -> Counts:
        """The counts as they stand."""
        return Counts(
            steps=replace(self._store.counters),
            reserved=self._store.ring.reserved,
            inserted=self._limiter.inserted,
            sampled=self._limiter.sampled,
            now_s=self._clocks["now"](),
            wall_s=self._clocks["wall"](),
        )

    def roll(self, *, after_crash: bool = False) -> None:
        """Begin a new segment; `after_crash`: with what was saved from those before it.

        One in which nothing was inserted is begun anew instead.

        Raises:
            UserError: there is no room for it.
        """
        ring, history, counts = self._store.ring, self._store.history, self.counts()
        said = self._said if self._log.start == ring.reserved else None
        summary = records.pack_summary(
            counts,
            summarize(self._admission),
            history.pairs(),
            after_crash=after_crash if said is None else self._after_crash,
            rewritten=said is not None,
        )
        if said is None:
            self._log.roll(summary, ring.reserved, ring.oldest_key)
            self._said, self._after_crash = set(), after_crash
        else:
            self._log.rewrite(summary + b"".join(_PACK[kind](counts, *numbers) for kind, numbers in sorted(said)))
        self._written_version = history.newest_version

    def _outlives(self, kind: RecordKind, *numbers: int) -> None:
        """Keep what a record says of older chunks, for when its segment is begun anew."""
        if self._said is not None:
            self._said.add((kind, numbers))

    def why_full(self) -> str:
        if self._log.is_short:
            try:
                self.roll()
            except UserError as error:
                return str(error)
        return ""

    def entered(self, record: ActorRecord) -> None:
        # The life itself is in any summary; that it closed the windows of the one before is not.
        self._log.append(records.pack_actor(self.counts(), record.index, record.name, record.incarnation))
        self._outlives(RecordKind.CLOSED, record.index)

    def closed(self, record: ActorRecord) -> None:
        self._log.append(records.pack_closed(self.counts(), record.index))
        self._outlives(RecordKind.CLOSED, record.index)

    def noted_version(self) -> None:
        history = self._store.history
        if history.newest_version == self._written_version or self.why_full():
            return
        if history.newest_version != self._written_version:  # a new segment would have begun with it
            self._log.append(records.pack_version(self.counts(), history.newest_version, history.newest_updates))
            self._written_version = history.newest_version

    def inserted(self, record: ActorRecord, chunk: Chunk, first_key: int, quarantined_steps: int) -> None:
        self.noted_version()  # what could not be written when it was heard of: a chunk's place says what was known
        ring = self._store.ring
        num_rows = ring.reserved - first_key
        values: Dict[str, Any] = {
            "first_key": first_key,
            "incarnation": record.incarnation,
            "sequence": chunk.sequence,
            "first_step": chunk.first_step,
            "last_policy_version": int(chunk.policy_version[-1]) if chunk.num_steps > 0 else -1,
            "newest_version": chunk.newest_version,
            "produced_steps": chunk.counters.produced_steps,
            "buffered_steps": chunk.counters.buffered_steps,
            "actor": record.index,
            "lane_group": chunk.lane_group,
            "num_steps": chunk.num_steps,
            "num_lanes": chunk.num_lanes,
            "num_final": num_rows - chunk.flags.size,
            "num_valid": chunk.num_valid,
            "quarantined_steps": quarantined_steps,
            "rows_crc": ring.checksum(first_key, num_rows),
            "acting_s": chunk.acting_seconds,
            "queued_s": chunk.queued_seconds,
        }
        dropped = dict(chunk.counters.dropped_steps)
        if sum(len(reason) + 32 for reason in dropped) > MAX_TAIL_BYTES:
            dropped = {}
        self._log.append(records.pack_chunk(self.counts(), values, dropped))
        group = record.groups.get(chunk.lane_group)
        if chunk.num_steps == 0 and group is not None and chunk.first_step != group.next_step:
            self._outlives(RecordKind.GAP, record.index, chunk.lane_group)

    def note_state(self) -> None:
        counts = self.counts()
        known = self._noted
        if known is not None and (counts.steps, counts.sampled) == (known.steps, known.sampled):
            return
        if not self.why_full():
            self._log.append(records.pack_state(counts))
            self._noted = counts

    def begin(self, *, after_crash: bool, damaged_keys: Iterable[int]) -> None:
        """Write down how the table came back, and which chunks (by first key) were found damaged.

        Raises:
            UserError: there is no room for it.
        """
        if after_crash:
            self.roll(after_crash=True)
        why = self.why_full()
        if why:
            raise UserError(why)
        self._written_version = self._store.history.newest_version
        for first_key in damaged_keys:
            self._log.append(records.pack_dropped(self.counts(), first_key))
            self._outlives(RecordKind.DROPPED, first_key)
        self._noted = self.counts()
        self._log.append(records.pack_state(self._noted))

    def hold(self, folder: Path) -> Callable[[], int]:
        """Hold the log as it is; the call of what is returned writes it to `folder` and says how many bytes."""
        self.note_state()
        return self._log.copy_into(folder)


def open_journal(
    folder: RingFolder,
    store: ItemStore,
    admission: Admission,
    limiter: RateLimiter,
    clocks: Dict[str, Callable[[], float]],
) -> FolderJournal:
    """Bring store, admission and limiter to where the folder's log ends, and go on with it.

    What the log acknowledges is there again; rows of a chunk that it does not know are given up. After another life of
    the machine each chunk is checked against its CRC32C, and damaged ones are dropped and counted as reset.

    Raises:
        UserError: a file is missing or damaged; nothing of what is in the folder was given up.
    """
    journal = FolderJournal(folder, store, admission, limiter, clocks)
    ring = store.ring
    chunks = folder.path / CHUNKS_FOLDER
    if ring.reserved == 0 and not any(chunks.iterdir()):
        journal.roll()
        folder.save_format(n_step=store.n_step, discount=store.discount)
        return journal
    now_s = clocks["now"]()
    history = read_history(chunks, store.n_step, now_s, capacity=ring.capacity, strict=folder.is_same_boot)
    if folder.is_same_boot:
        check_complete(history, committed=ring.committed, reserved=ring.reserved, oldest_key=ring.oldest_key)
    num_burned = ring.reserved - history.counts.reserved
    ring.reserve_up_to(history.counts.reserved)
    found = set() if folder.is_same_boot else damaged_chunks(ring, history.chunks)
    newly_damaged = found - history.dropped_keys
    journal.damaged_chunks, journal.damaged_segments = len(newly_damaged), history.num_damaged
    history.dropped_keys |= found
    flags = column_file(folder.path, "flags")
    try:
        store.history.restart(history.versions.pairs())
        rebuild_items(store, history)
    except FlagsDisagree:
        raise damaged(flags, "it does not hold what the chunk log says") from None
    recorded = history.counts.steps
    resident = np.isin(ring.status, (StepOutcome.OPEN, StepOutcome.ITEM))
    gone = recorded.resident - int(np.count_nonzero(resident))
    if folder.is_same_boot and not 0 <= gone <= max(0, num_burned):
        raise damaged(flags, f"{gone} steps of the chunk log are not in it")
    store.counters = rebuilt_counters(recorded, ring.status, into="overwritten" if folder.is_same_boot else "reset")
    limiter.restore(history.counts.inserted, history.counts.sampled)
    admission.take_over(history.admission)
    if not folder.is_same_boot:
        _come_back_older(history, store, admission, clocks)
    _restore_stamps(history, store)
    why = store.check_rows() or limiter.check_valid() or check_windows(store, admission)
    if why is not None:
        raise make_no_sense(chunks, why)
    for leftover in history.leftovers:
        leftover.unlink()
    folder.log.resume(history.segments, history.starts, history.end)
    journal.begin(after_crash=not folder.is_same_boot, damaged_keys=sorted(newly_damaged))
    ring.commit()
    folder.save_format(n_step=store.n_step, discount=store.discount)
    return journal


def _restore_stamps(history: History, store: ItemStore) -> None:
    """The stamps of resident chunks; a chunk from before versions were written down arrived at an unknown one, 0."""
    ring = store.ring
    for chunk, arrival in zip(history.chunks, history.arrival_versions.tolist()):
        stamp = ChunkStamp(
            first_key=int(chunk["first_key"]),
            known_version=int(chunk["newest_version"]),
            arrival_version=arrival,
            inserted_s=0.0,
            acting_s=float(chunk["acting_s"]),
            transit_s=float(chunk["queued_s"]),
            actor=int(chunk["actor"]),
            num_lanes=int(chunk["num_lanes"]),
            num_steps=int(chunk["num_steps"]),
            num_final=int(chunk["num_final"]),
            incarnation=int(chunk["incarnation"]),
            sequence=int(chunk["sequence"]),
            lane_group=int(chunk["lane_group"]),
        )
        if stamp.first_key < stamp.end_key and stamp.end_key > ring.oldest_key:
            # The last row: of a chunk that is overwritten in part it is the one that is left.
            inserted_s = float(ring.inserted_s[(stamp.end_key - 1) % ring.capacity])
            store.stamps.add(stamp._replace(inserted_s=inserted_s))
    store.stamps.recount(ring.policy_version, ring.oldest_key)


def _come_back_older(
    history: History, store: ItemStore, admission: Admission, clocks: Dict[str, Callable[[], float]]
) -> None:
    """After a crash of the machine, or of a copy: clocks began anew, and actors may be ahead of what is known here."""
    ring, chunks = store.ring, history.chunks
    now_s, wall_s = clocks["now"](), clocks["wall"]()
    sizes = chunks["num_steps"].astype(np.int64) * chunks["num_lanes"] + chunks["num_final"]
    resident = (sizes > 0) & (chunks["first_key"] + sizes > ring.oldest_key)
    for chunk, size in zip(chunks[resident], sizes[resident].tolist()):
        begin = max(int(chunk["first_key"]), ring.oldest_key)
        for slots, _ in ring.segments(begin, int(chunk["first_key"]) + size - begin):
            ring.inserted_s[slots] = now_s - max(0.0, wall_s - float(chunk["wall_s"]))
            ring.actor[slots] = chunk["actor"]
    for record in admission.actors.values():
        for group in record.groups.values():
            group.may_jump = True
