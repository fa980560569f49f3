"""The environment contract: what an actor asks of any simulator.

An environment is a batch of ``num_lanes`` independent episodes that are stepped together. It needs no base class:
anything with these members will do. Observations are dicts of named tensors from the first day (`policy`, and
`states` for an asymmetric critic).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Protocol, Tuple

import numpy as np
import numpy.typing as npt

from services.common.schema import ActionSpec, TensorSpec

Observation = Dict[str, npt.NDArray[Any]]  # name -> <dtype>[num_lanes, *shape]


class AutoReset(str, enum.Enum):
    """When an environment begins the next episode of a lane whose episode ended."""

    NEXT_STEP = "next_step"  # the step after the end ignores its action and returns the new episode's first observation
    SAME_STEP = "same_step"  # the step that ends an episode already returns the new episode's first observation
    DISABLED = "disabled"  # the caller resets lanes by mask


@dataclass
class EnvStep:
    """What one call of `step` returned, for B = num_lanes lanes."""

    observation: Observation  # what the policy acts on next: name -> [B, ...]
    true_next_observation: Optional[Observation]  # what the action led to, before any reset; None if it cannot be had
    reward: npt.NDArray[np.float32]  # [B]
    terminated: npt.NDArray[np.bool_]  # [B], the task ended the episode: no value beyond it
    truncated: npt.NDArray[np.bool_]  # [B], a limit cut the episode: bootstrap from the true next observation
    valid: npt.NDArray[np.bool_]  # [B], False for the reset row of next_step mode: not a transition
    metrics: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)  # name -> [B], e.g. success
    # [B], truncated here, and `true_next_observation` holds nothing true: the step counts as lost. None: nowhere.
    no_final: Optional[npt.NDArray[np.bool_]] = None


class VectorEnv(Protocol):
    """A batch of environments. Arrays handed out may be reused by the next call: callers copy what they keep."""

    @property
    def num_lanes(self) -> int: ...

    @property
    def autoreset(self) -> AutoReset: ...

    @property
    def observation_spec(self) -> Tuple[TensorSpec, ...]: ...

    @property
    def action_spec(self) -> ActionSpec: ...

    def reset(self, seed: Optional[int] = None) -> Observation:
        """Begin a new episode in every lane."""

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """Apply one action a lane.

        Args:
            action: <float32>[B, *shape] within the bounds, or <int64>[B] for discrete actions.
        """

    def close(self) -> None:
        """Free the simulator; harmless if called twice."""


class MaskedResetEnv(VectorEnv, Protocol):
    """An environment that resets no lane by itself, and those that it is told to."""

    def reset_lanes(self, mask: npt.NDArray[np.bool_]) -> Observation:
        """Begin a new episode in the lanes of a mask <bool>[B], and return the observation of all."""


class Renderable(Protocol):
    """An environment that can also draw a lane (the evaluator's video asks for it)."""

    def render(self, lane: int = 0, width: int = 640, height: int = 480) -> npt.NDArray[np.uint8]:
        """Draw one lane.

        Returns:
            The picture, <uint8>[height, width, 3].

        Raises:
            RuntimeError: this machine has no renderer; the message says what to install.
        """
