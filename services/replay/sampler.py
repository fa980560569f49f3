"""The sampler: which items are drawn; it derives the leaves from the ring's columns, and keeps those up to date."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional

import numpy as np
import numpy.typing as npt

from services.replay.freshness import MIN_LEAF, Freshness
from services.replay.heard_versions import HeardVersions
from services.replay.item_queue import ItemQueue
from services.replay.items import ITEM, StepOutcome
from services.replay.priorities import (
    LargestPriority,
    PriorityOutcome,
    UpdateOutcome,
    judge_updates,
    leaf_of,
    priority_of,
    stable_order,
)
from services.replay.priority_rule import make_rule
from services.replay.ring import Ring
from services.replay.sampler_settings import SamplerSettings
from services.replay.sum_tree import SumTree

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_TIMES = 2**31 - 1  # draws of an item that are counted: what the ring's column holds


@dataclass(frozen=True)
class Drawn:
    """Slots that were drawn, batch after batch, M in all."""

    slots: Ints  # [M]
    probability: Floats  # [M], of one draw, by the priority part alone
    priority: Floats  # [M], p at the draw
    times_sampled: Ints  # [M], with this draw


class Sampler:
    """Keeps `priority` and `times_sampled` of the ring, and the trees or the queue that draws are made from.

    An item's leaf is p^alpha * 2^(updates / half life - shift), by its rule's p. With freshness a second tree holds
    p^alpha, so that the importance weights correct the priority part alone and its sum is exact at any time.
    """

    def __init__(self, ring: Ring, settings: SamplerSettings, history: HeardVersions) -> None:
        self.settings = settings
        self._ring = ring
        self._history = history
        self._rule = make_rule(settings.priority_rule, settings.td_weight)
        self._exponent = settings.priority_exponent if settings.selector == "prioritized" else 0.0
        self._largest = LargestPriority(ring.priority)
        half_life = settings.freshness_half_life_updates
        self._freshness = Freshness(half_life) if half_life else None
        self.tree = SumTree(ring.capacity)
        self._part_tree = SumTree(ring.capacity) if self._freshness else self.tree
        self._updates = np.zeros(ring.capacity if self._freshness else 0, np.float64)
        self._queue = ItemQueue(ring.capacity, self._is_live) if settings.selector == "fifo" else None
        self._limit = settings.max_times_sampled
        self.num_exhausted = 0  # resident items that were drawn max_times_sampled times
        self.exhausted_total = 0  # ever
        self.num_rebases = 0
        self._draws_left = 0
        self._chief_updates = history.newest_updates
        self.oldest_version = 0  # items of older versions have expired: their leaves stay 0
        self.num_expired = 0  # resident items, drawn up or not
        self.expired_total = 0  # since this sampler was made

    @property
    def draws_left(self) -> float:
        """How many more draws the items stand; infinite without max_times_sampled."""
        return self._draws_left if self._limit else np.inf

    @property
    def priority_mass(self) -> float:
        """Sum of p^alpha over the items that can be drawn."""
        return self._part_tree.total

    def largest_priority(self) -> float:
        """The largest resident |TD error| + EPSILON, 1 without items: the first of an item without critics."""
        return self._largest.value()

    # Items come and go

    def forget(self, slots: Ints) -> None:
        """Take note that the ring reuses the rows of items at `slots` <int64>[N]; their columns still hold.

        The leaves stay until `admit`, which must follow.
        """
        self._largest.touch(slots)
        if self.oldest_version:
            expired = self._has_expired(slots)
            self.num_expired -= int(np.count_nonzero(expired))
            slots = slots[~expired]
        if self._limit:
            left = np.maximum(0, self._limit - self._ring.times_sampled[slots])
            self._draws_left -= int(left.sum())
            self.num_exhausted -= int(np.count_nonzero(left == 0))

    def _has_expired(self, slots: Ints) -> npt.NDArray[np.bool_]:
        if not self.oldest_version:
            return np.zeros(len(slots), np.bool_)
        expired: npt.NDArray[np.bool_] = self._ring.policy_version[slots] < self.oldest_version
        return expired

    def admit(self, evicted: Ints, slots: Ints) -> None:
        """Drop the leaves of `evicted` <int64>[N] and make the fresh items at `slots` <int64>[M] drawable."""
        self._largest.touch(slots)
        num_expired = int(np.count_nonzero(self._has_expired(slots))) if self.oldest_version else 0
        self.num_expired += num_expired
        self.expired_total += num_expired
        self._draws_left += self._limit * (len(slots) - num_expired)
        if self._freshness and len(slots) > 0:
            updates = self._history.updates_of(self._ring.policy_version[slots])
            self._updates[slots] = updates
            doublings = self._freshness.make_room(float(updates.max()))
            if doublings:
                self.tree.scale(-doublings, MIN_LEAF)
                self.num_rebases += 1
        if self._queue is not None:
            self._queue.push(self._ring.keys(slots))
        # Rows that left come first: of a slot given twice the last counts.
        self._set(np.concatenate((evicted, slots)), np.concatenate((np.zeros(len(evicted)), self._part(slots))))

    def note_version(self, version: int, updates: int) -> None:
        """Learn that `version` is the chief's newest, after `updates` updates; an older one changes nothing."""
        newest = self._history.newest_version
        if version >= newest:
            self._chief_updates = updates if version > newest else max(updates, self._chief_updates)
        if self._history.note(version, updates) and self._freshness:
            np.minimum(self._updates, float(updates), out=self._updates)
            self._derive()

    def begin_history(self) -> None:
        """Forget all versions: the chief's begin anew, and none that was heard of says how old an item is."""
        self._history.restart()
        self._chief_updates = self.oldest_version = 0
        self.rebuild()

    def oldest_allowed(self) -> int:
        """The oldest version that the bound allows now; it never falls while a history of versions lasts."""
        bound = self.settings.max_lag_updates
        if bound is None:
            return 0
        return max(self.oldest_version, self._history.oldest_of(self._chief_updates - bound))

    def expire(self, slots: Ints, oldest_version: int) -> int:
        """Give up items of versions below `oldest_version` for good.

        Args:
            slots: <int64>[N], each once: all rows of such versions that were not given up before, and perhaps others.
            oldest_version: as `oldest_allowed` says.

        Returns:
            How many items that were.
        """
        ring = self._ring
        versions = ring.policy_version[slots]
        news = (versions >= self.oldest_version) & (versions < oldest_version) & (ring.status[slots] == ITEM)
        gone = slots[news]
        self.oldest_version = oldest_version
        if self._limit:
            left = np.maximum(0, self._limit - ring.times_sampled[gone])
            self._draws_left -= int(left.sum())
            self.num_exhausted -= int(np.count_nonzero(left == 0))
        self.num_expired += len(gone)
        self.expired_total += len(gone)
        self._set(gone, np.zeros(len(gone)))
        return len(gone)

    # Draws

    def draw(self, rng: np.random.Generator, num_batches: int, batch_size: int) -> Drawn:
        """Choose items and count the draws: with replacement, stratified each batch, or the oldest first.

        An item that reaches max_times_sampled leaves at once. The probability is the one before the first draw.

        Raises:
            ValueError: there is no item, or the items do not stand so many draws.
        """
        num_draws = num_batches * batch_size
        if self._limit and num_draws > self._draws_left:
            raise ValueError(f"{num_draws} draws were asked for; the items stand {self._draws_left} more")
        column, total = self._ring.times_sampled, self._part_tree.total
        if not self._limit:
            slots = self.tree.draw_stratified(rng, num_batches, batch_size).reshape(-1)
            before = column[slots].astype(np.int64)
            times = np.minimum(before + occurrence(slots), MAX_TIMES)  # what the column holds
            column[slots] = times  # of a slot that was drawn twice the last counts
        else:
            slots = self._draw_limited(rng, num_batches, batch_size)
            drawn, place, draws = np.unique(slots, return_inverse=True, return_counts=True)
            before = column[slots].astype(np.int64) - draws[place]
            times = before + occurrence(slots)
        priority = self._rule.priority(self._ring.priority[slots], before)
        if self._limit:  # the draws have zeroed leaves on their way
            part = leaf_of(priority, self._exponent)
            self._settle_draws(len(slots), drawn)
        else:
            part = self._part_tree.leaves(slots)
            if self._rule.uses_visits:
                drawn = np.unique(slots)
                self._set(drawn, self._part(drawn))
        return Drawn(slots, part / total, priority, times)

    def _draw_limited(self, rng: np.random.Generator, num_batches: int, batch_size: int) -> Ints:
        """Draw so that no item exceeds max_times_sampled, and count it in the column; returns slots <int64>[M]."""
        if self._queue is not None:
            return self._draw_oldest(self._queue, num_batches, batch_size)
        column = self._ring.times_sampled
        slots = self.tree.draw_stratified(rng, num_batches, batch_size).reshape(-1)
        pending = np.arange(len(slots))
        while True:
            good = column[slots[pending]] + occurrence(slots[pending]) <= self._limit
            np.add.at(column, slots[pending[good]], 1)
            pending = pending[~good]
            if len(pending) == 0:
                return slots
            # Each round takes a draw or an item away, so there are few; with the leaves of items that were drawn up
            # at zero, what is missing falls to the others in proportion.
            gone = np.unique(slots[pending])
            self.tree.set(gone, np.zeros(len(gone)))
            slots[pending] = self.tree.find(rng.random(len(pending)) * self.tree.total)

    def _draw_oldest(self, queue: ItemQueue, num_batches: int, batch_size: int) -> Ints:
        chosen: List[Ints] = []
        for _ in range(num_batches):
            missing = batch_size
            while missing > 0:  # a batch that is larger than the queue takes its items several times
                slots = self._ring.slots(queue.oldest(missing))
                self._ring.times_sampled[slots] += 1
                chosen.append(slots)
                missing -= len(slots)
        return np.concatenate(chosen)

    def _settle_draws(self, num_draws: int, drawn: Ints) -> None:
        """Count draws that the column holds, and derive the leaves of the items at `drawn`, each named once."""
        exhausted = int(np.count_nonzero(self._ring.times_sampled[drawn] >= self._limit))
        self._draws_left -= num_draws
        self.num_exhausted += exhausted
        self.exhausted_total += exhausted
        self._set(drawn, self._part(drawn))

    # Priorities

    def update(self, keys: Ints, td_error: Floats) -> PriorityOutcome:
        """Apply a batch of updates <int64>[N], <float64>[N] whole, with an answer per item.

        Raises:
            ValueError: the two differ in shape; nothing was changed.
        """
        if keys.ndim != 1 or keys.shape != td_error.shape:
            raise ValueError(f"keys {list(keys.shape)} and TD errors {list(td_error.shape)} must be of one length")
        ring = self._ring
        slots = ring.slots(keys)
        is_item = ring.is_resident(keys) & (ring.status[slots] == StepOutcome.ITEM)
        outcome = judge_updates(keys, td_error, is_item)
        applied = outcome == UpdateOutcome.APPLIED
        magnitude, clamped = priority_of(td_error[applied])
        chosen = slots[applied]
        ring.priority[chosen] = magnitude
        self._largest.touch(chosen)
        if self._rule.observe(magnitude):
            self._derive()
        elif self._exponent:
            is_all = self._columns_say_all  # p is the magnitude: the columns say no more
            self._set(chosen, leaf_of(magnitude, self._exponent) if is_all else self._part(chosen))
        counts = np.bincount(outcome, minlength=len(UpdateOutcome) + 1)
        return PriorityOutcome(
            outcome=outcome,
            applied=int(counts[UpdateOutcome.APPLIED]),
            stale=int(counts[UpdateOutcome.STALE]),
            rejected=int(counts[UpdateOutcome.REJECTED]),
            superseded=int(counts[UpdateOutcome.SUPERSEDED]),
            clamped=int(np.count_nonzero(clamped)),
        )

    def rebuild(self) -> None:
        """Derive everything from the ring's columns, as after a restore; queued items come in the order of keys."""
        ring = self._ring
        slots = np.flatnonzero(ring.status == StepOutcome.ITEM)
        self._largest.touch(np.arange(ring.capacity))
        self._rule.begin(ring.priority[slots])
        if self._freshness:
            self._updates[slots] = self._history.updates_of(ring.policy_version[slots])
        self._chief_updates = max(self._chief_updates, self._history.newest_updates)
        self.oldest_version = self.oldest_allowed()
        live = slots[~self._has_expired(slots)]
        self.num_expired = len(slots) - len(live)
        if self._limit:
            left = np.maximum(0, self._limit - ring.times_sampled[live])
            self._draws_left = int(left.sum())
            self.num_exhausted = int(np.count_nonzero(left == 0))
        if self._queue is not None:
            self._queue.clear()
            self._queue.push(np.sort(ring.keys(slots)))
        self._derive()

    @property
    def _columns_say_all(self) -> bool:
        """Whether an item's leaf is a power of its stored p, whatever else there is to know of it."""
        return not self._limit and not self._rule.uses_visits and not self.oldest_version

    def _part(self, slots: Ints) -> Floats:
        """p^alpha of the items at `slots` <int64>[N], 0 where an item may not be drawn any more."""
        ring = self._ring
        if self._columns_say_all:
            return leaf_of(ring.priority[slots], self._exponent)
        times = ring.times_sampled[slots].astype(np.int64)
        part = leaf_of(self._rule.priority(ring.priority[slots], times), self._exponent)
        if self._limit:
            part[times >= self._limit] = 0.0
        if self.oldest_version:
            part[self._has_expired(slots)] = 0.0
        return part

    def _set(self, slots: Ints, part: Floats) -> None:
        self._part_tree.set(slots, part)
        if self._freshness:
            self.tree.set(slots, self._freshness.leaves(part, self._updates[slots]))

    def _derive(self) -> None:
        """Set every leaf by the columns."""
        slots = np.arange(self._ring.capacity)
        is_item = self._ring.status == StepOutcome.ITEM
        if self._freshness:
            newest = self._updates[is_item]
            self._updates[~is_item] = 0.0  # rows that left may have been newer than there is room for now
            self._freshness.restart(float(newest.max()) if len(newest) > 0 else 0.0)
        self._set(slots, np.where(is_item, self._part(slots), 0.0))

    def _is_live(self, keys: Ints) -> npt.NDArray[np.bool_]:
        slots = self._ring.slots(keys)
        live: npt.NDArray[np.bool_] = self._ring.is_resident(keys) & (self._ring.times_sampled[slots] < self._limit)
        return live & ~self._has_expired(slots)

    def check_valid(self) -> Optional[str]:
        """What is wrong, or None. Looks at every row."""
        ring, slots = self._ring, np.arange(self._ring.capacity)
        is_item = ring.status == StepOutcome.ITEM
        if (ring.priority[is_item] <= 0.0).any() or ring.priority[~is_item].any():
            return "an item has no priority, or a row without an item has one"
        part = np.where(is_item, self._part(slots), 0.0)
        # Powers of one and the same number may differ in the last digit by their place in an array.
        if not np.allclose(self._part_tree.leaves(slots), part, rtol=1e-12, atol=0.0):
            return "a leaf of the sum tree is not the power of its row's priority"
        if self._freshness:
            leaves = self._freshness.leaves(part, self._updates)
            if not np.allclose(self.tree.leaves(slots), leaves, rtol=1e-9, atol=0.0):
                return "a leaf of the sum tree is not its priority part times its freshness"
        if self._largest.value(0.0) != ring.priority.max():
            return "the largest priority is not that of the column"
        return self._check_counts(is_item) or self.tree.check_valid() or self._part_tree.check_valid()

    def _check_counts(self, is_item: npt.NDArray[np.bool_]) -> Optional[str]:
        ring = self._ring
        expired = is_item & self._has_expired(np.arange(ring.capacity))
        if self.num_expired != np.count_nonzero(expired):
            return f"{np.count_nonzero(expired)} items have expired; {self.num_expired} were counted"
        if self._limit:
            left = np.maximum(0, self._limit - ring.times_sampled[is_item & ~expired])
            if self._draws_left != left.sum() or self.num_exhausted != np.count_nonzero(left == 0):
                return f"the items stand {left.sum()} more draws; {self._draws_left} were counted"
        return None


def occurrence(values: Ints) -> Ints:
    """How often each value came up to and with its place, <int64>[N]: 1 for the first."""
    order = stable_order(values)
    ordered = values[order]
    count = np.ones(len(values), np.int64)
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1  # few, as a rule
    if len(again) > 0:
        place = np.arange(len(again))
        begins = np.where(np.diff(again, prepend=-1) != 1, place, 0)
        count[order[again]] = place - np.maximum.accumulate(begins) + 2
    return count
