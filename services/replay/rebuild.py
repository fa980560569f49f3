"""Rebuilding: items, windows and counters of a ring whose facts are in its columns and whose chunks are in its log.

The same windows as at insertion, over all resident chunks of a lane group's life at once. It serves a restart, and the
opening with another n or discount; priorities and draws that the columns hold are kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterator, Set, Tuple

import numpy as np
import numpy.typing as npt

from services.replay.history import History
from services.replay.item_store import HAS_FINAL, TAKEN_OUT, ItemStore
from services.replay.items import StepOutcome, Timeline, build_windows
from services.replay.ring import Ring
from services.replay.step_counters import StepCounters

BLOCK_ROWS = 1 << 18  # rows of a timeline that are looked at together: bounds the memory


class FlagsDisagree(Exception):
    """The flags column does not hold what the log says of a chunk."""


def damaged_chunks(ring: Ring, chunks: npt.NDArray[Any]) -> Set[int]:
    """First keys of resident chunks whose rows are not those that were acknowledged.

    A chunk that is overwritten in part cannot be checked and is taken for damaged.
    """
    found: Set[int] = set()
    rows = chunks["num_steps"].astype(np.int64) * chunks["num_lanes"]
    resident = (rows > 0) & (chunks["first_key"] + rows > ring.oldest_key)
    for place in np.flatnonzero(resident).tolist():
        first_key, crc = int(chunks["first_key"][place]), int(chunks["rows_crc"][place])
        num_rows = int(rows[place]) + int(chunks["num_final"][place])
        if first_key < ring.oldest_key or ring.checksum(first_key, num_rows) != crc:
            found.add(first_key)
    return found


def rebuild_items(store: ItemStore, history: History) -> None:
    """Make all items again from the facts in the columns, and find each living lane group's open windows.

    Raises:
        FlagsDisagree: a chunk's flags are not those of its record.
    """
    ring = store.ring
    ring.status[:] = StepOutcome.NO_STEP
    for life, places in history.lives.items():
        chunks = history.chunks[places]
        rows = chunks["num_steps"].astype(np.int64) * chunks["num_lanes"]
        resident = (rows > 0) & (chunks["first_key"] + rows > ring.oldest_key)
        resident &= ~np.isin(chunks["first_key"], list(history.dropped_keys))
        if not resident.any():
            continue
        severed = _severed(chunks, history.severed_after[places], resident)
        timeline = _timeline(ring, chunks[resident], severed)
        open_keys = _write_items(store, timeline)
        if history.is_living(life):
            name = history.admission.names[life.actor]
            history.admission.actors[name].groups[life.lane_group].open_keys = open_keys
    no_item = ring.status != StepOutcome.ITEM
    ring.priority[no_item] = 0.0
    ring.times_sampled[no_item] = 0
    store.adopt_items()


def _severed(
    chunks: npt.NDArray[Any], severed_after: npt.NDArray[np.bool_], resident: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Whether anything came between each resident chunk of a life and the next, <bool>[number of resident chunks]."""
    missing = np.zeros(len(chunks), np.bool_)  # steps are missing before this chunk
    missing[1:] = chunks["first_step"][1:] != chunks["first_step"][:-1] + chunks["num_steps"][:-1]
    missing[1:] |= ~resident[:-1] & (
        chunks["num_steps"][:-1] > 0
    )  # damaged: an older chunk is never the younger's past
    breaks = np.cumsum(missing) + np.concatenate(([0], np.cumsum(severed_after)[:-1]))
    at = np.flatnonzero(resident)
    lost_end = ~resident[-1] & (chunks["num_steps"][-1] > 0)
    behind = np.append(breaks[at[1:]], breaks[-1] + severed_after[-1] + lost_end)
    between: npt.NDArray[np.bool_] = behind > breaks[at]
    return between


def _timeline(ring: Ring, chunks: npt.NDArray[Any], severed: npt.NDArray[np.bool_]) -> Timeline:
    """All rows of a life's resident chunks, [sum of T, B]."""
    num_lanes = int(chunks["num_lanes"][0])
    steps = chunks["num_steps"].astype(np.int64)
    ends = np.cumsum(steps)
    chunk_of = np.repeat(np.arange(len(chunks)), steps)
    first_keys = chunks["first_key"].astype(np.int64)
    step_key = first_keys[chunk_of] + (np.arange(ends[-1]) - (ends - steps)[chunk_of]) * num_lanes
    key = step_key[:, None] + np.arange(num_lanes)
    slots = ring.slots(key)
    flags = ring.flags[slots]
    exists = (key >= ring.oldest_key) & ((flags & TAKEN_OUT) == 0)
    cut = np.zeros(key.shape, np.bool_)
    cut[ends - 1] = severed[:, None]
    cut[ends[:-1] - 1] |= (flags[ends[:-1]] & TAKEN_OUT) != 0  # a quarantined lane begins anew after its hole
    return Timeline(
        key=key,
        exists=exists,
        reward=ring.reward[slots],
        flags=flags,
        final_key=_final_keys(ring, chunks, key, exists & ((flags & HAS_FINAL) != 0), chunk_of),
        severed=cut,
    )


def _final_keys(
    ring: Ring,
    chunks: npt.NDArray[Any],
    key: npt.NDArray[np.int64],
    has_final: npt.NDArray[np.bool_],
    chunk_of: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Rows of final observations: a chunk's lie behind its steps, in the order of the steps that have one."""
    marked = np.flatnonzero(has_final)
    owner = chunk_of[marked // key.shape[1]]
    num_marked = np.bincount(owner, minlength=len(chunks))
    num_final = chunks["num_final"].astype(np.int64)
    whole = chunks["first_key"] >= ring.oldest_key
    if (num_marked > num_final).any() or (num_marked != num_final)[whole].any():
        raise FlagsDisagree
    # Counted from the end: of a chunk that is overwritten in part, the first steps are gone.
    from_end = np.cumsum(num_marked)[owner] - 1 - np.arange(len(marked))
    behind = chunks["first_key"] + chunks["num_steps"].astype(np.int64) * chunks["num_lanes"] + num_final
    final_key = np.full(key.shape, -1, np.int64)
    final_key.reshape(-1)[marked] = behind[owner] - 1 - from_end
    return final_key


def _blocks(num_rows: int, num_lanes: int, n_step: int) -> Iterator[Tuple[int, int, int]]:
    """(first, behind the last, behind the last that must be seen) of the rows that are looked at together."""
    size = max(1, BLOCK_ROWS // num_lanes)
    for begin in range(0, num_rows, size):
        end = min(num_rows, begin + size)
        yield begin, end, min(num_rows, end + n_step)


def _write_items(store: ItemStore, timeline: Timeline) -> npt.NDArray[np.int64]:
    """Write what each row came to; returns the keys of open windows, <int64>[n_step, B], aligned to the end."""
    ring, n_step = store.ring, store.n_step
    num_rows, num_lanes = timeline.key.shape
    open_keys = np.full((n_step, num_lanes), -1, np.int64)
    for begin, end, seen in _blocks(num_rows, num_lanes, n_step):
        part = Timeline(**{name: column[begin:seen] for name, column in vars(timeline).items()})
        windows = build_windows(part, n_step, store.discount)
        here = slice(0, end - begin)
        outcome, key = windows.outcome[here], part.key[here]
        ring.status[ring.slots(key[part.exists[here]])] = outcome[part.exists[here]]
        is_item = outcome == StepOutcome.ITEM
        slots = ring.slots(key[is_item])
        ring.n_step_return[slots] = windows.n_step_return[here][is_item]
        ring.discount[slots] = windows.discount[here][is_item]
        ring.bootstrap_key[slots] = windows.bootstrap_key[here][is_item]
        tail = np.where(outcome == StepOutcome.OPEN, key, -1)[-n_step:]
        open_keys = np.concatenate((open_keys, tail))[-n_step:]
    return open_keys


def rebuilt_counters(recorded: StepCounters, status: npt.NDArray[np.uint8], *, into: str) -> StepCounters:
    """The counters that go with the rebuilt `status` column; both equations hold for them if they held for `recorded`.

    Args:
        recorded: after the last event of the log.
        status: <uint8>[capacity], StepOutcome.
        into: "overwritten" or "reset": where steps are counted that were resident and are no more.

    Returns:
        A step that is gone leaves `resident` and, if its window was open, becomes `unripe_evicted`. An item whose
        window is open again, under a larger n, is no item until it closes once more.
    """
    items = int(np.count_nonzero(status == StepOutcome.ITEM))
    unripe = int(np.count_nonzero(status == StepOutcome.OPEN))
    gone = recorded.resident - items - unripe
    if gone < 0:  # the record that said that they were lost is itself lost
        recorded, gone = replace(recorded, lost_tail=recorded.lost_tail + gone), 0
    gone_unripe = min(gone, max(0, recorded.unripe - unripe))
    gone_items = gone - gone_unripe
    changes = {
        "resident": items + unripe,
        "unripe": unripe,
        "unripe_evicted": recorded.unripe_evicted + gone_unripe,
        "items": recorded.items + items - (recorded.resident - recorded.unripe) + gone_items,
        into: getattr(recorded, into) + gone,
    }
    return replace(recorded, **changes)
