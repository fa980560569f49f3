"""What DDP's hooks send, by their arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from bench.gradients.ddp_case import matrices, sent_bytes
from bench.gradients.recording import POWER_SGD_RANK


def test_stacks_are_taken_apart_into_matrices_and_vectors() -> None:
    stacked = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    apart = matrices({"w": stacked, "b": np.zeros((2, 1, 4), np.float32), "policy": np.ones((3, 4), np.float32)})
    assert {name: part.shape for name, part in apart.items()} == {
        "w.0": (3, 4),
        "w.1": (3, 4),
        "b.0": (4,),
        "b.1": (4,),
        "policy": (3, 4),
    }
    np.testing.assert_array_equal(apart["w.1"], stacked[1])


def test_power_sgd_sends_two_factors_where_they_are_smaller() -> None:
    large, small, vector = {"a": (100, 200)}, {"a": (4, 4)}, {"a": (50,)}
    assert sent_bytes("powersgd", large) == 4 * 300 * POWER_SGD_RANK
    assert sent_bytes("powersgd", small) == 4 * 16
    assert sent_bytes("powersgd", vector) == 4 * 50
    assert sent_bytes("fp16", large) * 2 == sent_bytes("none", large) == 4 * 20_000
