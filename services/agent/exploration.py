"""The exploration ladder: every lane of every actor explores by its own, fixed amount (Horgan et al. 2018)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from services.agent.networks import clip, like


def ladder_quantiles(num_lanes: int, actor_index: int, num_actors: int) -> npt.NDArray[np.float64]:
    """Places of an actor's lanes on the ladder that all actors share.

    Lane l of actor a has rung i = l * num_actors + a of N = num_lanes * num_actors, so that each actor spans the ladder
    and no two lanes share a rung: u = i / (N - 1). A single lane stands in the middle, u = 1/2.

    Args:
        num_lanes: environments of this actor (the others are taken to have as many).
        actor_index: which actor this is, from 0.
        num_actors: configured number of actors.

    Returns:
        u in [0, 1], <float64>[num_lanes].

    Raises:
        ValueError: a count below 1, or an index outside of the actors.
    """
    if num_lanes < 1 or num_actors < 1:
        raise ValueError(f"a ladder needs lanes and actors, got {num_lanes} lanes and {num_actors} actors")
    if not 0 <= actor_index < num_actors:
        raise ValueError(
            f"actor index {actor_index} is not in 0..{num_actors - 1}; raise num_actors or lower the index"
        )
    rungs = num_lanes * num_actors
    if rungs == 1:
        return np.array([0.5])
    return (np.arange(num_lanes, dtype=np.float64) * num_actors + actor_index) / (rungs - 1)


def noise_ladder(quantiles: npt.NDArray[np.float64], low: float, high: float) -> npt.NDArray[np.float32]:
    """Standard deviations sigma = low + (high - low) u of Gaussian noise, in normalized actions, <float32>[num_lanes].

    Raises:
        ValueError: `low` is above `high`.
    """
    if low > high:
        raise ValueError(f"noise_min {low} is above noise_max {high}; swap them")
    return (low + (high - low) * quantiles).astype(np.float32)


def epsilon_ladder(quantiles: npt.NDArray[np.float64], base: float, exponent: float) -> npt.NDArray[np.float32]:
    """Chances of a random action epsilon = base^(1 + exponent u), <float32>[num_lanes] (Horgan et al. 2018)."""
    return (base ** (1 + exponent * quantiles)).astype(np.float32)


def annealed_scale(updates: int, anneal_updates: int, final_scale: float) -> float:
    """What the whole ladder is multiplied by: 1 at first, `final_scale` after `anneal_updates`, linear between.

    Args:
        updates: behind the parameters that act.
        anneal_updates: 0: the ladder is fixed, the scale is always 1.
        final_scale: reached at `anneal_updates`, and kept.
    """
    if anneal_updates == 0:
        return 1.0
    return 1.0 + (final_scale - 1.0) * min(1.0, updates / anneal_updates)


def add_noise(actions: Any, stddev: npt.NDArray[np.float32], rng: np.random.Generator) -> Any:
    """Normalized actions [B, A] with Gaussian noise of a standard deviation a lane, clipped to [-1, 1].

    Actions are an array or a tensor; the noise is drawn on the host, so that every device explores alike.
    """
    noise = rng.standard_normal(tuple(actions.shape), dtype=np.float32)
    noise *= stddev[:, None]
    return clip(actions + like(noise, actions), -1, 1)


def choose_epsilon_greedily(values: Any, epsilon: npt.NDArray[np.float32], rng: np.random.Generator) -> Any:
    """The best action of each lane, or a uniformly drawn one at the lane's chance.

    Args:
        values: <float32>[B, num_actions], array or tensor.
        epsilon: <float32>[B].
        rng: where the draws come from.

    Returns:
        <int64>[B], as `values` is.
    """
    num_lanes, num_actions = values.shape
    explore = rng.random(num_lanes) < epsilon
    drawn = rng.integers(num_actions, size=num_lanes)
    if isinstance(values, np.ndarray):
        return np.where(explore, drawn, values.argmax(axis=1)).astype(np.int64)
    return like(drawn, values).where(like(explore, values), values.argmax(dim=1))
