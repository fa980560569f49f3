"""The table: admission, rate limiter and item store behind one lock and one condition, without threads of its own."""

from __future__ import annotations

import math
import secrets
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable, Dict, List, Optional

import numpy as np
import numpy.typing as npt

from services.common.chunk import Chunk
from services.common.errors import UserError
from services.common.moments import Moments
from services.common.schema import Schema
from services.common.waits import Waits
from services.replay.admission import ActorRecord, Admission, InsertStatus, TooManyPeers
from services.replay.heard_versions import HeardVersions
from services.replay.inspector import Inspector
from services.replay.item_store import Intake, ItemStore
from services.replay.journal import Journal, open_journal
from services.replay.lives import Lives
from services.replay.priorities import PriorityOutcome
from services.replay.quarantine import describe_lanes, non_finite_lanes, without_lanes
from services.replay.rate_limiter import make_limiter
from services.replay.refusal import TOO_MANY_PEERS, Refusal, why_refused
from services.replay.ring import in_memory
from services.replay.ring_folder import RingFolder
from services.replay.snapshot import Copied, Snapshots
from services.replay.table_info import (
    InsertResult,
    SampleResult,
    SampleStatus,
    TableInfo,
    TableSettings,
)
from services.replay.table_view import ChunkCounts, PrioritySpread, check_windows, describe_table, spread_priorities
from services.replay.waiting import INSERT_LIMITER, SAMPLE_LIMITER, SAMPLE_MIN_SIZE, WaitingRoom

__all__ = ["InsertStatus", "SampleStatus", "Table", "TableSettings", "TooManyPeers"]

RETRY_AFTER_S = 0.5  # asked of a caller who was turned away without waiting


class Table:
    """Experience of one run: chunks in, batches of n-step items out. Every method may be called from any thread."""

    def __init__(
        self,
        settings: TableSettings,
        schema: Schema,
        *,
        clock: Callable[[], float],
        folder: Optional[RingFolder] = None,
        wall_clock: Callable[[], float] = time.time,
        waits: Optional[Waits] = None,
    ) -> None:
        """Make a table: an empty one, or the one that `folder` holds.

        Args:
            settings: see TableSettings.
            schema: what every chunk must look like (`Chunk.check` is the caller's to call).
            clock: monotonic seconds.
            folder: where the ring lies, opened; None: in memory.
            wall_clock: seconds since 1970, for ages that outlive the machine's monotonic clock.
            waits: of the process, with the reasons of `waiting`.

        Raises:
            ValueError: a setting is out of range, or two of them could deadlock; the message has the arithmetic.
            UserError: the folder's ring has another capacity, or is damaged.
        """
        settings.check()
        if folder is not None:
            folder.check_fits(settings.capacity, schema)
        self.settings = settings
        self.schema = schema
        self.folder = folder
        self._id_in_memory = secrets.randbits(63) | 1
        self._history = HeardVersions()
        self.store = ItemStore(
            capacity=settings.capacity,
            schema=schema,
            n_step=settings.n_step,
            discount=settings.discount,
            sampling=settings.sampling,
            history=self._history,
            allocate=folder.allocate if folder else in_memory,
            guards=folder.guards if folder else None,
            with_moments=settings.with_moments,
        )
        self._limiter = make_limiter(settings)
        self._admission = Admission(settings.n_step, settings.max_peers)
        self._journal = Journal()
        self._rng = np.random.default_rng(settings.seed)
        self._clock = clock
        self._lock = threading.RLock()
        self._waiting = WaitingRoom(self._lock, clock, waits)
        self._chief = 0  # its incarnation
        self._counts = ChunkCounts()
        self._spread_rng = np.random.default_rng(settings.seed)  # of its own: who looks changes no draw
        self._snapshots: Optional[Snapshots] = None
        if folder is not None:
            clocks = {"now": clock, "wall": wall_clock}
            journal = open_journal(folder, self.store, self._admission, self._limiter, clocks)
            self._journal = journal
            self._snapshots = Snapshots(folder, self.store, journal.hold, self._lock)
        self.inspector = Inspector(self.store, self._admission, self._history, self._lock, clock)
        self._lives = Lives(self.store, self._admission, self._journal, clock, settings.max_actor_silence_s)

    @property
    def table_id(self) -> int:
        """Names what keys stand for: under one id no key names two rows."""
        return self.folder.format.table_id if self.folder else self._id_in_memory

    @property
    def ring_id(self) -> int:
        """Names the ring in whose counters all lives of the replay add up."""
        return self.folder.format.ring_id if self.folder else self._id_in_memory

    @property
    def damage(self) -> Dict[str, int]:
        """What was found damaged when the ring came back: its chunks, and segments of its log."""
        return {"ring": self._journal.damaged_chunks, "log": self._journal.damaged_segments}

    # Inserting

    def insert(self, actor: str, incarnation: int, chunk: Chunk, *, max_wait_s: float) -> InsertResult:
        """Apply one chunk, exactly once however often it is sent.

        Args:
            actor: unique name of the actor.
            incarnation: random id of its life.
            chunk: columns that fit the schema.
            max_wait_s: how long the rate limiter may hold the call before it answers BLOCKED.

        Raises:
            TooManyPeers: as many actors as are let in have introduced themselves, and this is another.
        """
        refusal = why_refused(chunk, self.settings, self.newest_version)
        lanes = non_finite_lanes(chunk, self.settings.n_step) if chunk.num_steps > 0 else np.zeros(0, np.bool_)
        clean = without_lanes(chunk, lanes) if chunk.num_steps > 0 else chunk
        came_s = self._clock()
        with self._lock:
            turned_away = self._turn_away(actor, incarnation, chunk, refusal)
            if turned_away is not None:
                return turned_away
            self._lives.enter(actor, incarnation)
            self._expire()
            record = self._admission.actors[actor]
            record.calls_in_flight += 1
            try:
                blocked = self._wait_to_insert(actor, clean.num_valid, max_wait_s)
            finally:
                record.calls_in_flight -= 1
                record.last_seen_s = self._clock()
            if blocked is not None:
                return replace(blocked, next_sequence=chunk.sequence)
            # The lock was released while it waited: a resend or a newer life may have come first.
            turned_away = self._turn_away(actor, incarnation, chunk, refusal)
            if turned_away is not None:
                return turned_away
            group = self._admission.group_of(record, chunk)
            sick = describe_lanes(self.store.ring, record, group, chunk, lanes) if lanes.any() else ()
            chunk = replace(chunk, queued_seconds=chunk.queued_seconds + self._clock() - came_s)
            self._apply(record, chunk, clean, lanes)
            self._waiting.wake()
            return InsertResult(
                InsertStatus.APPLIED,
                "",
                chunk.sequence + 1,
                quarantined_lanes=np.flatnonzero(lanes).astype(np.int64),
                sick_lanes=sick,
            )

    def _turn_away(
        self, actor: str, incarnation: int, chunk: Chunk, refusal: Optional[Refusal]
    ) -> Optional[InsertResult]:
        """The answer to a chunk that must not be applied now; None: it may be."""
        stranger = self._admission.why_no_peer(actor)
        if stranger:
            self._counts.refused_chunks[TOO_MANY_PEERS] += 1
            raise TooManyPeers(stranger)
        verdict = self._admission.judge(actor, incarnation, chunk)
        if verdict.status is not InsertStatus.APPLIED:
            return InsertResult(verdict.status, verdict.reason, verdict.next_sequence)
        if refusal is not None:
            self._counts.refused_chunks[refusal.word] += 1
            return InsertResult(InsertStatus.REFUSED, refusal.sentence, verdict.next_sequence)
        full = self._journal.why_full()
        if full:
            self._waiting.turn_away(actor, "Insert", full, RETRY_AFTER_S)
            return InsertResult(InsertStatus.BLOCKED, full, verdict.next_sequence, RETRY_AFTER_S)
        return None

    def _wait_to_insert(self, actor: str, num_steps: int, max_wait_s: float) -> Optional[InsertResult]:
        """Wait for the limiter; None: go on."""

        def reason() -> str:
            if self._limiter.can_insert(num_steps, self.store.stock()):
                return ""
            return self._limiter.why_no_insert(num_steps)

        if num_steps == 0:
            return None
        began_s = self._clock()
        room = self.settings.max_waiting_inserts
        why = self._waiting.wait(actor, "Insert", reason, max_wait_s, room, lambda: INSERT_LIMITER)
        if not why:
            return None
        waited = self._clock() - began_s > RETRY_AFTER_S
        return InsertResult(InsertStatus.BLOCKED, why, 0, 0.0 if waited else RETRY_AFTER_S)

    def _apply(self, record: ActorRecord, chunk: Chunk, clean: Chunk, lanes: npt.NDArray[np.bool_]) -> None:
        group = self._admission.group_of(record, chunk)
        follows_gap = chunk.first_step != group.next_step
        stock_before = self.store.stock()
        num_valid = clean.num_valid
        quarantined_steps = chunk.num_valid - num_valid

        def write_down(first_key: int) -> None:
            self._limiter.insert(num_valid, stock_before, self.store.stock())
            self._journal.inserted(record, chunk, first_key, quarantined_steps)

        if chunk.num_steps > 0:
            intake = Intake(
                quarantined=lanes,
                quarantined_steps=quarantined_steps,
                follows_gap=follows_gap,
                actor=record.index,
                now_s=self._clock(),
                transit_s=chunk.queued_seconds,
                incarnation=record.incarnation,
            )
            group.open_keys = self.store.insert(clean, group.open_keys, intake, write_down)
        else:
            if follows_gap:
                self._lives.close_group(group)
            write_down(self.store.ring.reserved)
        self._admission.acknowledge(record, group, chunk)
        self._counts.quarantined_lanes += int(np.count_nonzero(lanes))
        self._counts.inserted_bytes += sum(column.nbytes for _, column in chunk.columns())

    # Sampling

    def sample(
        self,
        num_batches: int,
        batch_size: int,
        *,
        max_wait_s: float,
        waiter: str = "learner",
        with_rows: bool = True,
    ) -> SampleResult:
        """Draw `num_batches` batches of `batch_size` items at once, or say what it waits for.

        Args:
            num_batches: K, 1 to max_num_batches.
            batch_size: N, 1 to max_batch_size.
            max_wait_s: how long the rate limiter may hold the call before it answers WAITING.
            waiter: name of the caller, for `info`.
            with_rows: whether the rows are copied out; False: the caller gathers them from the mapped ring.

        Raises:
            ValueError: K or N are out of range.
        """
        most, largest = self.settings.max_num_batches, self.settings.max_batch_size
        if not (1 <= num_batches <= most and 1 <= batch_size <= largest):
            raise ValueError(
                f"{num_batches} batches of {batch_size} items were asked for; this table gives 1 to {most} batches of "
                f"1 to {largest} items"
            )
        num_drawn = num_batches * batch_size

        def reason() -> str:
            stock = self.store.stock()
            return "" if self._limiter.can_sample(num_drawn, stock) else self._limiter.why_no_sample(num_drawn, stock)

        def word() -> str:
            return SAMPLE_MIN_SIZE if self._limiter.is_too_empty(num_drawn, self.store.stock()) else SAMPLE_LIMITER

        with self._lock:
            why = self._waiting.wait(waiter, "Sample", reason, max_wait_s, word=word)
            total, num_items = self.store.sampler.priority_mass, self.store.num_items
            mass_log2 = math.log2(total) if total > 0.0 else -math.inf
            if why:
                return SampleResult(SampleStatus.WAITING, why, batch_size, mass_log2, num_items)
            drawn = self.store.draw(self._rng, num_batches, batch_size)
            batch = self.store.copy_rows(drawn) if with_rows else None
            stamps = self.store.stamps.look_up(
                drawn.keys, self._clock(), self._history.newest_version, self._admission.name_table()
            )
            self._limiter.sample(num_drawn)
            self._waiting.wake()
        return SampleResult(SampleStatus.OK, "", batch_size, mass_log2, num_items, drawn, batch, stamps)

    def update_priorities(self, keys: npt.NDArray[np.int64], td_error: npt.NDArray[np.float64]) -> PriorityOutcome:
        """Set |td_error| + 1e-6, which p is made of, for `keys` <int64>[N]; each gets an answer, none can do harm.

        Raises:
            ValueError: the two differ in shape; nothing was changed.
        """
        with self._lock:
            outcome = self.store.update_priorities(keys, td_error)
            self._counts.clamped_priorities += outcome.clamped
            for name in self._counts.updates:
                self._counts.updates[name] += getattr(outcome, name)
            return outcome

    # Actors and the chief

    def hear(self, actor: str, incarnation: int, waiting_for: str) -> str:
        """Note what an actor that inserts nothing waits for; returns why it must stop, or an empty string."""
        with self._lock:
            self._admission.note_wait(actor, incarnation, waiting_for, self._clock())
            return self._admission.why_fenced(actor, incarnation)

    def close_actor(self, actor: str, incarnation: int) -> None:
        """Close the open windows of this life of an actor with what is known; harmless if it is not the living one."""
        with self._lock:
            if self._lives.leave(actor, incarnation):
                self._waiting.wake()

    def expire_actors(self) -> List[str]:
        """Close the open windows of actors that were silent for too long; returns their names."""
        with self._lock:
            return self._expire()

    def _expire(self) -> List[str]:
        closed = self._lives.expire()
        if closed:
            self._waiting.wake()
        return closed

    def set_newest(self, version: int, updates: int, *, chief: int = 0) -> None:
        """Note the chief's newest version and its updates; an older version than known changes nothing.

        Args:
            version: newest that was published.
            updates: that the chief has done.
            chief: the incarnation of the chief if it calls itself. No life of it uses a version again, so that a new
                one with an older version has lost its run: what was heard of versions says nothing any more.

        Raises:
            RingBroken: it cannot be written down; the process must end.
        """
        with self._lock:
            if chief and chief != self._chief:
                self._chief = chief
                if 0 < version < self._history.newest_version:
                    self.store.begin_history()
            if self.store.note_version(version, updates):
                self._waiting.wake()  # the table may have too little left to hold inserts back for
            self._journal.noted_version()

    @property
    def newest_version(self) -> int:
        """The chief's newest version, as far as it was told."""
        return self._history.newest_version

    def interrupt(self, reason: str = "the replay is stopping") -> None:
        """Wake every waiting call with `reason`; from now on nobody waits."""
        with self._lock:
            self._waiting.interrupt(reason)

    # Lasting

    def note_state(self) -> None:
        """Write down the counts that change without an insert; a ring in memory has nowhere to."""
        with self._lock:
            self._journal.note_state()

    def flush(self) -> int:
        """Bring all that is acknowledged to the disk, as far as there is one; returns how many steps the ring holds."""
        with self._lock:
            self._journal.note_state()
            steps = self.store.counters.resident
        if self.folder is not None:
            self.folder.flush()
        return steps

    def snapshot(self, target: Path) -> Copied:
        """Copy the ring to the new folder `target` while traffic goes on.

        Raises:
            UserError: see `Snapshots.take`; or the ring is in memory.
        """
        if self._snapshots is None:
            raise UserError("this replay keeps its ring in memory and takes no snapshots: set replay.data_dir")
        return self._snapshots.take(target)

    # Looking

    def info(self) -> TableInfo:
        """Sizes, counters, the limiter's state, who waits for what, and the actors."""
        with self._lock:
            self._expire()
            return describe_table(
                self.settings,
                self.store,
                self._limiter,
                self._admission,
                self._waiting,
                self._history,
                self._counts,
                self._clock(),
                log_bytes=self.folder.log.num_bytes if self.folder else None,
                snapshots=self._snapshots.num_taken if self._snapshots else 0,
            )

    def spread_priorities(self) -> Optional[PrioritySpread]:
        """How unequal the items are, estimated within a millisecond; None without items."""
        with self._lock:
            return spread_priorities(self.store, self._spread_rng)

    def moments(self) -> Dict[str, Moments]:
        """Moments of observations by tensor; empty where they are not kept."""
        with self._lock:
            kept = self.store.moments
            return dict(kept.by_tensor) if kept is not None else {}

    def check_valid(self) -> Optional[str]:
        """What is wrong with the table, or None. Looks at every row."""
        with self._lock:
            fault = self.store.check_valid() or self._limiter.check_valid()
            if fault is not None:
                return fault
            return check_windows(self.store, self._admission)
