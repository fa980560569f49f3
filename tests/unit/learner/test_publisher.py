from __future__ import annotations

from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

from services.common.config.values import PublishPeriod
from services.common.parameter_set import decode_set
from services.learner.averaged_parameters import AveragedParameters
from services.learner.parameter_store import AVERAGE, ParameterStore
from services.learner.publisher import Publisher
from services.learner.version_reservation import VersionReservation
from tests.fakes import FakeClock, FakeLearner


class Statistics:
    """Counts how often they were taken anew."""

    taken = 0

    def take(self) -> None:
        self.taken += 1


class Parts:
    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.clock = clock
        self.store = ParameterStore(VersionReservation(folder / "versions.json"))
        self.learner = FakeLearner()
        self.statistics: Any = Statistics()

    def publisher(self, period: PublishPeriod, rate: float = 0.0) -> Publisher:
        learner: Any = self.learner
        average = AveragedParameters(rate, {})
        return Publisher(
            self.store, learner, period=period, average=average, statistics=self.statistics, clock=self.clock
        )

    def published(self) -> List[int]:
        return [record.updates for record in self.store.history()]


@pytest.fixture
def parts(tmp_path: Path, clock: FakeClock) -> Parts:
    return Parts(tmp_path, clock)


def test_a_period_in_updates_ends_at_its_multiples(parts: Parts) -> None:
    publisher = parts.publisher(PublishPeriod(updates=3))
    for updates in range(11):
        parts.learner.updates = updates
        publisher.publish_if_due()
    assert parts.published() == [3, 6, 9]
    assert parts.statistics.taken == 3  # with each version, and never between two


def test_a_period_in_seconds_ends_after_the_update_that_is_the_first_beyond_it(parts: Parts) -> None:
    publisher = parts.publisher(PublishPeriod(seconds=2.0))
    for updates in range(1, 11):
        parts.learner.updates = updates
        parts.clock.now_s += 0.75
        publisher.publish_if_due()
    assert parts.published() == [3, 6, 9]


def test_nothing_is_published_twice(parts: Parts) -> None:
    for period in (PublishPeriod(updates=3), PublishPeriod(seconds=2.0)):
        publisher = parts.publisher(period)
        parts.learner.updates += 3
        publisher.publish()
        parts.clock.now_s += 5.0
        publisher.publish_if_due()
    assert parts.published() == [3, 6]


def test_the_average_is_published_by_the_chief_beside_the_policy_under_the_same_version(parts: Parts) -> None:
    publisher = parts.publisher(PublishPeriod(updates=1), rate=0.5)
    for updates in (1, 2):
        parts.learner.updates = updates
        publisher.publish_if_due()
    acting: Any = parts.store.newest
    average: Any = parts.store.newest_of(AVERAGE)
    assert (acting.version, acting.updates) == (average.version, average.updates) == (2, 2)
    np.testing.assert_array_equal(decode_set(acting.data)["policy.bias"], [2.0])
    np.testing.assert_array_equal(decode_set(average.data)["policy.bias"], [1.5])


def test_helpers_compute_on_the_statistics_that_the_chief_has_now(parts: Parts) -> None:
    publisher = parts.publisher(PublishPeriod(updates=100))
    seen: List[int] = []

    def learning_parameters() -> Any:
        seen.append(parts.statistics.taken)
        return {"policy.bias": np.ones(1, np.float32)}

    parts.learner.learning_parameters = learning_parameters  # type: ignore[attr-defined]
    versions = [publisher.publish_learn() for _ in range(2)]
    assert seen == [1, 2]  # taken anew before each set was made
    assert versions[1] > versions[0]
    assert parts.published() == []  # what helpers compute on is no version that acts


def test_without_a_rate_there_is_no_average(parts: Parts) -> None:
    parts.publisher(PublishPeriod(updates=1)).publish()
    assert parts.store.newest is not None
    assert parts.store.newest_of(AVERAGE) is None
