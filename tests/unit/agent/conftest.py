"""Batches for the algorithms' tests."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import numpy as np
import pytest

from services.common.batch import Batch
from services.common.schema import Schema

BatchMaker = Callable[..., Batch]


def _observation(schema: Schema, size: int, rng: np.random.Generator) -> Dict[str, np.ndarray]:
    observation: Dict[str, np.ndarray] = {}
    for spec in schema.observation:
        values = rng.standard_normal((size, *spec.shape))
        observation[spec.name] = (values * 50 + 128).clip(0, 255) if spec.dtype == "uint8" else values
        observation[spec.name] = observation[spec.name].astype(spec.dtype)
    return observation


@pytest.fixture
def make_batch() -> BatchMaker:
    def make(schema: Schema, size: int, seed: int = 0, **columns: Any) -> Batch:
        rng = np.random.default_rng(seed)
        action = schema.action
        actions: Optional[np.ndarray] = None
        if action.is_discrete:
            actions = rng.integers(action.num_actions, size=size)
        else:
            actions = rng.uniform(action.low, action.high, (size, *action.shape)).astype(np.float32)
        values: Dict[str, Any] = {
            "keys": np.arange(size),
            "probability": np.full(size, 1 / size),
            "priority": np.ones(size),
            "times_sampled": np.ones(size, dtype=np.int64),
            "observation": _observation(schema, size, rng),
            "action": actions,
            "n_step_return": rng.standard_normal(size).astype(np.float32),
            "discount": rng.choice([0.0, 0.9, 0.81], size).astype(np.float32),
            "next_observation": _observation(schema, size, rng),
            "policy_version": np.zeros(size, dtype=np.int64),
            "num_items": size,
        }
        values.update(columns)
        return Batch(**values)

    return make
