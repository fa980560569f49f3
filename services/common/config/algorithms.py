"""Settings of each algorithm; a section of the run file each, named as the algorithm."""

from __future__ import annotations

from typing import Tuple

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import Annotated

from services.common.config.values import Count, Width


class Section(BaseModel):
    """A section of the run file: unknown keys are errors, values do not change after checking."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        use_attribute_docstrings=True,
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
    )


class Td3Settings(Section):
    """`[td3]`: Ape-X DPG with twin critics (Fujimoto 2018; Horgan 2018), continuous actions."""

    hidden_sizes: Tuple[Width, ...] = Field((128, 128), min_length=1)
    """Width of each hidden layer of policy and critics."""
    policy_learning_rate: float = Field(1e-3, gt=0)
    """Adam step size of the policy."""
    critic_learning_rate: float = Field(1e-3, gt=0)
    """Adam step size of the critics."""
    target_update_rate: float = Field(0.005, gt=0, le=1)
    """Share of the online parameters mixed into the targets at each update (tau)."""
    policy_period: int = Field(2, ge=1)
    """Critic updates for each policy update."""
    smoothing_stddev: float = Field(0.2, ge=0)
    """Standard deviation of the target policy's smoothing noise, in normalized actions."""
    smoothing_clip: float = Field(0.5, ge=0)
    """Bound of the smoothing noise, in normalized actions."""
    noise_min: float = Field(0.05, ge=0)
    """Exploration noise of the ladder's first rung, in normalized actions."""
    noise_max: float = Field(0.8, ge=0)
    """Exploration noise of the ladder's last rung, in normalized actions."""
    noise_anneal_updates: Annotated[Count, Field(ge=0)] = 0
    """Updates over which the whole ladder shrinks to noise_final_scale of itself; 0: it is fixed."""
    noise_final_scale: float = Field(0.1, ge=0, le=1)
    """What is left of the ladder after noise_anneal_updates."""
    max_gradient_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm, per optimizer."""


class DqnSettings(Section):
    """`[dqn]`: Ape-X DQN, double and dueling (van Hasselt 2016; Wang 2016; Horgan 2018), discrete actions."""

    hidden_sizes: Tuple[Width, ...] = Field((128, 128), min_length=1)
    """Width of each hidden layer."""
    learning_rate: float = Field(5e-4, gt=0)
    """Adam step size."""
    target_update_period: int = Field(50, ge=1)
    """Updates after which the target network becomes a copy of the online one."""
    epsilon_base: float = Field(0.4, ge=0, le=1)
    """Random-action chance of the ladder's first rung: epsilon = base^(1 + alpha u) at quantile u."""
    epsilon_exponent: float = Field(7.0, ge=0)
    """How steeply epsilon falls along the ladder (alpha)."""
    epsilon_anneal_updates: Annotated[Count, Field(ge=0)] = 0
    """Updates over which the whole ladder shrinks to epsilon_final_scale of itself; 0: it is fixed."""
    epsilon_final_scale: float = Field(0.1, ge=0, le=1)
    """What is left of the ladder after epsilon_anneal_updates."""
    max_gradient_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
