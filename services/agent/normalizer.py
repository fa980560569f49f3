"""Normalization: statistics of observations and a scale of rewards, frozen into each published set.

Actor and learner take them from the same set of parameters, so that for one version both see the same inputs:

    normalizer.<tensor>.mean, normalizer.<tensor>.std   <float32>[size], of each tensor that is normalized
    normalizer.reward_scale                             <float32>[], where it is not 1
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

import numpy as np
import numpy.typing as npt

from services.common.errors import UserError
from services.common.moments import Moments, normalized_tensors
from services.common.parameter_set import STATISTICS_PREFIX
from services.common.schema import Schema

REWARD_SCALE = f"{STATISTICS_PREFIX}reward_scale"
STEPS = f"{STATISTICS_PREFIX}steps"  # in a learner's state: steps behind the statistics
MIN_DEVIATION = 1e-3  # what hardly ever moves is not blown up
CLIP = 10.0  # normalized observations lie within +- this


def mean_name(tensor: str) -> str:
    return f"{STATISTICS_PREFIX}{tensor}.mean"


def std_name(tensor: str) -> str:
    return f"{STATISTICS_PREFIX}{tensor}.std"


def statistics_shapes(schema: Schema) -> Dict[str, Tuple[int, ...]]:
    """Names and shapes of all that a published set may hold beside the networks."""
    sizes = {spec.name: int(np.prod(spec.shape, dtype=np.int64)) for spec in schema.observation}
    shapes: Dict[str, Tuple[int, ...]] = {REWARD_SCALE: ()}
    for tensor in normalized_tensors(schema):
        shapes[mean_name(tensor)] = shapes[std_name(tensor)] = (sizes[tensor],)
    return shapes


def normalize(parameters: Mapping[str, Any], tensor: str, rows: Any) -> Any:
    """(x - mean) / std, clipped to +-CLIP; `rows` <float32>[N, size] themselves where the set has no statistics.

    Arrays or tensors, of `parameters` and `rows` alike.
    """
    mean = parameters.get(mean_name(tensor))
    if mean is None:
        return rows
    scaled = (rows - mean) / parameters[std_name(tensor)]
    return np.clip(scaled, -CLIP, CLIP, out=scaled) if isinstance(scaled, np.ndarray) else scaled.clamp_(-CLIP, CLIP)


def reward_scale(parameters: Mapping[str, Any]) -> float:
    """The scale of rewards that a set of parameters was trained with: its critics' values are in scaled rewards."""
    return float(parameters.get(REWARD_SCALE, 1.0))


class Normalizer:
    """The statistics that a learner trains with and publishes; until there are some, they change nothing."""

    def __init__(self, schema: Schema, *, observations: bool, reward_scale: float) -> None:
        """Begin with a mean of 0 and a deviation of 1.

        Args:
            schema: says which tensors there are; images (uint8) and flags (bool) are never normalized.
            observations: whether observations are normalized at all.
            reward_scale: rewards are multiplied by it.

        Raises:
            ValueError: the scale is not a number above 0.
        """
        if not (np.isfinite(reward_scale) and reward_scale > 0):
            raise ValueError(f"reward_scale is {reward_scale}; it must be a finite number above 0")
        self._sizes = {spec.name: int(np.prod(spec.shape, dtype=np.int64)) for spec in schema.observation}
        self._tensors = normalized_tensors(schema) if observations else ()
        self.steps = 0  # behind the statistics
        self.parameters: Dict[str, npt.NDArray[np.float32]] = {}
        for name in self._tensors:
            self.parameters[mean_name(name)] = np.zeros(self._sizes[name], np.float32)
            self.parameters[std_name(name)] = np.ones(self._sizes[name], np.float32)
        if reward_scale != 1.0:
            self.parameters[REWARD_SCALE] = np.array(reward_scale, np.float32)

    @property
    def reward_scale(self) -> float:
        return reward_scale(self.parameters)

    def take(self, moments: Mapping[str, Moments]) -> None:
        """Use these moments from now on; without tensors that are normalized nothing happens.

        Raises:
            UserError: an observation is too large to be normalized.
        """
        taken = {name: array for name, array in self.parameters.items() if name == REWARD_SCALE}
        for name in self._tensors:
            largest = np.finfo(np.float32).max
            mean, deviation = moments[name].mean, np.maximum(moments[name].deviation(), MIN_DEVIATION)
            if not ((np.abs(mean) <= largest) & (deviation <= largest)).all():
                raise UserError(
                    f"observation {name!r} has values too large to be normalized; let the environment scale it, or set "
                    "normalization.observations = false"
                )
            taken[mean_name(name)], taken[std_name(name)] = mean.astype(np.float32), deviation.astype(np.float32)
        self.steps = min((moments[name].count for name in self._tensors), default=0)
        self.parameters = taken

    def state(self) -> Dict[str, npt.NDArray[Any]]:
        """A copy of what `load_state` takes."""
        steps = {STEPS: np.array(self.steps, np.int64)} if self._tensors else {}
        return {**self.copy(), **steps}

    def copy(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of the parameters."""
        return {name: array.copy() for name, array in self.parameters.items()}

    def load(self, parameters: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over the statistics of a published set; names and shapes are the caller's to check."""
        self.parameters = {name: np.array(parameters[name], np.float32) for name in self.parameters}

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """The inverse of `state`; names and shapes are the caller's to check."""
        self.load(state)
        self.steps = int(state[STEPS]) if self._tensors else 0
