"""The versions that the replay heard of: how many updates were done when each was published."""

from __future__ import annotations

import bisect
from typing import List, Sequence, Tuple

import numpy as np
import numpy.typing as npt

MAX_PAIRS = 4096


class HeardVersions:
    """Pairs (version, updates), both never falling, bounded by thinning out the older half.

    A version that was not heard of lies between two that were: its updates are interpolated. At first only the origin
    is known: version 0 had 0 updates.
    """

    def __init__(self, pairs: Sequence[Tuple[int, int]] = (), max_pairs: int = MAX_PAIRS) -> None:
        """Begin with what is known.

        Args:
            pairs: of an earlier life, as `pairs` returned them.
            max_pairs: bound of the memory.
        """
        if max_pairs < 4:
            raise ValueError(f"a history of {max_pairs} versions cannot be thinned out; keep at least 4")
        self._max_pairs = max_pairs
        self._versions: List[int] = [0]
        self._updates: List[int] = [0]
        self.restart(pairs)

    @property
    def newest_version(self) -> int:
        """The newest version that was heard of, 0 if none."""
        return self._versions[-1]

    @property
    def newest_updates(self) -> int:
        """Updates of the newest version."""
        return self._updates[-1]

    def restart(self, pairs: Sequence[Tuple[int, int]] = ()) -> None:
        """Know from now on what `pairs` say, and nothing else."""
        self._versions, self._updates = [0], [0]
        for version, updates in pairs:
            self.note(version, updates)

    def pairs(self) -> List[Tuple[int, int]]:
        """What is known, the oldest first."""
        return list(zip(self._versions, self._updates))

    def note(self, version: int, updates: int) -> bool:
        """Note that `version` is the newest, seen first after `updates` updates; an older version changes nothing.

        Returns:
            Whether updates were lost: the chief began again from a checkpoint, and versions whose updates no longer
            exist now count as its newest.
        """
        if version <= self._versions[-1] or updates < 0:
            return False
        was_lost = updates < self._updates[-1]
        if was_lost:
            self._updates = [min(known, updates) for known in self._updates]
        self._versions.append(version)
        self._updates.append(updates)
        if len(self._versions) > self._max_pairs:
            half = len(self._versions) // 2
            self._versions[:half] = self._versions[:half:2]
            self._updates[:half] = self._updates[:half:2]
        return was_lost

    def oldest_of(self, updates: int) -> int:
        """The smallest version that `updates_of` gives at least `updates`; one above the newest if there is none."""
        behind = bisect.bisect_left(self._updates, updates)
        if behind == 0:
            return 0
        if behind == len(self._updates):
            return self._versions[-1] + 1
        low, high = self._versions[behind - 1], self._versions[behind]
        missing, gained = updates - self._updates[behind - 1], self._updates[behind] - self._updates[behind - 1]
        return low - (-missing * (high - low) // gained)  # rounded up, in whole numbers

    def updates_of(self, versions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Updates of `versions`, same shape; those above the newest that was heard of count as the newest."""
        if len(versions) == 0:
            return np.zeros(versions.shape, np.float64)
        # Steps are of versions near the newest as a rule, and converting the whole history costs more than the rest.
        oldest = bisect.bisect_right(self._versions, int(versions.min()))
        first = max(0, oldest - 1)
        return np.interp(versions, self._versions[first:], self._updates[first:])
