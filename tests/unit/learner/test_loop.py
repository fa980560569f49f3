from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import pytest

from services.agent.algorithm import NonFiniteUpdate, Update
from services.common.batch import Batch
from services.common.metrics import Metrics
from services.common.rpc import Stopped
from services.learner.batch_dump import BatchDump
from services.learner.drawn_batch import DrawnBatch
from services.learner.importance import importance_weights
from services.learner.loop import train
from services.learner.nan_guard import NanGuard, TooManyNonFiniteUpdates
from services.learner.replay_client import Paused
from tests.fakes import FakeLearner, FakeLog, FakeStaleness


class Batches:
    """Batches without end, or `available` of them; notes the priorities that come back."""

    def __init__(self, available: int = 10**6) -> None:
        self.drawn: List[DrawnBatch] = []
        self.reported: List[Tuple[DrawnBatch, Any]] = []
        self._available = available
        self.pauses: List[int] = []  # draws before which the run is drained

    def next(self) -> DrawnBatch:
        if len(self.drawn) in self.pauses:
            self.pauses.remove(len(self.drawn))
            raise Paused
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


def _train(
    learner: FakeLearner, batches: Batches, staleness: Optional[FakeStaleness] = None, **changes: Any
) -> Tuple[Monitor, List[str]]:
    monitor = Monitor()
    guard = NanGuard(
        learner,  # type: ignore[arg-type]
        BatchDump(Path("/dev/null/no folder"), FakeLog(), max_files=20),  # type: ignore[arg-type]
        Metrics("learner", "run-a"),
        FakeLog(),  # type: ignore[arg-type]
        max_in_row=3,
        report=batches.report,
        on_stopped=lambda _count: None,
    )
    events: Any = []
    arguments: Any = {
        "publish_if_due": lambda: events.append(f"publish {learner.updates}"),
        "checkpoint_if_due": lambda: events.append(f"checkpoint {learner.updates}"),
        "rest": lambda: events.append(f"rest {learner.updates}"),
        "max_updates": 5,
        "importance_exponent": 0.4,
        **changes,
    }
    train(learner, batches, guard, monitor, staleness or FakeStaleness(), **arguments)  # type: ignore[arg-type]
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


def test_a_batch_that_became_too_old_in_the_queue_is_not_trained_on() -> None:
    learner, batches, staleness = FakeLearner(), Batches(), FakeStaleness(stale=(1, 2))
    monitor, _ = _train(learner, batches, staleness, max_updates=2)
    assert learner.updates == 2
    assert staleness.seen == [(0, 0), (1, 1), (2, 1), (3, 1)]  # with the updates before the step
    assert monitor.updates == [1, 2]
    assert [drawn.table_id for drawn, _ in batches.reported] == [0, 3]


def test_a_drained_run_rests_until_it_goes_on_with_the_next_batch() -> None:
    learner, batches = FakeLearner(), Batches()
    batches.pauses = [0, 3]
    monitor, events = _train(learner, batches)
    assert monitor.updates == [1, 2, 3, 4, 5]
    assert [event for event in events if event.startswith("rest")] == ["rest 0", "rest 3"]
    assert events.index("rest 3") > events.index("checkpoint 3")
    assert batches.pauses == []


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


class SickLearner(FakeLearner):
    """Stops what it is told to, at the first step or, as a delayed policy, after the critics'."""

    def __init__(self, sick: Dict[int, str]) -> None:
        super().__init__()
        self.attempts = 0
        self._sick = sick  # attempt -> what happens at it

    def update(self, batch: Batch, importance_weights: Any) -> Update:
        self.attempts += 1
        how = self._sick.get(self.attempts, "")
        if how != "critics":
            update = super().update(batch, importance_weights)
        if how:
            raise NonFiniteUpdate(f"the gradient of {how} is not finite")
        return update


def test_a_stopped_update_is_none_and_training_goes_on() -> None:
    learner, batches = SickLearner({3: "critics", 4: "critics"}), Batches()
    monitor, events = _train(learner, batches)
    assert (learner.updates, learner.attempts) == (5, 7)
    assert monitor.updates == [1, 2, 3, 4, 5]
    assert [drawn.table_id for drawn, _ in batches.reported] == [0, 1, 4, 5, 6]
    # Asked once for each update, and not for the two that came to nothing.
    assert [event for event in events if event.startswith("publish")] == [f"publish {k}" for k in range(1, 6)]


def test_one_whose_critics_moved_counts_and_is_published() -> None:
    learner, batches = SickLearner({4: "policy", 5: "policy"}), Batches()
    monitor, events = _train(learner, batches)
    assert (learner.updates, learner.attempts) == (5, 5)
    assert monitor.updates == [1, 2, 3]  # nothing is known of the others
    assert [event for event in events if event.startswith("publish")] == [f"publish {k}" for k in range(1, 6)]


def test_stopped_updates_without_end_end_the_training() -> None:
    learner, batches = SickLearner(dict.fromkeys((1, 2, 4, 5, 6), "critics")), Batches()
    with pytest.raises(TooManyNonFiniteUpdates, match=r"3 updates in a row were not finite .* gradient of critics"):
        _train(learner, batches)
    assert learner.attempts == 6  # two in a row, one that was sound, three in a row
    assert learner.updates == 1
