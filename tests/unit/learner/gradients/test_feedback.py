"""What error feedback is for: small components that share a block with large ones for long."""

from __future__ import annotations

from typing import Callable, Optional

import numpy as np
import pytest

from services.learner.gradients import GradientEncoder, decode_gradients

NUM_STEEP, NUM_FLAT = 16, 1008  # of one block of 1024
CURVATURE_SPREAD = 1e4
NUM_STEPS = 3_000
LEARNING_RATE = 0.01

Transport = Callable[[np.ndarray], np.ndarray]


def _transport(*, feedback: bool) -> Transport:
    encoder = GradientEncoder("int8", 1024, feedback, "none")

    def send(gradient: np.ndarray) -> np.ndarray:
        encoded = encoder.encode({"x": gradient})
        received = decode_gradients(encoded.segments, encoded.crc32c, {"x": gradient.shape})["x"]
        encoder.commit()
        return received

    return send


def _flat_error(transport: Optional[Transport]) -> float:
    """Adam on sum c_i x_i^2 / 2 with noise that keeps the steep coordinates' gradients large for ever.

    Returns:
        Root mean square of the flat coordinates, which all began at 1, after the last step.
    """
    rng = np.random.default_rng(0)
    curvature = np.concatenate([np.full(NUM_STEEP, CURVATURE_SPREAD), np.ones(NUM_FLAT)])
    x, mean, square = np.ones(curvature.size), np.zeros(curvature.size), np.zeros(curvature.size)
    for step in range(1, NUM_STEPS + 1):
        gradient = (curvature * (x + 0.1 * rng.standard_normal(x.size))).astype(np.float32)
        if transport is not None:
            gradient = transport(gradient)
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient.astype(np.float64) ** 2 - square)
        x -= LEARNING_RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return float(np.sqrt((x[NUM_STEEP:] ** 2).mean()))


def test_flat_coordinates_beside_steep_ones_are_learned_with_feedback_alone() -> None:
    plain = _flat_error(None)
    assert plain < 0.05
    assert _flat_error(_transport(feedback=True)) <= 1.5 * plain
    assert _flat_error(_transport(feedback=False)) > 0.5


@pytest.mark.parametrize("feedback", [True, False])
def test_the_sum_of_many_pushes_follows_with_feedback_alone(feedback: bool) -> None:
    rng = np.random.default_rng(0)
    drift = rng.standard_normal(1024) * 0.01
    drift[0] = 0.0
    transport = _transport(feedback=feedback)
    sent, wanted = np.zeros(1024), np.zeros(1024)
    for _ in range(100):
        gradient = (drift + rng.standard_normal(1024) * 1e-3).astype(np.float32)
        gradient[0] = 10.0  # the block's scale is that of one large value
        wanted += gradient
        sent += transport(gradient)
    error = np.linalg.norm((sent - wanted)[1:]) / np.linalg.norm(wanted[1:])
    assert (error < 0.05) == feedback
