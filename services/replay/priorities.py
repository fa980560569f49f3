"""Priorities of items: from TD error to p and to leaf, and the answers to a batch of updates."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Tuple

import numpy as np
import numpy.typing as npt

EPSILON = 1e-6  # keeps an item whose TD error is zero drawable
MIN_PRIORITY, MAX_PRIORITY = 1e-10, 1e10


class UpdateOutcome(enum.IntEnum):
    """What became of one item of an update; the numbers are those of `PriorityResult.outcome` on the wire."""

    APPLIED = 1
    STALE = 2  # the row was reused, or never started an item
    REJECTED = 3  # not finite or negative
    SUPERSEDED = 4  # the key came again later in the same update


@dataclass(frozen=True)
class PriorityOutcome:
    """The answer to one batch of updates, per item and summed."""

    outcome: npt.NDArray[np.uint8]  # [N], UpdateOutcome
    applied: int
    stale: int
    rejected: int
    superseded: int
    clamped: int  # applied, but p lay outside of [MIN_PRIORITY, MAX_PRIORITY]


def priority_of(td_error: npt.NDArray[np.float64]) -> Tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Form p = |td_error| + EPSILON, clamped (Schaul 2016, proportional variant), and say which were clamped.

    Args:
        td_error: <float64>[N], finite.
    """
    raw = np.abs(td_error) + EPSILON
    p = np.minimum(np.maximum(raw, MIN_PRIORITY), MAX_PRIORITY)
    return p, p != raw


def leaf_of(p: npt.NDArray[np.float64], priority_exponent: float) -> npt.NDArray[np.float64]:
    """Form the leaf p^priority_exponent; P(i) = leaf_i / sum of leaves."""
    return np.power(p, priority_exponent)


def judge_updates(
    keys: npt.NDArray[np.int64], td_error: npt.NDArray[np.float64], is_item: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint8]:
    """Judge each item of a batch of updates by itself; see UpdateOutcome.

    An entry that is rejected does not supersede an earlier good one of its key.

    Args:
        keys: <int64>[N]
        td_error: <float64>[N], anything
        is_item: <bool>[N], the key is that of a resident item

    Returns:
        UpdateOutcome as <uint8>[N]; the keys of APPLIED entries are distinct.
    """
    with np.errstate(invalid="ignore"):
        good = (td_error >= 0.0) & (td_error < np.inf)  # NaN is neither
    outcome = np.full(len(keys), UpdateOutcome.REJECTED, np.uint8)
    outcome[good] = UpdateOutcome.STALE
    candidates = np.flatnonzero(good & is_item)
    order = stable_order(keys[candidates])
    ordered = keys[candidates[order]]
    outcome[candidates] = UpdateOutcome.APPLIED
    outcome[candidates[order[:-1][ordered[1:] == ordered[:-1]]]] = UpdateOutcome.SUPERSEDED
    return outcome


def stable_order(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places of `values` <int64>[N] in ascending order, equal ones in the order that they came in, <int64>[N].

    What is drawn or updated at once is a few ascending runs, which a stable sort merges.
    """
    return np.argsort(values, kind="stable")


class LargestPriority:
    """The largest p of a column in which rows without an item hold 0, found again only where it may have changed."""

    def __init__(self, column: npt.NDArray[np.float64], block_rows: int = 1024) -> None:
        self._column = column
        self._block_rows = block_rows
        num_blocks = -(-len(column) // block_rows)
        self._maximum = np.zeros(num_blocks, np.float64)
        self._touched = np.ones(num_blocks, np.bool_)

    def touch(self, slots: npt.NDArray[np.int64]) -> None:
        """Say that the column changed at `slots`."""
        self._touched[slots // self._block_rows] = True

    def value(self, default: float = 1.0) -> float:
        """The largest p, or `default` if there is no item."""
        rows = self._block_rows
        whole = len(self._column) // rows
        touched = np.flatnonzero(self._touched)
        if len(touched) > 0 and touched[-1] >= whole:
            self._maximum[whole] = self._column[whole * rows :].max()
            touched = touched[:-1]
        if len(touched) > 0:
            self._maximum[touched] = self._column[: whole * rows].reshape(whole, rows)[touched].max(axis=1)
        self._touched[:] = False
        largest = float(self._maximum.max())
        return largest if largest > 0.0 else default
