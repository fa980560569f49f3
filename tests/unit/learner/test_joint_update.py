from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from services.agent.algorithm import Contribution, NonFiniteUpdate, Update
from services.common.batch import Batch
from services.common.config.algorithms import Td3Settings
from services.common.metrics import Metrics
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.learner.batch_dump import BatchDump
from services.learner.contributions import AsynchronousContributions, Share, SynchronousContributions
from services.learner.drawn_batch import DrawnBatch
from services.learner.gradient_exchange import GradientExchange
from services.learner.gradient_metrics import GradientMetrics
from services.learner.helpers import Answer, Helpers, PushStatus
from services.learner.importance import importance_weights
from services.learner.joint_update import AsynchronousUpdate, SynchronousUpdate
from services.learner.loop import train
from services.learner.nan_guard import NanGuard
from tests.fakes import FakeClock, FakeLog, FakeStaleness
from tests.unit.learner.plain_td3 import PlainTd3

SCHEMA = Schema((TensorSpec("policy", "float32", (5,)),), ActionSpec((-1.0,) * 3, (1.0,) * 3))
SETTINGS = Td3Settings(hidden_sizes=(16, 16))
N = 32


def batch_of(seed: int, n: int = N) -> Batch:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    return Batch(
        keys=np.arange(n) + n * seed,
        probability=rng.uniform(0.001, 0.1, n),
        priority=np.ones(n),
        times_sampled=np.ones(n, np.int64),
        observation={"policy": normal(n, 5)},
        action=rng.uniform(-1, 1, (n, 3)).astype(np.float32),
        n_step_return=normal(n),
        discount=rng.choice([0.0, 0.9, 0.81], n).astype(np.float32),
        next_observation={"policy": normal(n, 5)},
        policy_version=np.zeros(n, np.int64),
        num_items=100,
    )


class Batches:
    """The batches of the seeds 0, 1, 2, ..., and what came back for each."""

    def __init__(self) -> None:
        self.td_errors: List[Any] = []
        self._next = 0

    def next(self) -> DrawnBatch:
        self._next += 1
        return DrawnBatch(batch_of(self._next - 1), 1)

    def report(self, drawn: DrawnBatch, td_error: Any) -> None:
        assert drawn.batch.keys[0] == N * len(self.td_errors)
        self.td_errors.append(td_error)


class Monitor:
    def after_update(self, updates: int, batch: Batch, update: Any) -> None: ...


class Chief:
    """A learner and its update, with or without helpers; `published` are the learn sets' updates by version."""

    def __init__(self, learner: Any, clock: FakeClock, *, accumulate: int = 0) -> None:
        self.learner = learner
        self.published: Dict[int, int] = {}
        self.registry = Metrics("learner", "test")
        helpers = Helpers(clock, lease_s=5.0, max_helpers=4)
        contributions: Any = SynchronousContributions()
        if accumulate:
            contributions = AsynchronousContributions(accumulate=accumulate, max_lag_updates=2)
        self.exchange = GradientExchange(helpers, contributions, answers_at_once=bool(accumulate))
        metrics = GradientMetrics(self.registry, num_helpers=lambda: self.exchange.num_living)
        more: Any = {"publish": self.publish, "stopping": threading.Event()}
        self.updater: Any = (
            AsynchronousUpdate(learner, self.exchange, contributions, metrics, **more)
            if accumulate
            else SynchronousUpdate(learner, self.exchange, metrics, **more)
        )

    def publish(self) -> int:
        version = 10 + len(self.published)
        self.published[version] = self.learner.updates
        return version

    def push(self, name: str, sequence: int, version: int, share: Share) -> Answer:
        """Take up a push without waiting for its step."""
        answer = self.exchange.begin(name, 1, sequence, version)
        return answer or self.exchange.add(1, sequence, version, share, 0.0)

    def answer(self, name: str, sequence: int) -> Answer:
        return self.exchange.wait(name, 1, sequence, 0.0, lambda: True)

    def sample(self, name: str) -> float:
        value = self.registry.registry.get_sample_value(f"shoal_learner_gradient_{name}", {"run": "test"})
        assert value is not None, name
        return value


def assert_same(ours: Any, theirs: Any) -> None:
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


@pytest.fixture
def td3() -> Any:
    pytest.importorskip("torch")
    from services.agent.algorithms import td3

    return td3.Learner(SCHEMA, SETTINGS, seed=3)


def test_a_chief_alone_is_plain_training_bit_for_bit(td3: Any, clock: FakeClock, tmp_path: Path) -> None:
    plain = PlainTd3(td3.learning_parameters(), SETTINGS, seed=3)
    chief, batches = Chief(td3, clock), Batches()
    train(
        chief.updater,
        batches,  # type: ignore[arg-type]
        NanGuard(
            chief.updater,
            BatchDump(tmp_path, FakeLog(), max_files=20),  # type: ignore[arg-type]
            Metrics("learner", "run-a"),
            FakeLog(),  # type: ignore[arg-type]
            max_in_row=1,
            report=batches.report,
            on_stopped=lambda _count: None,
        ),
        Monitor(),  # type: ignore[arg-type]
        FakeStaleness(),  # type: ignore[arg-type]
        publish_if_due=lambda: None,
        checkpoint_if_due=lambda: None,
        rest=lambda: None,
        max_updates=300,
        importance_exponent=0.4,
    )
    assert len(batches.td_errors) == td3.updates == 300
    for number, td_error in enumerate(batches.td_errors):
        batch = batch_of(number)
        np.testing.assert_array_equal(td_error, plain.update(batch, importance_weights(batch, 0.4)))
    assert_same(td3.learning_parameters(), plain.parameters())
    assert chief.published == {}  # what nobody computes on is not published


def test_one_contributor_is_the_plain_step_on_gradients_of_one_point_bit_for_bit(td3: Any, clock: FakeClock) -> None:
    plain = PlainTd3(td3.learning_parameters(), SETTINGS, seed=3)
    chief = Chief(td3, clock)
    chief.exchange.join("a", 1)  # it lives, and abstains from each step
    chief.exchange.open(chief.publish(), 0)
    for number in range(200):
        chief.push("a", number + 1, chief.exchange.newest_version, Share("a", 0, {}))
        batch = batch_of(number)
        weights = importance_weights(batch, 0.4)
        td_error = chief.updater.update(batch, weights).td_error
        np.testing.assert_array_equal(td_error, plain.update(batch, weights, simultaneous=True))
    assert_same(td3.learning_parameters(), plain.parameters())
    assert chief.sample("abstained_total") == 200


def test_the_gradients_of_two_halves_are_the_step_of_the_whole(td3: Any, clock: FakeClock) -> None:
    from services.agent.algorithms import td3 as algorithm

    settings = Td3Settings(hidden_sizes=(16, 16), smoothing_stddev=0.0)  # two generators draw other noise than one
    alone, chiefs, helpers = (algorithm.Learner(SCHEMA, settings, seed=3) for _ in range(3))
    chief = Chief(chiefs, clock)
    chief.exchange.join("a", 1)
    chief.exchange.open(chief.publish(), 0)
    ones: Any = np.ones(N, np.float32)
    for number in range(20):
        batch = batch_of(number)
        first, second = batch.split(N // 2)
        helpers.load_learning_parameters(chiefs.learning_parameters(), chiefs.updates)
        share = Share("a", N // 2, helpers.compute(second, ones[: N // 2]).gradients)
        assert chief.push("a", number + 1, chief.exchange.newest_version, share).status is PushStatus.PENDING
        chief.updater.update(first, ones[: N // 2])
        assert chief.answer("a", number + 1).status is PushStatus.ACCEPTED
        alone.apply(alone.compute(batch, ones).gradients)
        for name, array in alone.learning_parameters().items():
            np.testing.assert_allclose(chiefs.learning_parameters()[name], array, rtol=2e-2, atol=2e-4, err_msg=name)
    assert chief.published == {10 + n: n for n in range(21)}
    assert -1 <= chief.sample("cosine") <= 1
    assert chief.sample("contributors") == 2


class FakeLearner:
    """Its gradient is a constant; keeps what it was told to apply. NaN in the observation makes the gradient so."""

    def __init__(self) -> None:
        self.updates = 0
        self.alone = 0
        self.applied: List[Any] = []

    def update(self, batch: Batch, weights: Any) -> Update:
        self.updates += 1
        self.alone += 1
        return Update(batch.n_step_return)

    def compute(self, batch: Batch, weights: Any) -> Contribution:
        if np.isnan(batch.n_step_return).any():
            raise NonFiniteUpdate("the gradient of q is not finite")
        return Contribution({"q": np.ones(2, np.float32)}, batch.n_step_return)

    def apply(self, gradients: Any, rate_scale: float = 1.0) -> Dict[str, float]:
        if not np.isfinite(gradients["q"]).all():
            raise NonFiniteUpdate("the gradient of q is not finite")
        self.updates += 1
        self.applied.append((gradients["q"].tolist(), rate_scale))
        return {"loss": 0.5}


ONES: Any = np.ones(N, np.float32)


def give(name: str, value: float, items: int = N) -> Share:
    return Share(name, items, {"q": np.full(2, value, np.float32)})


def test_when_the_last_helper_is_gone_training_goes_on_alone_and_its_base_ends(clock: FakeClock) -> None:
    chief = Chief(FakeLearner(), clock)
    chief.exchange.join("a", 1)
    chief.exchange.open(chief.publish(), 0)
    chief.push("a", 1, 10, give("a", 3.0))
    shown = chief.updater.update(batch_of(0), ONES).metrics
    assert shown == {"loss": 0.5, "gradient_contributors": 2, "gradient_cosine": pytest.approx(1.0)}
    assert chief.learner.applied == [([2.0, 2.0], 1.0)]
    clock.now_s += 6
    chief.updater.update(batch_of(1), ONES)
    assert (chief.learner.updates, chief.learner.alone) == (2, 1)
    assert chief.push("a", 2, 11, give("a", 3.0)).status is PushStatus.TOO_STALE
    # That call says that it lives again: it counts from the next base on.
    chief.push("a", 3, chief.exchange.newest_version, give("a", 3.0))
    clock.now_s += 6
    chief.updater.update(batch_of(2), ONES)
    assert chief.learner.alone == 2


def test_the_chiefs_own_gradient_that_is_not_finite_leaves_the_others_waiting(clock: FakeClock) -> None:
    chief = Chief(FakeLearner(), clock)
    chief.exchange.join("a", 1)
    chief.exchange.open(chief.publish(), 0)
    chief.push("a", 1, 10, give("a", 3.0))
    sick = batch_of(0)
    sick.n_step_return[3] = np.nan
    with pytest.raises(NonFiniteUpdate):
        chief.updater.update(sick, ONES)
    assert chief.learner.updates == 0
    assert chief.answer("a", 1).status is PushStatus.PENDING
    chief.updater.update(batch_of(1), ONES)
    assert chief.learner.applied == [([2.0, 2.0], 1.0)]
    assert chief.answer("a", 1).status is PushStatus.ACCEPTED


def test_finite_gradients_whose_mean_is_not_are_given_back_and_a_new_base_is_opened(clock: FakeClock) -> None:
    chief = Chief(FakeLearner(), clock)
    for name in "ab":
        chief.exchange.join(name, 1)
    chief.exchange.open(chief.publish(), 0)
    largest = float(np.finfo(np.float32).max)
    chief.push("a", 1, 10, give("a", largest, items=10**6))
    chief.push("b", 1, 10, give("b", largest, items=10**6))
    chief.learner.apply = _failing
    with np.errstate(over="ignore"), pytest.raises(NonFiniteUpdate):
        chief.updater.update(batch_of(0), ONES)
    assert chief.learner.updates == 0
    assert chief.answer("a", 1).status is PushStatus.NON_FINITE
    assert chief.published == {10: 0, 11: 0}
    assert chief.push("a", 2, 11, give("a", 3.0)).status is PushStatus.PENDING


def _failing(gradients: Any, rate_scale: float) -> Any:
    raise NonFiniteUpdate("the gradient of q is not finite")


def test_asynchronously_a_step_takes_so_many_batches_and_late_ones_shorten_it(clock: FakeClock) -> None:
    chief = Chief(FakeLearner(), clock, accumulate=3)
    chief.exchange.join("a", 1)
    assert chief.updater.update(batch_of(0), ONES).metrics == {}
    assert chief.learner.updates == 0
    assert chief.push("a", 1, 10, give("a", 4.0)).status is PushStatus.ACCEPTED
    chief.updater.update(batch_of(1), ONES)
    assert chief.learner.updates == 1
    assert chief.learner.applied == [([2.0, 2.0], 1.0)]
    answer = chief.push("a", 2, 10, give("a", 4.0))
    assert (answer.status, answer.weight) == (PushStatus.SCALED, 0.5)
    chief.updater.update(batch_of(2), ONES)
    chief.updater.update(batch_of(3), ONES)
    mean, rate_scale = chief.learner.applied[1]
    np.testing.assert_allclose(mean, [(1 + 1 + 4 / 2) / 2.5] * 2)
    assert rate_scale == pytest.approx(2.5 / 3)
    assert chief.published == {10: 0, 11: 1, 12: 2}


def test_asynchronously_what_is_left_when_the_last_helper_goes_still_becomes_a_step(clock: FakeClock) -> None:
    chief = Chief(FakeLearner(), clock, accumulate=5)
    chief.updater.update(batch_of(0), ONES)
    assert (chief.learner.updates, chief.learner.alone) == (1, 1)
    chief.exchange.join("a", 1)
    chief.updater.update(batch_of(1), ONES)
    chief.push("a", 1, 10, give("a", 4.0))
    clock.now_s += 6
    chief.updater.update(batch_of(2), ONES)
    assert chief.learner.updates == 2
    assert chief.learner.applied == [([2.0, 2.0], 1.0)]
    chief.updater.update(batch_of(3), ONES)
    assert chief.learner.alone == 2
