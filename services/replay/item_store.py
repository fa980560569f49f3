"""The item store: ring, sum tree and step counters, changed together; no lock, no clock, no limiter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import numpy.typing as npt

from services.common.batch import Batch, DrawnKeys
from services.common.chunk import TERMINATED, TRUNCATED, VALID, Chunk
from services.common.schema import Schema
from services.replay.chunk_stamps import ChunkStamp, ChunkStamps
from services.replay.heard_versions import HeardVersions
from services.replay.items import ITEM, LOST, NO_STEP, OPEN, Timeline, build_windows
from services.replay.observation_moments import ObservationMoments
from services.replay.priorities import MAX_PRIORITY, MIN_PRIORITY, PriorityOutcome, priority_of
from services.replay.rate_limiter import Stock
from services.replay.ring import Allocate, Ring, in_memory
from services.replay.sampler import Sampler
from services.replay.sampler_settings import SamplerSettings
from services.replay.step_counters import StepCounters

Keys = npt.NDArray[np.int64]

HAS_FINAL, TAKEN_OUT = 8, 16  # further bits of the flags column: a final observation follows; the lane was quarantined


@dataclass(frozen=True)
class Intake:
    """What is known of a chunk beside its columns."""

    quarantined: npt.NDArray[np.bool_]  # [B], lanes that were taken out: no step of theirs is left
    quarantined_steps: int
    follows_gap: bool  # steps are missing between the lane group's last chunk and this one
    actor: int  # index of the actor's record
    now_s: float  # the table's clock
    transit_s: float = 0.0  # since the chunk's last step
    incarnation: int = 0  # of the actor


def _unrecorded(_first_key: int) -> None:
    """What a store in memory does to make a chunk durable."""


class ItemStore:
    """Turns chunks into rows and items, draws items, and keeps their priorities."""

    def __init__(
        self,
        *,
        capacity: int,
        schema: Schema,
        n_step: int,
        discount: float,
        sampling: SamplerSettings,
        history: Optional[HeardVersions] = None,
        allocate: Allocate = in_memory,
        guards: Optional[npt.NDArray[np.int64]] = None,
        with_moments: bool = False,
    ) -> None:
        if n_step < 1:
            raise ValueError(f"n_step is {n_step}; it must be at least 1")
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"discount is {discount}; it must lie in [0, 1]")
        self.n_step = n_step
        self.discount = discount
        self.ring = Ring(capacity, schema, allocate, guards)
        self.history = history or HeardVersions()
        self.sampler = Sampler(self.ring, sampling, self.history)
        self.stamps = ChunkStamps(capacity)
        self.counters = StepCounters()
        self.moments = ObservationMoments(self.ring) if with_moments else None

    @property
    def num_items(self) -> int:
        """Items that can be drawn."""
        return self.num_resident_items - self.sampler.num_exhausted - self.sampler.num_expired

    @property
    def num_resident_items(self) -> int:
        """Items in the ring, with those that were drawn max_times_sampled times, or have expired."""
        return self.counters.resident - self.counters.unripe

    def stock(self) -> Stock:
        """What there is to draw from."""
        return Stock(
            num_items=self.num_items,
            num_resident=self.num_resident_items,
            num_expired=self.sampler.num_expired,
            num_draws=self.sampler.draws_left,
            is_full=self.ring.num_rows == self.ring.capacity,
        )

    def insert(
        self, chunk: Chunk, lane_open_keys: Keys, intake: Intake, record: Callable[[int], None] = _unrecorded
    ) -> Keys:
        """Write the rows of a chunk from which quarantined lanes were taken, and close the windows it completes.

        Args:
            chunk: T >= 1 steps of B lanes; at most `capacity` rows with the final observations.
            lane_open_keys: <int64>[n_step, B], of the lane group, as the last call returned it.
            intake: what else there is to know about the chunk.
            record: called with the first key when all is written and before it counts: what makes the chunk durable.

        Returns:
            The group's new `lane_open_keys`.
        """
        num_rows, num_final, num_valid = chunk.flags.size, len(chunk.final), chunk.num_valid
        first_key = self.ring.reserve(num_rows + num_final)
        evicted = self._evict(first_key, num_rows + num_final)
        self._write(first_key, chunk, intake)
        self.counters.acknowledged += num_valid + intake.quarantined_steps
        self.counters.quarantined += intake.quarantined_steps
        self.counters.resident += num_valid
        self.counters.unripe += num_valid
        timeline = self._timeline(first_key, chunk, lane_open_keys, intake)
        open_keys = self._settle(timeline, evicted)
        self._stamp(first_key, chunk, intake)
        record(first_key)
        self.ring.commit()
        if self.moments is not None:
            self.moments.add(chunk)
        return open_keys

    def _stamp(self, first_key: int, chunk: Chunk, intake: Intake) -> None:
        stamp = ChunkStamp(
            first_key=first_key,
            known_version=chunk.newest_version,
            arrival_version=self.history.newest_version,
            inserted_s=intake.now_s,
            acting_s=chunk.acting_seconds,
            transit_s=intake.transit_s,
            actor=intake.actor,
            num_lanes=chunk.num_lanes,
            num_steps=chunk.num_steps,
            num_final=len(chunk.final),
            incarnation=intake.incarnation,
            sequence=chunk.sequence,
            lane_group=chunk.lane_group,
        )
        if stamp.end_key > first_key:
            self.stamps.add(stamp, int(chunk.policy_version.min()))

    def close(self, lane_open_keys: Keys) -> None:
        """Close the open windows of a lane group with what is known: nothing will follow."""
        past = self._past(lane_open_keys, np.ones(lane_open_keys.shape[1], np.bool_))
        self._settle(past, np.zeros(0, np.int64))

    def _evict(self, first_key: int, num_rows: int) -> npt.NDArray[np.int64]:
        """Account for the rows that are about to be overwritten; returns the slots that held items."""
        counters = self.counters
        gone: List[npt.NDArray[np.int64]] = []
        for slots, _ in self.ring.segments(first_key, num_rows):
            status = self.ring.status[slots]
            items = np.flatnonzero(status == ITEM) + slots.start
            unripe = int(np.count_nonzero(status == OPEN))
            counters.unripe -= unripe
            counters.unripe_evicted += unripe
            counters.resident -= unripe + len(items)
            counters.overwritten += unripe + len(items)
            self.ring.status[slots] = NO_STEP
            self.ring.priority[slots] = 0.0
            self.sampler.forget(items)
            self.ring.times_sampled[slots] = 0
            gone.append(items)
        return gone[0] if len(gone) == 1 else np.concatenate([np.zeros(0, np.int64), *gone])

    def _write(self, first_key: int, chunk: Chunk, intake: Intake) -> None:
        """Write the columns that come from the actor: T x B steps, then the final observations."""
        num_lanes, num_rows, num_final = chunk.num_lanes, chunk.flags.size, len(chunk.final)
        steps = {
            f"observation.{name}": column.reshape(num_rows, *column.shape[2:])
            for name, column in chunk.observation.items()
        }
        steps["action"] = chunk.action.reshape(num_rows, *chunk.action.shape[2:])
        steps["reward"] = chunk.reward.reshape(-1)
        steps["flags"] = _stored_flags(chunk, intake.quarantined)
        steps["policy_version"] = np.repeat(chunk.policy_version, num_lanes)
        steps["q_taken"] = chunk.q_taken.reshape(-1)
        steps["value"] = chunk.value.reshape(-1)
        self.ring.write(first_key, steps)
        ring = self.ring
        versions = chunk.policy_version[chunk.final.step // max(1, num_lanes)]
        for slots, index in ring.segments(first_key + num_rows, num_final):
            for name, column in chunk.final.observation.items():
                ring.observation[name][slots] = column[index]
            ring.action[slots] = 0
            ring.reward[slots] = 0.0
            ring.flags[slots] = 0
            ring.policy_version[slots] = versions[index]
            ring.q_taken[slots] = np.nan
            ring.value[slots] = chunk.final.value[index]
        for slots, _ in ring.segments(first_key, num_rows + num_final):
            ring.inserted_s[slots] = intake.now_s
            ring.actor[slots] = intake.actor

    def _timeline(self, first_key: int, chunk: Chunk, lane_open_keys: Keys, intake: Intake) -> Timeline:
        """The rows whose windows are open, and behind them those of the chunk at `first_key`."""
        past = self._past(lane_open_keys, intake.quarantined | intake.follows_gap)
        num_past, num_rows = past.key.shape[0], chunk.flags.size
        shape = (num_past + chunk.num_steps, chunk.num_lanes)
        behind = first_key + num_rows
        exists = np.empty(shape, np.bool_)
        exists[:num_past] = past.exists
        exists[num_past:] = ~intake.quarantined
        severed = np.zeros(shape, np.bool_)
        severed[:num_past] = past.severed
        final_key = np.full(shape, -1, np.int64)
        final_key.reshape(-1)[past.key.size + chunk.final.step] = np.arange(behind, behind + len(chunk.final))
        return Timeline(
            key=np.concatenate((past.key, np.arange(first_key, behind).reshape(chunk.flags.shape))),
            exists=exists,
            reward=np.concatenate((past.reward, chunk.reward)),
            flags=np.concatenate((past.flags, chunk.flags)),
            final_key=final_key,
            severed=severed,
        )

    def _past(self, lane_open_keys: Keys, severed: npt.NDArray[np.bool_]) -> Timeline:
        """The timeline of the rows whose windows are open, without those that the ring has overwritten."""
        exists = lane_open_keys >= self.ring.oldest_key
        slots = self.ring.slots(np.where(exists, lane_open_keys, 0))
        last = np.zeros(exists.shape, np.bool_)
        last[-1] = severed
        return Timeline(
            key=np.where(exists, lane_open_keys, -1),
            exists=exists,
            reward=self.ring.reward[slots],
            flags=self.ring.flags[slots],
            final_key=np.full(exists.shape, -1, np.int64),
            severed=last,
        )

    def _settle(self, timeline: Timeline, evicted: npt.NDArray[np.int64]) -> Keys:
        """Make items of the windows that closed; returns the keys of those that are open, <int64>[n_step, B].

        Args:
            timeline: the rows of `_past`, [n_step, B], and behind them a chunk's rows, whose keys follow each other.
            evicted: slots <int64>[N] of the items that the chunk's rows have overwritten.
        """
        ring, counters = self.ring, self.counters
        windows = build_windows(timeline, self.n_step, self.discount)
        item = np.flatnonzero(windows.outcome == ITEM)
        slots = ring.slots(np.take(timeline.key, item))
        n_step_return, discount = np.take(windows.n_step_return, item), np.take(windows.discount, item)
        bootstrap_key = np.take(windows.bootstrap_key, item)
        priority = self._first_priority(slots, n_step_return, discount, bootstrap_key)
        num_past = timeline.key[: self.n_step].size
        num_closed = int(np.searchsorted(item, num_past))  # of those that were open
        closed = slots[:num_closed]
        ring.n_step_return[closed] = n_step_return[:num_closed]
        ring.discount[closed] = discount[:num_closed]
        ring.bootstrap_key[closed] = bootstrap_key[:num_closed]
        ring.priority[closed] = priority[:num_closed]
        past = timeline.exists[: self.n_step]
        ring.status[ring.slots(timeline.key[: self.n_step][past])] = windows.outcome[: self.n_step][past]
        if timeline.key.size > num_past:
            priorities = np.zeros(timeline.key.size - num_past, np.float64)
            priorities[item[num_closed:] - num_past] = priority[num_closed:]
            # In one piece, for what is written where the outcome is not ITEM holds no sense, and nobody reads it.
            fresh: Dict[str, npt.NDArray[Any]] = {
                "status": windows.outcome.reshape(-1)[num_past:],
                "n_step_return": windows.n_step_return.reshape(-1)[num_past:],
                "discount": windows.discount.reshape(-1)[num_past:],
                "bootstrap_key": windows.bootstrap_key.reshape(-1)[num_past:],
                "priority": priorities,
            }
            ring.write(int(timeline.key[self.n_step, 0]), fresh)
        # A slot that holds an item again gets its leaf as such.
        self.sampler.admit(evicted[ring.status[evicted] != ITEM], slots)
        num_lost = int(np.count_nonzero(windows.outcome == LOST))
        counters.items += len(slots)
        counters.lost_tail += num_lost
        counters.unripe -= len(slots) + num_lost
        counters.resident -= num_lost
        return np.where(windows.outcome == OPEN, timeline.key, -1)[-self.n_step :]

    def _first_priority(
        self,
        slots: npt.NDArray[np.int64],
        n_step_return: npt.NDArray[np.float64],
        discount: npt.NDArray[np.float64],
        bootstrap_key: Keys,
    ) -> npt.NDArray[np.float64]:
        """First p from the actor's own critics, |R + discount * value - q_taken|; without them the largest resident."""
        value = np.take(self.ring.value, self.ring.slots(bootstrap_key)).astype(np.float64)
        # A terminated end takes no value, and 0 * NaN is NaN.
        future = np.where(discount > 0.0, discount * value, 0.0)
        delta = n_step_return + future - self.ring.q_taken[slots]
        known = np.isfinite(delta)
        if known.all():
            return priority_of(delta)[0]
        p, _ = priority_of(np.where(known, delta, 0.0))
        p[~known] = self.sampler.largest_priority()
        return p

    def adopt_items(self) -> None:
        """Draw from now on what the ring's columns say is an item; one without a sound priority gets its first."""
        ring = self.ring
        slots = np.flatnonzero(ring.status == ITEM)
        sound = (ring.priority[slots] >= MIN_PRIORITY) & (ring.priority[slots] <= MAX_PRIORITY)
        fresh = slots[~sound]
        ring.priority[fresh] = 0.0
        ring.priority[fresh] = self._first_priority(
            fresh,
            ring.n_step_return[fresh].astype(np.float64),
            ring.discount[fresh].astype(np.float64),
            ring.bootstrap_key[fresh],
        )
        self.sampler.rebuild()
        if self.moments is not None:
            self.moments.recount()

    def note_version(self, version: int, updates: int) -> int:
        """Learn of the chief's newest version and updates; returns how many items have expired by it."""
        self.sampler.note_version(version, updates)
        oldest = self.sampler.oldest_allowed()
        if not oldest > self.sampler.oldest_version:
            return 0
        keys = self.stamps.take_older(oldest, self.ring.policy_version, self.ring.oldest_key)
        return self.sampler.expire(self.ring.slots(keys), oldest)

    def begin_history(self) -> None:
        """Forget all versions of the chief; what has expired by them is there again."""
        self.sampler.begin_history()
        self.stamps.recount(self.ring.policy_version, self.ring.oldest_key)

    def draw(self, rng: np.random.Generator, num_batches: int, batch_size: int) -> DrawnKeys:
        """Draw num_batches x batch_size items by the sampler, batch after batch.

        Raises:
            ValueError: there is no item, or the items do not stand so many draws.
        """
        drawn = self.sampler.draw(rng, num_batches, batch_size)
        return DrawnKeys(
            keys=self.ring.keys(drawn.slots),
            probability=drawn.probability,
            priority=drawn.priority,
            times_sampled=drawn.times_sampled,
            bootstrap_keys=self.ring.bootstrap_key[drawn.slots],
        )

    def copy_rows(self, drawn: DrawnKeys) -> Batch:
        """The rows of items that were drawn, as one batch."""
        ring = self.ring
        slots, next_slots = ring.slots(drawn.keys), ring.slots(drawn.bootstrap_keys)
        return Batch(
            keys=drawn.keys,
            probability=drawn.probability,
            priority=drawn.priority,
            times_sampled=drawn.times_sampled,
            observation={name: np.take(column, slots, axis=0) for name, column in ring.observation.items()},
            action=np.take(ring.action, slots, axis=0),
            n_step_return=ring.n_step_return[slots],
            discount=ring.discount[slots],
            next_observation={name: np.take(column, next_slots, axis=0) for name, column in ring.observation.items()},
            policy_version=ring.policy_version[slots],
            num_items=self.num_items,
        )

    def update_priorities(self, keys: Keys, td_error: npt.NDArray[np.float64]) -> PriorityOutcome:
        """Apply a batch of updates <int64>[N], <float64>[N] whole, with an answer per item.

        Raises:
            ValueError: the two differ in shape; nothing was changed.
        """
        return self.sampler.update(keys, td_error)

    def check_valid(self) -> Optional[str]:
        """What is wrong with the store, or None. Looks at every row."""
        return self.ring.check_valid() or self.check_rows() or self.sampler.check_valid()

    def check_rows(self) -> Optional[str]:
        """What is wrong with the counters, the items or the chunks' stamps, or None."""
        ring, counters = self.ring, self.counters
        slots = np.arange(ring.capacity)
        is_item, is_open = ring.status == ITEM, ring.status == OPEN
        if int(is_open.sum()) != counters.unripe or int((is_item | is_open).sum()) != counters.resident:
            return f"the ring holds {is_item.sum()} items and {is_open.sum()} open windows, not what {counters} says"
        bootstrap_key = ring.bootstrap_key[is_item]
        if (bootstrap_key <= ring.keys(slots)[is_item]).any():
            return "an item's bootstrap row is not newer than the item"
        if ((bootstrap_key < ring.oldest_key) | (bootstrap_key >= ring.reserved)).any():
            return "an item's bootstrap row is not in the ring"
        return counters.check_valid() or self.stamps.check_valid()


def _stored_flags(chunk: Chunk, taken_out: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """The flags column <uint8>[T * B] of a chunk: enough to make its items again from the ring alone."""
    flags = chunk.flags & np.uint8(VALID | TERMINATED | TRUNCATED)
    if taken_out.any():
        flags[:, taken_out] |= TAKEN_OUT
    flat = flags.reshape(-1)
    flat[chunk.final.step] |= HAS_FINAL
    return flat
