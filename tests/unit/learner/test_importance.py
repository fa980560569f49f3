from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from services.common.batch import Batch
from services.learner.importance import importance_weights

MakeBatch = Callable[..., Batch]


@pytest.fixture
def make_batch() -> MakeBatch:
    def make(probability: Any, num_items: int) -> Batch:
        n = len(probability)
        column: Any = np.zeros(n, np.float32)
        return Batch(
            keys=np.arange(n),
            probability=np.array(probability, np.float64),
            priority=np.ones(n),
            times_sampled=np.ones(n, np.int64),
            observation={},
            action=column,
            n_step_return=column,
            discount=column,
            next_observation={},
            policy_version=np.zeros(n, np.int64),
            num_items=num_items,
        )

    return make


def test_weights_are_those_of_a_hand(make_batch: MakeBatch) -> None:
    # (N P)^-0.5 = 1 / sqrt(0.4), 1 / sqrt(1.6), 1 / sqrt(6.4): the first is the largest; ratios 1, 1/2, 1/4.
    weights = importance_weights(make_batch([0.1, 0.4, 1.6], 4), 0.5)
    np.testing.assert_allclose(weights, [1.0, 0.5, 0.25], rtol=1e-6)
    assert weights.dtype == np.float32


def test_no_exponent_is_no_correction_and_one_is_a_full_one(make_batch: MakeBatch) -> None:
    batch = make_batch([0.5, 0.25], 10)
    np.testing.assert_array_equal(importance_weights(batch, 0.0), [1, 1])
    np.testing.assert_allclose(importance_weights(batch, 1.0), [0.5, 1.0])


def test_a_full_correction_makes_the_mean_unbiased(make_batch: MakeBatch) -> None:
    probability, values = np.array([0.7, 0.2, 0.1]), np.array([1.0, 2.0, 6.0])
    weights = importance_weights(make_batch(probability, 3), 1.0).astype(np.float64)
    assert np.sum(probability * weights * values) / np.sum(probability * weights) == pytest.approx(values.mean())


def test_tiny_chances_of_a_large_table_stay_finite(make_batch: MakeBatch) -> None:
    weights = importance_weights(make_batch([1e-12, 1.0], 10_000_000), 1.0)
    assert np.isfinite(weights).all()
    assert weights.max() == 1.0
