"""A binary tree of partial sums over the leaves of all slots, for draws in proportion to a leaf."""

from __future__ import annotations

from typing import Optional

import numpy as np
import numpy.typing as npt

SEARCHED_LEVEL = 10  # from the root; 1,024 sums of 8 bytes
DENSE = 8  # nodes of a level to one that is touched, below which all between them are made anew
MAX_LEAF = 1e200  # far above any priority, and no sum of leaves can overflow


class SumTree:
    """Leaves >= 0 over `capacity` slots; every parent is exactly the float64 sum of its two children.

    Parents are recomputed as left + right, level by level for a whole batch, and never by adding differences: an
    error of rounding, or a huge leaf that came and went, leaves no trace.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a sum tree needs at least one slot; capacity is {capacity}")
        self.capacity = capacity
        self._depth = (capacity - 1).bit_length()
        self._width = 1 << self._depth
        # A heap: node i has the children 2i and 2i + 1, node 1 is the root, leaves begin at `_width`.
        self._nodes = np.zeros(2 * self._width, np.float64)

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._nodes[1])

    def leaves(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Leaves of `slots`, shape of `slots`."""
        return np.take(self._nodes, slots + self._width)

    def set(self, slots: npt.NDArray[np.int64], leaves: npt.NDArray[np.float64]) -> None:
        """Set the leaves of `slots` <int64>[N] to `leaves` <float64>[N]; of a slot given twice the last counts.

        Raises:
            ValueError: a leaf is negative, not finite or above MAX_LEAF; nothing was changed.
        """
        if len(slots) == 0:
            return
        if not (leaves.min() >= 0.0 and leaves.max() <= MAX_LEAF):  # NaN passes neither
            raise ValueError(f"leaves of the sum tree must lie in [0, {MAX_LEAF:g}]; nothing was changed")
        if int(slots.min()) < 0 or int(slots.max()) >= self.capacity:
            raise ValueError(f"slots of the sum tree must lie in [0, {self.capacity}); nothing was changed")
        touched = slots + self._width
        self._nodes[touched] = leaves
        touched.sort()
        pairs = self._nodes.reshape(-1, 2)  # of node i the children
        while True:
            first, last = int(touched[0]), int(touched[-1])
            if last - first < DENSE * len(touched):
                self._sum_range(first, last)
                return
            touched >>= 1
            again = touched[1:] == touched[:-1]
            if 4 * np.count_nonzero(again) > len(touched):  # a few sums made twice cost less than leaving them out
                touched = touched[np.concatenate(([True], ~again))]
            children = pairs.take(touched, axis=0)
            self._nodes[touched] = children[:, 0] + children[:, 1]

    def _sum_range(self, first: int, last: int) -> None:
        """Recompute all ancestors of the nodes first..last, which lie on one level."""
        nodes = self._nodes
        while first > 1:
            first, last = first >> 1, last >> 1
            np.add(
                nodes[2 * first : 2 * last + 2 : 2], nodes[2 * first + 1 : 2 * last + 2 : 2], nodes[first : last + 1]
            )

    def scale(self, exponent: int, smallest: float) -> None:
        """Multiply every leaf by 2^exponent, which is exact; a leaf above 0 that falls below `smallest` becomes it.

        Args:
            exponent: at most 0.
            smallest: above 0 and far from the denormal numbers.
        """
        leaves = self._nodes[self._width :]
        positive = leaves > 0.0
        self._nodes *= 2.0**exponent if exponent > -1000 else 0.0
        low = np.flatnonzero(positive & (leaves < smallest))
        self.set(low, np.full(len(low), smallest))

    def find(self, mass: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Slots whose interval of the cumulated leaves holds `mass`, each in [0, total).

        A leaf of zero is never returned, whatever rounding does.

        Raises:
            ValueError: all leaves are zero.
        """
        if not self.total > 0.0:
            raise ValueError("nothing can be drawn from a sum tree whose leaves are all zero")
        # The upper levels in one step: a search in the cumulated sums of a level that fits a near cache.
        level = min(SEARCHED_LEVEL, self._depth)
        ends = np.cumsum(self._nodes[1 << level : 2 << level])
        node = np.searchsorted(ends, mass, side="right")
        np.minimum(node, np.searchsorted(ends, ends[-1]), out=node)  # rounding may put a mass behind the last end
        rest = mass - np.concatenate(([0.0], ends)).take(node)
        node += 1 << level
        left, to_right = np.empty(mass.shape, np.float64), np.empty(mass.shape, np.bool_)
        for _ in range(self._depth - level):
            node <<= 1
            self._nodes.take(node, out=left, mode="clip")  # no node is out of bounds, and checking takes a copy
            np.greater_equal(rest, left, out=to_right)
            node += to_right
            left *= to_right
            rest -= left
        strayed = self._nodes.take(node) <= 0.0
        if strayed.any():
            node[strayed] = self._descend(mass[strayed])
        return node - self._width

    def _descend(self, mass: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Nodes of leaves for `mass` <float64>[N]; never enters a subtree whose sum is zero, and looks at each twice.

        Where rounding has left a rest of the mass behind the end of its subtree, the plain descent may end in a zero.
        """
        node = np.ones(mass.shape, np.int64)
        rest = mass.copy()
        for _ in range(self._depth):
            node <<= 1
            left, right = self._nodes.take(node), self._nodes.take(node + 1)
            to_right = ((rest >= left) & (right > 0.0)) | (left <= 0.0)
            rest -= np.where(to_right, left, 0.0)
            node += to_right
        return node

    def draw_stratified(self, rng: np.random.Generator, num_batches: int, batch_size: int) -> npt.NDArray[np.int64]:
        """Draw one slot from each of `batch_size` equal strata of the total mass, for each batch on its own.

        Returns:
            Slots <int64>[num_batches, batch_size]; P(slot) of one draw, over all strata, is leaf / total.
        """
        position = np.arange(batch_size) + rng.random((num_batches, batch_size))
        return self.find(position * (self.total / batch_size))

    def check_valid(self) -> Optional[str]:
        """What is wrong with the tree, or None."""
        nodes, width = self._nodes, self._width
        if not (np.isfinite(nodes).all() and (nodes >= 0.0).all()):
            return "a node of the sum tree is negative or not finite"
        if nodes[width + self.capacity :].any():
            return "a leaf beyond the capacity of the sum tree is not zero"
        if not np.array_equal(nodes[1:width], nodes[2 : 2 * width : 2] + nodes[3 : 2 * width : 2]):
            return "a node of the sum tree is not the sum of its children"
        return None
