from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import pytest

from services.common.batch import Batch
from services.common.rpc import Stopped
from services.learner.importance import importance_weights
from services.learner.loop import train
from services.learner.replay_client import DrawnBatch
from tests.fakes import FakeLearner


class Batches:
    """Batches without end, or `available` of them; notes the priorities that come back."""

    def __init__(self, available: int = 10**6) -> None:
        self.drawn: List[DrawnBatch] = []
        self.reported: List[Tuple[DrawnBatch, Any]] = []
        self._available = available

    def next(self) -> DrawnBatch:
        if len(self.drawn) == self._available:
            raise Stopped
        n, number = 3, len(self.drawn)
        zeros: Any = np.zeros(n, np.float32)
        batch = Batch(
            keys=np.arange(n) + 100 * number,
            probability=np.array([0.5, 0.3, 0.2]),
            priority=np.ones(n),
            times_sampled=np.ones(n, np.int64),
            observation={},
            action=zeros,
            n_step_return=zeros,
            discount=zeros,
            next_observation={},
            policy_version=np.zeros(n, np.int64),
            num_items=10,
        )
        self.drawn.append(DrawnBatch(batch, number))
        return self.drawn[-1]

    def report(self, drawn: DrawnBatch, td_error: Any) -> None:
        self.reported.append((drawn, td_error))


class Monitor:
    """Notes the updates that it was told of."""

    def __init__(self) -> None:
        self.updates: List[int] = []

    def after_update(self, updates: int, batch: Batch, update: Any) -> None:
        assert len(update.td_error) == len(batch)
        self.updates.append(updates)


def _train(learner: FakeLearner, batches: Batches, **changes: Any) -> Tuple[Monitor, List[str]]:
    monitor = Monitor()
    events: Any = []
    arguments: Any = {
        "publish_if_due": lambda: events.append(f"publish {learner.updates}"),
        "checkpoint_if_due": lambda: events.append(f"checkpoint {learner.updates}"),
        "max_updates": 5,
        "importance_exponent": 0.4,
        **changes,
    }
    train(learner, batches, monitor, **arguments)  # type: ignore[arg-type]
    return monitor, events


def test_one_update_a_batch_until_the_last_with_priorities_to_the_batch_they_belong_to() -> None:
    learner, batches = FakeLearner(), Batches()
    monitor, _ = _train(learner, batches)
    assert learner.updates == 5
    assert monitor.updates == [1, 2, 3, 4, 5]
    assert [drawn for drawn, _ in batches.reported] == batches.drawn
    assert len(batches.drawn) == 5
    for drawn, td_error in batches.reported:
        np.testing.assert_array_equal(td_error, drawn.batch.keys)


def test_publishing_and_checkpoints_are_asked_for_after_each_update() -> None:
    _, events = _train(FakeLearner(), Batches())
    assert events == [f"{what} {updates}" for updates in range(1, 6) for what in ("publish", "checkpoint")]


def test_the_learner_gets_the_importance_weights_of_its_batch() -> None:
    learner, batches = FakeLearner(), Batches()
    _train(learner, batches, max_updates=1, importance_exponent=0.9)
    np.testing.assert_array_equal(learner.weights[0], importance_weights(batches.drawn[0].batch, 0.9))


def test_a_run_that_is_done_draws_nothing() -> None:
    learner, batches = FakeLearner(), Batches()
    learner.updates = 5
    _train(learner, batches)
    assert batches.drawn == []


def test_a_stop_ends_it_between_two_updates() -> None:
    learner, batches = FakeLearner(), Batches(available=2)
    with pytest.raises(Stopped):
        _train(learner, batches)
    assert learner.updates == 2
    assert len(batches.reported) == 2
