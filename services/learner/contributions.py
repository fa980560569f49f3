"""Gradients that wait for their step: which base they must be of, who is still missing, when there are enough.

Pure: no calls, no threads, no clock. `services.learner.gradient_exchange` puts a lock around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Collection, Dict, List, Mapping, Optional, Sequence

import numpy as np
import numpy.typing as npt
from typing_extensions import Protocol

Gradients = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Share:
    """What one contributor adds to a step: mean gradients over its batch. Without gradients it abstains."""

    contributor: str
    num_samples: int  # 0: it abstains
    gradients: Gradients
    lag: int = 0  # updates between its base and the step

    @property
    def weight(self) -> float:
        """Of its staleness alone: 1 / (1 + lag)."""
        return 1.0 / (1 + self.lag)


class Contributions(Protocol):
    """How gradients become steps, seen by the exchange."""

    @property
    def version(self) -> int:
        """The newest base, 0 while none is open."""

    def open(self, version: int, updates: int, helpers: Collection[str]) -> None:
        """Take gradients of a new base, with `helpers` alive."""

    def close(self) -> None:
        """Take none until the next `open`; what waits is given up."""

    def why_stale(self, base_version: int) -> str:
        """One sentence that says why a gradient of `base_version` comes too late; empty if it does not."""

    def lag(self, base_version: int) -> int:
        """Updates that a gradient of `base_version` is behind."""

    def has_room(self, contributor: str) -> bool:
        """Whether a gradient of `contributor` can be taken now."""

    def add(self, share: Share) -> None:
        """Take a gradient that is not stale and has room."""

    def drop(self, contributor: str) -> None:
        """Forget what a contributor has given."""

    def missing(self, living: Collection[str]) -> List[str]:
        """Who of the `living` the step waits for, in order; empty: for nobody."""

    def take(self, *, even_few: bool = False) -> List[Share]:
        """All gradients of the step that is to be taken, in the order of their sum; none if they are too few."""


class SynchronousContributions:
    """One gradient of each helper that was alive when the base was opened; a base serves one step."""

    def __init__(self) -> None:
        self.version = 0
        self._awaited: List[str] = []
        self._shares: Dict[str, Share] = {}

    def open(self, version: int, updates: int, helpers: Collection[str]) -> None:
        del updates  # all gradients are of the same
        self.version = version
        self._awaited = sorted(helpers)
        self._shares = {}

    def close(self) -> None:
        self.version = 0
        self._awaited, self._shares = [], {}

    def why_stale(self, base_version: int) -> str:
        if self.version and base_version == self.version:
            return ""
        now = f"the chief takes gradients of {self.version}" if self.version else "its step is taken"
        return f"the gradient is of version {base_version}, and {now}"

    def lag(self, base_version: int) -> int:
        del base_version
        return 0

    def has_room(self, contributor: str) -> bool:
        return contributor not in self._shares

    def add(self, share: Share) -> None:
        self._shares[share.contributor] = share

    def drop(self, contributor: str) -> None:
        self._shares.pop(contributor, None)
        self._awaited = [name for name in self._awaited if name != contributor]

    def missing(self, living: Collection[str]) -> List[str]:
        return [name for name in self._awaited if name in living and name not in self._shares]

    def take(self, *, even_few: bool = False) -> List[Share]:
        del even_few  # nobody is missing
        shares = [share for _, share in sorted(self._shares.items())]
        self.close()
        return shares

    def check_valid(self) -> Optional[str]:
        """What is wrong with this structure; None if nothing is."""
        if not self.version and (self._awaited or self._shares):
            return "gradients wait without a base"
        return None


class AsynchronousContributions:
    """A step for each `accumulate` gradients, as they come; a gradient may be up to `max_lag_updates` behind.

    The bound is exact: all that is taken up belongs to the very next step.
    """

    def __init__(self, *, accumulate: int, max_lag_updates: int) -> None:
        self.version = 0
        self._accumulate = accumulate
        self._max_lag_updates = max_lag_updates
        self._updates = 0
        self._bases: Dict[int, int] = {}  # version -> updates, those that are not too old
        self._shares: List[Share] = []

    def open(self, version: int, updates: int, helpers: Collection[str]) -> None:
        del helpers  # nobody is waited for
        self.version = version
        self._updates = updates
        self._bases[version] = updates
        self._forget_old_bases()

    def close(self) -> None:
        self.version = 0
        self._bases, self._shares = {}, []

    def why_stale(self, base_version: int) -> str:
        if base_version in self._bases:
            return ""
        return (
            f"the gradient is of version {base_version}, which is more than gradients.max_lag_updates = "
            f"{self._max_lag_updates} updates behind the newest, {self.version}"
        )

    def lag(self, base_version: int) -> int:
        return self._updates - self._bases[base_version]

    def has_room(self, contributor: str) -> bool:
        del contributor
        return len(self._shares) < self._accumulate

    def add(self, share: Share) -> None:
        self._shares.append(share)

    def drop(self, contributor: str) -> None:
        """Nothing: its sender was told that it is accepted."""

    def missing(self, living: Collection[str]) -> List[str]:
        del living
        return []

    def take(self, *, even_few: bool = False) -> List[Share]:
        if len(self._shares) < self._accumulate and not even_few:
            return []
        shares, self._shares = self._shares, []
        self._updates += 1  # what comes from now on is for the step after
        self._forget_old_bases()
        return shares

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits for a step."""
        return not self._shares

    def check_valid(self) -> Optional[str]:
        """What is wrong with this structure; None if nothing is."""
        if len(self._shares) > self._accumulate + 1:
            return f"{len(self._shares)} gradients wait for a step of {self._accumulate}"
        if any(lag > self._max_lag_updates for lag in (self._updates - u for u in self._bases.values())):
            return "a base is older than the bound"
        return None

    def _forget_old_bases(self) -> None:
        self._bases = {v: u for v, u in self._bases.items() if 0 <= self._updates - u <= self._max_lag_updates}


def average(shares: Sequence[Share]) -> Dict[str, npt.NDArray[np.float32]]:
    """The mean over items of all batches, each share scaled by its staleness.

    A tensor's mean is over the shares that have it: a delayed policy comes with some updates only.

    Args:
        shares: in the order of the sum; those that abstain do not count.

    Returns:
        sum_i n_i w_i g_i / sum_i n_i w_i for each tensor; a single gradient comes back bit for bit.
    """
    mean: Dict[str, npt.NDArray[np.float32]] = {}
    names = [name for share in shares for name in share.gradients]
    for name in dict.fromkeys(names):
        given = [
            (share.num_samples * share.weight, share.gradients[name]) for share in shares if name in share.gradients
        ]
        total = sum(weight for weight, _ in given)
        parts = [gradient if len(given) == 1 else gradient * np.float32(weight / total) for weight, gradient in given]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
        mean[name] = whole
    return mean


def rate_scale(shares: Sequence[Share]) -> float:
    """A step's learning rate with late gradients: the mean of 1 / (1 + lag). Adam does not feel scaled gradients."""
    weights = [share.weight for share in shares if share.num_samples]
    return sum(weights) / len(weights) if weights else 1.0


def mean_cosine(shares: Sequence[Share]) -> Optional[float]:
    """Mean cosine similarity between the gradients of every two contributors; None with fewer than two.

    With unit vectors u_i: |sum u_i|^2 = n + 2 sum of cosines over pairs. Over the tensors that all of them have.
    """
    given = [share.gradients for share in shares if share.num_samples]
    if len(given) < 2:
        return None
    names = [name for name in given[0] if all(name in gradients for gradients in given)]
    norms = [math.sqrt(sum(float(np.vdot(its[name], its[name])) for name in names)) for its in given]
    if not all(norms):
        return None
    squared = 0.0
    for name in names:
        total = sum(its[name] * np.float32(1 / norm) for its, norm in zip(given, norms))
        squared += float(np.vdot(total, total))
    return (squared - len(given)) / (len(given) * (len(given) - 1))
