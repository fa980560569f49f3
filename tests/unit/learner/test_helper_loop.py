from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import pytest

from services.agent.algorithm import Contribution, NonFiniteUpdate
from services.common.batch import Batch
from services.common.errors import UserError
from services.common.metrics import Metrics
from services.common.parameter_set import ParameterSet
from services.common.rpc import Stopped
from services.learner.drawn_batch import DrawnBatch
from services.learner.gradients import GradientEncoder
from services.learner.helper_loop import contribute
from services.learner.helper_metrics import HelperMetrics
from services.learner.importance import importance_weights
from shoal.v1 import gradients_pb2

Status = gradients_pb2.PushStatus
N = 4


def drawn_of(number: int) -> DrawnBatch:
    zeros: Any = np.zeros(N, np.float32)
    batch = Batch(
        keys=np.arange(N) + 100 * number,
        probability=np.array([0.4, 0.3, 0.2, 0.1]),
        priority=np.ones(N),
        times_sampled=np.ones(N, np.int64),
        observation={},
        action=zeros,
        n_step_return=zeros,
        discount=zeros,
        next_observation={},
        policy_version=np.zeros(N, np.int64),
        num_items=10,
    )
    return DrawnBatch(batch, 1)


class Batches:
    """A batch for each asking, but for the numbers in `missing`."""

    def __init__(self, missing: Tuple[int, ...] = ()) -> None:
        self.reported: List[Any] = []
        self._missing = missing
        self._asked = 0

    def next_within(self, timeout_s: float) -> Optional[DrawnBatch]:
        assert timeout_s > 0
        self._asked += 1
        return None if self._asked in self._missing else drawn_of(self._asked)

    def report(self, drawn: DrawnBatch, td_error: Any) -> None:
        np.testing.assert_array_equal(td_error, drawn.batch.keys)
        self.reported.append(int(drawn.batch.keys[0]) // 100)


class Chief:
    """Hands out bases 1, 2, ..., answers with the statuses in turn, and is finished after the last."""

    def __init__(self, *statuses: Any) -> None:
        self.pushed: List[Tuple[int, int, Any]] = []
        self._statuses = list(statuses)

    def next_base(self) -> Optional[ParameterSet]:
        number = len(self.pushed) + 1
        if len(self.pushed) == len(self._statuses):
            return None
        return ParameterSet(10 * number, number, "digest", {"w": np.full(3, number, np.float32)}, 5)

    def push(self, base: ParameterSet, num_samples: int, encoded: Any) -> int:
        self.pushed.append((base.version, num_samples, encoded))
        status = self._statuses[len(self.pushed) - 1]
        if isinstance(status, Exception):
            raise status
        return int(status)


class Learner:
    """Its gradient is a third of what it loaded; the updates in `sick` have none."""

    def __init__(self, sick: Tuple[int, ...] = ()) -> None:
        self.updates = 0
        self.loaded: Dict[str, Any] = {}
        self._sick = sick

    def load_learning_parameters(self, parameters: Any, updates: int) -> None:
        if set(parameters) != {"w"}:
            raise ValueError("the learner's state lacks 'w'")
        self.loaded, self.updates = parameters, updates

    def compute(self, batch: Batch, weights: Any) -> Contribution:
        np.testing.assert_array_equal(weights, importance_weights(batch, 0.5))
        if self.updates in self._sick:
            raise NonFiniteUpdate("the gradient of w is not finite")
        return Contribution({"w": self.loaded["w"] / np.float32(3)}, batch.keys.astype(np.float32))


class Helped:
    """One run of the loop, and what it did."""

    def __init__(self, chief: Any, learner: Any = None, batches: Any = None) -> None:
        self.chief, self.learner = chief, learner or Learner()
        self.batches = batches or Batches()
        self.encoder = GradientEncoder("int8", 1024, True, "none")
        self.sick: List[Tuple[int, str, int]] = []
        self.sound: List[int] = []
        self.checkpoints: List[float] = []
        self.metrics = Metrics("helper", "test")

    def run(self) -> None:
        contribute(
            self.learner,
            self.batches,
            self.chief,
            self.encoder,
            HelperMetrics(self.metrics, queue_depth=lambda: 0),
            on_finite=lambda: self.sound.append(1),
            on_non_finite=lambda drawn, weights, reason, updates: self.sick.append((len(weights), reason, updates)),
            checkpoint_if_due=lambda: self.checkpoints.append(self.encoder.residual_norm),
            importance_exponent=0.5,
        )

    def count(self, name: str) -> float:
        value = self.metrics.registry.get_sample_value(f"shoal_helper_{name}", {"run": "test"})
        assert value is not None, name
        return value


OK, SCALED = Status.PUSH_STATUS_ACCEPTED, Status.PUSH_STATUS_SCALED


def test_a_gradient_a_base_with_priorities_to_the_batch_they_belong_to() -> None:
    helped = Helped(Chief(OK, SCALED, OK))
    helped.run()
    assert [(version, items) for version, items, _ in helped.chief.pushed] == [(10, N), (20, N), (30, N)]
    assert helped.batches.reported == [1, 2, 3]
    assert len(helped.checkpoints) == 3
    assert helped.learner.updates == 3
    assert helped.count("pushes_accepted_total") == 3
    assert helped.count("base_version") == 30
    assert helped.count("pushed_bytes_total") > 0


@pytest.mark.parametrize(
    "refusal", [Status.PUSH_STATUS_TOO_STALE, Status.PUSH_STATUS_NON_FINITE, Status.PUSH_STATUS_CHIEF_RESTARTED]
)
def test_a_refusal_sets_the_residual_back_and_an_acceptance_keeps_it(refusal: int) -> None:
    helped = Helped(Chief(OK, refusal, OK))
    helped.run()
    first, second, third = helped.checkpoints
    assert first > 0
    assert second == first
    assert third != second
    assert helped.count("pushes_refused_total") == 1
    assert helped.batches.reported == [1, 2, 3]  # TD errors are right, whatever becomes of the gradient


def test_an_unanswered_push_at_the_stop_counts_as_used() -> None:
    helped = Helped(Chief(OK, Status.PUSH_STATUS_UNSPECIFIED))
    helped.run()
    assert helped.checkpoints[1] != helped.checkpoints[0]


def test_who_has_no_batch_or_no_finite_gradient_abstains() -> None:
    helped = Helped(Chief(OK, OK, OK, OK), Learner(sick=(3,)), Batches(missing=(2,)))
    helped.run()
    assert [(items, encoded is None) for _, items, encoded in helped.chief.pushed] == [
        (N, False),
        (0, True),
        (0, True),
        (N, False),
    ]
    assert helped.sick == [(N, "the gradient of w is not finite", 3)]
    assert len(helped.sound) == 2  # which begin the count of sick ones in a row anew
    assert helped.batches.reported == [1, 4]
    assert helped.count("pushes_abstained_total") == 2


def test_a_value_that_cannot_be_sent_abstains_too() -> None:
    class Huge(Learner):
        def compute(self, batch: Batch, weights: Any) -> Contribution:
            return Contribution({"w": np.full(3, 3e38, np.float32)}, batch.keys.astype(np.float32))

    helped = Helped(Chief(OK), Huge())
    helped.run()
    assert helped.chief.pushed[0][1:] == (0, None)
    assert len(helped.sick) == 1
    assert helped.batches.reported == [1]


def test_a_stop_in_a_push_ends_it() -> None:
    helped = Helped(Chief(OK, Stopped()))
    with pytest.raises(Stopped):
        helped.run()
    assert len(helped.checkpoints) == 1


def test_parameters_of_other_networks_are_told() -> None:
    class Other(Chief):
        def next_base(self) -> Optional[ParameterSet]:
            return ParameterSet(1, 0, "digest", {"v": np.zeros(1, np.float32)}, 5)

    with pytest.raises(UserError, match=r"do not fit this helper: .*; start it with the chief's run file"):
        Helped(Other(OK)).run()
