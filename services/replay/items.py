"""From steps to items: n-step windows over the timelines of many lanes at once."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.common.chunk import TERMINATED, TRUNCATED, VALID


class StepOutcome(enum.IntEnum):
    """What became of a row; the value that the ring's `status` column holds."""

    NO_STEP = 0  # final observation, reset row, quarantined or empty
    OPEN = 1  # its window is not complete
    ITEM = 2
    LOST = 3  # nobody saw its successor, and nobody ever will


# The same as numpy's own numbers: a comparison of a column with a member of an enum takes several times as long.
NO_STEP, OPEN, ITEM, LOST = (np.uint8(outcome) for outcome in StepOutcome)


@dataclass(frozen=True)
class Timeline:
    """Rows of B lanes in the order of time, the oldest first; a lane's rows end at the last position or are absent.

    Keys grow along a lane. Steps at the beginning may be absent (`exists` false); after the first row of a lane
    there is no hole, except between a row that is severed and the next.
    """

    key: npt.NDArray[np.int64]  # [E, B]
    exists: npt.NDArray[np.bool_]  # [E, B]
    reward: npt.NDArray[np.float32]  # [E, B]
    flags: npt.NDArray[np.uint8]  # [E, B], VALID | TERMINATED | TRUNCATED; 0 where no step
    final_key: npt.NDArray[np.int64]  # [E, B], row of the final observation that belongs to this step; -1: none
    severed: npt.NDArray[np.bool_]  # [E, B], whatever comes next in this lane is not this row's successor


@dataclass(frozen=True)
class Windows:
    """What each row of a timeline came to. The last three hold sense only where the outcome is ITEM."""

    outcome: npt.NDArray[np.uint8]  # [E, B], StepOutcome
    n_step_return: npt.NDArray[np.float64]  # [E, B]
    discount: npt.NDArray[np.float64]  # [E, B]
    bootstrap_key: npt.NDArray[np.int64]  # [E, B], larger than the row's own key


@dataclass(frozen=True)
class _Links:
    """How each row leads on to the next; of known, gone and neither, exactly one holds for a step."""

    valid: npt.NDArray[np.bool_]  # the row is a step
    known: npt.NDArray[np.bool_]  # the observation that the step led to has a row
    gone: npt.NDArray[np.bool_]  # it has none, and never will; neither: it may still come
    key: npt.NDArray[np.int64]  # that row, where known
    stop: npt.NDArray[np.bool_]  # no window goes on beyond this step
    terminated: npt.NDArray[np.bool_]


def _links(timeline: Timeline) -> _Links:
    flags = timeline.flags
    valid = timeline.exists & ((flags & VALID) != 0)
    terminated = (flags & TERMINATED) != 0
    ended = (flags & (TERMINATED | TRUNCATED)) != 0
    has_final = timeline.final_key >= 0
    # Views: a row, where one comes behind it, beside that one.
    row, follower = slice(None, -1), slice(1, None)
    # Inside an episode the next row must be a step. After its end the next row is the true final observation only if
    # it is no step (next_step auto-reset); where the task terminated, no value is taken there and any row will do.
    leads_on = terminated[row] | (ended[row] ^ valid[follower])
    known = has_final.copy()
    known[row] |= timeline.exists[follower] & leads_on & ~timeline.severed[row]
    gone = timeline.severed.copy()
    gone[row] |= timeline.exists[follower]
    gone &= ~known
    key = timeline.final_key.copy()
    np.copyto(key[row], timeline.key[follower], where=~has_final[row])
    return _Links(valid=valid, known=known, gone=gone, key=key, stop=has_final | ended, terminated=terminated)


def build_windows(timeline: Timeline, n_step: int, discount: float) -> Windows:
    """Close each window that can be closed, and say which rows wait or are lost.

    For the step at position t, R = sum_{k<K} discount^k r_{t+k} with K <= n_step, cut at the end of the episode; the
    item's discount is discount^K, or 0 where the episode terminated (also if it was truncated at once), and it
    bootstraps from the observation that step t+K-1 led to. Where that observation will never be seen (the actor died,
    steps are missing, a truncation without its final observation), the window ends one step earlier, at that step's
    own row; a step without any successor is lost.
    """
    num_rows = timeline.key.shape[0]
    links = _links(timeline)
    reward, takes_value = timeline.reward.astype(np.float64), ~links.terminated
    outcome = np.where(links.valid, OPEN, NO_STEP)
    n_step_return = np.zeros(timeline.key.shape, np.float64)
    item_discount = np.zeros(timeline.key.shape, np.float64)
    bootstrap_key = np.full_like(timeline.key, -1)
    some_gone = bool(links.gone.any())
    if some_gone:
        outcome[links.valid & links.gone] = LOST
    running = links.valid
    for k in range(min(n_step, num_rows)):
        # Views: position t of the window's start beside position t + k of its k-th step. A window that would reach
        # beyond the last position has ended by then, since the last position never leads on.
        now, here = slice(0, num_rows - k), slice(k, num_rows)
        active = running[now]
        known = active & links.known[here]
        complete = known
        if k + 1 < n_step:
            complete = known & links.stop[here]
            running = known ^ complete
        earned = known
        np.copyto(item_discount[now], discount ** (k + 1), where=complete & takes_value[here])
        np.copyto(bootstrap_key[now], links.key[here], where=complete)
        if some_gone and k > 0:
            cut_short = active & links.gone[here]
            # Terminated with its successor unseen: the return is complete, and the row after the end is never needed.
            earned = known | (cut_short & links.terminated[here])
            np.copyto(item_discount[now], discount**k, where=cut_short & takes_value[here])
            np.copyto(bootstrap_key[now], timeline.key[here], where=cut_short)
        n_step_return[now] += np.where(earned, discount**k * reward[here], 0.0)
    np.copyto(outcome, ITEM, where=bootstrap_key >= 0)  # each window that closed has one
    return Windows(outcome, n_step_return, item_discount, bootstrap_key)
