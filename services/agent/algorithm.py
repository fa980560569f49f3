"""The seam between the loops and the algorithms: what an algorithm must offer, and nothing about how it learns.

An algorithm is one file in `services/agent/algorithms/` with a class `Policy` (how it acts: numpy alone, so that an
actor needs no torch) and a class `Learner` (how it learns: torch). Both run the same forward pass of
`services/agent/networks.py`, which works on numpy arrays and torch tensors alike.

Parameters travel as flat dicts `name -> array`; names are `<role>.<layer>.<weight|bias>`, as in `policy.0.weight`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Protocol

import numpy as np
import numpy.typing as npt

from services.agent.normalizer import Normalizer
from services.common.batch import Batch

Parameters = Mapping[str, npt.NDArray[np.float32]]
Observation = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Decision:
    """What a policy did for B lanes. The two critic values give the replay its first TD errors (numerics: Ape-X)."""

    action: npt.NDArray[Any]  # <float32>[B, A] clipped into the bounds, or <int64>[B]
    q_taken: npt.NDArray[np.float32]  # [B], critics' mean at the executed action
    value: npt.NDArray[np.float32]  # [B], bootstrap value of the observation (td3: min of critics at pi(s); dqn: max)


class Policy(Protocol):
    """How an algorithm acts. Holds no parameters: they are swapped as whole sets by the caller.

    Observations and parameters are numpy arrays, or torch tensors of one device: what comes back is of the same kind.
    """

    def act(self, parameters: Parameters, observation: Observation, rng: np.random.Generator) -> Decision:
        """Explore: act with this actor's rung of the exploration ladder."""

    def act_greedily(self, parameters: Parameters, observation: Observation) -> npt.NDArray[Any]:
        """Act without exploration (evaluation); the action alone."""

    def value(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.float32]:
        """Bootstrap value <float32>[B] of observations that nobody acts on (final observations)."""

    def anneal(self, updates: int) -> None:
        """From now on explore as parameters with `updates` behind them are to; a fixed ladder stays as it is."""

    def exploration(self) -> npt.NDArray[np.float32]:
        """The ladder's value per lane now, <float32>[num_lanes] (sigma or epsilon), for metrics."""


@dataclass(frozen=True)
class Update:
    """The result of one learner update."""

    td_error: npt.NDArray[np.float32]  # [N], mean |delta| of the critics, unweighted: the new priorities before + 1e-6
    # By the names of `health.TEXTS`; empty for most updates, since each report waits for the device.
    metrics: Dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Contribution:
    """What one contributor, the chief or a helper, adds to an update: mean gradients over its batch."""

    # By the parameters' names; those of a segment without a step at this update (a delayed policy) are not there.
    gradients: Dict[str, npt.NDArray[np.float32]]
    td_error: npt.NDArray[np.float32]  # [N], as in Update


class NonFiniteUpdate(Exception):
    """An update was stopped before it could harm the parameters: a gradient holds NaN or an infinity."""


class Learner(Protocol):
    """How an algorithm learns. One thread calls it.

    A chief by itself calls `update`. Where helpers contribute, each calls `compute` on parameters of the same number of
    updates, and the chief calls `apply` with the mean: an update whose gradients all are of the same parameters.
    """

    normalizer: Normalizer  # what observations and rewards are normalized with; published with each set

    @property
    def updates(self) -> int:
        """Critic updates done so far."""

    def update(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> Update:
        """Take one optimizer step on `batch`.

        Args:
            batch: numpy columns, see `services.common.batch.Batch`.
            importance_weights: <float32>[N], already divided by the largest.

        Raises:
            NonFiniteUpdate: a gradient is not finite; the parameters that it is for were not changed.
        """

    def compute(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> Contribution:
        """Gradients of the next update; changes nothing but the state of the generator.

        Raises:
            NonFiniteUpdate: they are not finite.
        """

    def apply(self, gradients: Mapping[str, npt.NDArray[np.float32]], rate_scale: float = 1.0) -> Dict[str, float]:
        """Take the step that `gradients` are for: those of `compute`, averaged over contributors.

        Args:
            gradients: by the parameters' names; a segment that is not there, or not due, takes no step.
            rate_scale: times each learning rate, for this step alone.

        Returns:
            Metrics, as in `Update`.

        Raises:
            NonFiniteUpdate: they are not finite; nothing was changed.
        """

    def learning_parameters(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of the set of role `learn`: all that `compute` depends on, targets included."""

    def load_learning_parameters(self, parameters: Parameters, updates: int) -> None:
        """Take the chief's set of role `learn`, which stands after `updates` updates.

        Raises:
            ValueError: names or shapes differ from this learner's; the message names the first that does.
        """

    def acting_parameters(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of the set of role `act`: the policy and the online critics."""

    def state(self, into: Optional[Mapping[str, npt.NDArray[Any]]] = None) -> Dict[str, npt.NDArray[Any]]:
        """A copy of everything a resume needs: parameters, targets, optimizer moments, RNG, `updates`.

        Args:
            into: what an earlier call returned and nobody needs any more: its arrays are filled again.
        """

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """The inverse of `state`.

        Raises:
            ValueError: names or shapes differ from this learner's; the message names the first that does.
        """
