"""Staleness of drawn items: how far behind their policy is, where on its way it fell behind, and what it weighs.

Five points of an item's way, in order: its step was chosen (by version v0); its chunk ended (the actor knew v1); its
chunk was acknowledged (the replay knew v2); it was drawn (the replay knew v3); it is trained on (now). The lag between
two points is what the chief's history says of their versions: no clock of another machine takes part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np
import numpy.typing as npt
from typing_extensions import Protocol

from services.common.batch import Stamps

PARTS = ("acting", "in_flight", "ring", "prefetch")
LOST = -1  # of `known_updates_of`: the history does not hold this version

Updates = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float32]


class KnownUpdates(Protocol):
    """The chief's history of versions."""

    def known_updates_of(self, versions: Updates) -> Updates:
        """Updates behind each of `versions` <int64>[N]; LOST where the history does not hold one."""


@dataclass(frozen=True)
class Lag:
    """How far each of N items is behind when it is used, split by PARTS."""

    updates: Updates  # [4, N], at least 0; their sum is the item's lag
    seconds: Seconds  # [4, N]
    is_lost: npt.NDArray[np.bool_]  # [N], its version's updates were lost in a crash of the chief: it counts as fresh

    @property
    def total_updates(self) -> Updates:
        """[N], the items' lag."""
        total: Updates = self.updates.sum(axis=0)
        return total


def split_lag(policy_version: Updates, stamps: Stamps, history: KnownUpdates, updates: int, prefetch_s: float) -> Lag:
    """Split the lag of items that are used now.

    Args:
        policy_version: <int64>[N], v0.
        stamps: of the same items.
        history: of the chief that uses them.
        updates: that it has done.
        prefetch_s: seconds since the draw.

    Returns:
        Updates and seconds by part. A point whose version is not known, or that claims to be older than the one before
        it, counts as that one; none is newer than now. So no part is below 0 and the parts sum to the whole.
    """
    n = len(policy_version)
    at = np.empty((5, n), np.int64)
    versions = np.concatenate((policy_version, stamps.known_version, stamps.arrival_version))
    at[:3] = _look_up(history, versions).reshape(3, n)
    at[3] = history.known_updates_of(np.array([stamps.sampling_version], np.int64))[0]
    at[4] = updates
    is_lost = at[0] == LOST
    at[0, is_lost] = updates
    for before, point in zip(at, at[1:]):
        np.maximum(before, point, out=point)
    np.minimum(at, updates, out=at)
    seconds = np.empty((4, n), np.float32)
    seconds[0], seconds[1], seconds[2], seconds[3] = stamps.acting_s, stamps.transit_s, stamps.ring_s, prefetch_s
    return Lag(at[1:] - at[:-1], seconds, is_lost)


def _look_up(history: KnownUpdates, versions: Updates) -> Updates:
    """As `known_updates_of`; a batch names few versions many times, and those of a range are found faster in order."""
    if len(versions) == 0:
        return versions
    first, last = int(versions.min()), int(versions.max())
    if last - first >= len(versions):
        return history.known_updates_of(versions)
    found: Updates = history.known_updates_of(np.arange(first, last + 1)).take(versions - first)
    return found


@dataclass(frozen=True)
class StalenessRules:
    """What is done about items that are behind."""

    max_lag_updates: Optional[int] = None  # older items have no weight; None: no bound
    loss_half_life_updates: float = 0.0  # 0: age does not count

    def weigh(self, weights: npt.NDArray[np.float32], lag: Updates) -> npt.NDArray[np.float32]:
        """The weights of items in the loss.

        Args:
            weights: <float32>[N], for other reasons than age.
            lag: <int64>[N], in updates.

        Returns:
            <float32>[N]: w * 2^(-lag / half life), divided by the largest of those within the bound; 0 beyond it.
        """
        half_life = self.loss_half_life_updates
        if half_life == 0.0 and self.max_lag_updates is None:
            return weights
        within = np.ones(len(lag), np.bool_) if self.max_lag_updates is None else lag <= self.max_lag_updates
        if not within.any():
            return np.zeros(len(lag), np.float32)
        weighed = weights.astype(np.float64)
        if half_life:
            # Against the freshest, so that no batch is so old that all of its weights vanish.
            weighed *= np.exp2((lag[within].min() - lag) / half_life)
        weighed[~within] = 0.0
        largest = weighed.max()
        scaled: npt.NDArray[np.float32] = (weighed / largest if largest > 0.0 else weighed).astype(np.float32)
        return scaled
