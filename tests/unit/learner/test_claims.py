from __future__ import annotations

from typing import Any, Dict, Optional

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.common.batch import Batch, Stamps
from services.learner.claims import MAX_ACTORS, MAX_LAG_UPDATES, MIN_COMPARED, WINDOW, ClaimCheck, ClaimCollector
from services.learner.staleness import LOST
from tests.fakes import FakeLog

N = 64


class History:
    """Version v stands after 10 v updates; those below 1 are lost."""

    def known_updates_of(self, versions: Any) -> Any:
        return np.where(versions > 0, 10 * versions, LOST)


class Training:
    """Batches whose TD errors are log-normal, claimed by actors with factors of their own."""

    def __init__(self, log: FakeLog, factors: Dict[str, float], *, noise: float = 0.8, share: float = 1.0) -> None:
        self.check = ClaimCheck(History(), log, share=share, max_divergence=16.0)
        self._factors = factors
        self._noise = noise
        self._rng = np.random.default_rng(0)

    def update(
        self, *, times: int = 1, version: int = 100, updates: int = 1200, factor: Optional[float] = None
    ) -> None:
        names = tuple(self._factors)
        actor = self._rng.integers(0, len(names), N)
        td_error = self._rng.lognormal(0.0, 1.0, N).astype(np.float32)
        factors = np.array([self._factors[name] for name in names])[actor] if factor is None else factor
        claimed = td_error * factors * self._rng.lognormal(0.0, self._noise, N)
        zeros = np.zeros(N, np.int64)
        stamps = Stamps(actor, names, zeros, zeros, version, *(np.zeros(N, np.float32) for _ in range(3)))
        batch = Batch(
            keys=zeros,
            probability=np.ones(N),
            priority=claimed + 1e-6,
            times_sampled=np.full(N, times, np.int64),
            observation={},
            action=zeros,
            n_step_return=np.zeros(N, np.float32),
            discount=np.zeros(N, np.float32),
            next_observation={},
            policy_version=np.full(N, version, np.int64),
            num_items=N,
            stamps=stamps,
        )
        self.check.compare(batch, td_error, updates)

    def run(self, rounds: int = 100, **values: Any) -> None:
        for _ in range(rounds):
            self.update(**values)


def test_a_lying_actor_is_named_once_and_the_honest_are_not(log: FakeLog) -> None:
    training = Training(log, {"honest-0": 1.0, "honest-1": 1.0, "liar": 1000.0})
    training.run()
    found = training.check.divergences()
    assert found["liar"].factor > 200
    assert found["liar"].ratio > 200
    assert max(found["honest-0"].factor, found["honest-1"].factor) < 3
    warnings = [values for level, _, values in log.lines if level == "warning"]
    assert [values["actor"] for values in warnings] == ["liar"]
    assert found["liar"].compared == WINDOW


@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_one_actor_alone_is_measured_by_the_learner(factor: float, log: FakeLog) -> None:
    training = Training(log, {"only": factor})
    training.run()
    assert training.check.divergences()["only"].factor > 16
    assert (training.check.divergences()["only"].ratio > 1) == (factor > 1)


def test_random_claims_of_the_right_size_diverge_too(log: FakeLog) -> None:
    training = Training(log, {"a": 1.0, "b": 1.0, "c": 1.0}, noise=8.0)
    training.run()
    assert min(found.factor for found in training.check.divergences().values()) > 16


def test_what_all_have_in_common_is_the_critics_doing(log: FakeLog) -> None:
    training = Training(log, {"a": 30.0, "b": 25.0, "c": 35.0})
    training.run()
    assert max(found.factor for found in training.check.divergences().values()) < 3
    assert not log.events("warning")


def test_an_actor_that_is_sound_again_may_be_named_again(log: FakeLog) -> None:
    training = Training(log, {"a": 1.0})
    training.run(20, factor=1000.0)
    training.run(20, factor=1.0)
    training.run(20, factor=1000.0)
    assert [level for level, _, values in log.lines if values.get("actor") == "a"] == ["warning", "info", "warning"]


@pytest.mark.parametrize(
    "values",
    [
        {"times": 2},  # trained on before: the priority is the learner's own
        {"version": 0},  # lost in a crash
        {"updates": 1000 + MAX_LAG_UPDATES + 1},  # of another age
    ],
)
def test_items_that_say_nothing_are_not_compared(values: Dict[str, Any], log: FakeLog) -> None:
    training = Training(log, {"liar": 1e6})
    training.run(**values)
    assert training.check.divergences() == {}


def test_few_comparisons_say_nothing(log: FakeLog) -> None:
    training = Training(log, {"liar": 1e6})
    training.run(MIN_COMPARED // N - 1)
    assert training.check.divergences() == {}
    training.run(1)
    assert set(training.check.divergences()) == {"liar"}


def test_a_share_of_the_updates_is_looked_at(log: FakeLog) -> None:
    training = Training(log, {"a": 1.0}, share=0.1)
    training.run(29)
    assert training.check.divergences()["a"].compared == 2 * N
    with pytest.raises(ValueError, match="share is 1"):
        ClaimCheck(History(), log, share=1.5, max_divergence=2.0)


def test_actors_are_bounded_and_shown(log: FakeLog) -> None:
    training = Training(log, {"a": 1.0, "b": 100.0})
    training.run(20)
    registry = CollectorRegistry()
    registry.register(ClaimCollector("run", training.check))
    labels = {"run": "run", "actor": "b"}
    shown = registry.get_sample_value("shoal_learner_actor_claim_divergence", labels)
    assert shown is not None
    assert shown > 16
    assert registry.get_sample_value("shoal_learner_claim_divergence_bound", {"run": "run"}) == 16.0
    for number in range(2 * MAX_ACTORS):
        training.check._actor(f"stranger-{number}")
    assert len(training.check._actors) == MAX_ACTORS


def test_batches_of_another_length_and_without_stamps_are_passed_over(log: FakeLog) -> None:
    check = ClaimCheck(History(), log, share=1.0, max_divergence=2.0)
    batch: Any = type("NoStamps", (), {"stamps": None, "__len__": lambda self: 3})()
    check.compare(batch, np.zeros(3, np.float32), 1)
    assert check.divergences() == {}
