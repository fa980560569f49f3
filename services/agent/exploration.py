"""The exploration ladder: every lane of every actor explores by its own, fixed amount (Horgan et al. 2018)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


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


def add_noise(
    actions: npt.NDArray[np.float32], stddev: npt.NDArray[np.float32], rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Normalized actions [B, A] with Gaussian noise of a standard deviation a lane, clipped to [-1, 1]."""
    noise = rng.standard_normal(actions.shape, dtype=np.float32) * stddev[:, None]
    return np.clip(actions + noise, -1, 1)


def choose_epsilon_greedily(
    values: npt.NDArray[np.float32], epsilon: npt.NDArray[np.float32], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """The best action of each lane, or a uniformly drawn one at the lane's chance.

    Args:
        values: <float32>[B, num_actions].
        epsilon: <float32>[B].
        rng: where the draws come from.

    Returns:
        <int64>[B].
    """
    num_lanes, num_actions = values.shape
    explore = rng.random(num_lanes) < epsilon
    return np.where(explore, rng.integers(num_actions, size=num_lanes), values.argmax(axis=1)).astype(np.int64)
