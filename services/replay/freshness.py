"""Freshness: items made by newer parameters are drawn more often, by a factor that halves with their age in updates."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

MAX_EXPONENT = 64.0  # of the factor; before it is reached everything is rebased
MIN_LEAF = 2.0**-700  # an item however old stays drawable where nothing newer is left


class Freshness:
    """factor = 2^(updates / half_life_updates - shift), with a whole `shift` that a rebase moves.

    Only ratios of factors count. A whole shift makes a rebase a multiplication by a power of two, which is exact.
    """

    def __init__(self, half_life_updates: float) -> None:
        if not 0.0 < half_life_updates < math.inf:
            raise ValueError(f"freshness_half_life_updates is {half_life_updates}; it must be finite and above 0")
        self.half_life_updates = half_life_updates
        self.shift = 0

    def leaves(self, part: npt.NDArray[np.float64], updates: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Leaves of items whose priority part p^alpha <float64>[N] is `part`; 0 stays 0.

        Args:
            part: <float64>[N], at least 0.
            updates: <float64>[N], of the versions that made the items; `make_room` has seen them.
        """
        exponent = np.maximum(updates / self.half_life_updates - self.shift, -1000.0)
        leaves = np.maximum(part * np.exp2(exponent), MIN_LEAF)
        leaves[part == 0.0] = 0.0
        return leaves

    def make_room(self, newest_updates: float) -> int:
        """Rebase so that items of `newest_updates` fit below MAX_EXPONENT.

        Returns:
            The doublings by which all leaves must be divided, 0 for none.
        """
        exponent = newest_updates / self.half_life_updates - self.shift
        if exponent < MAX_EXPONENT:
            return 0
        doublings = math.floor(exponent)
        self.shift += doublings
        return doublings

    def restart(self, newest_updates: float) -> None:
        """Choose the shift for leaves that are all derived anew."""
        self.shift = math.floor(newest_updates / self.half_life_updates)
