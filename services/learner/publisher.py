"""When and what the chief publishes: by a period in updates or in seconds, with the averaged policy if there is one."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Mapping

import numpy.typing as npt

from services.agent.algorithm import Learner
from services.common.config.values import PublishPeriod
from services.common.parameter_set import STATISTICS_PREFIX
from services.learner.averaged_parameters import AveragedParameters
from services.learner.observation_statistics import ObservationStatistics
from services.learner.parameter_store import ACT, AVERAGE, ParameterStore
from services.learner.published_set import Role


class Publisher:
    """Publishes a learner's acting parameters. One thread calls it: the training loop."""

    def __init__(
        self,
        store: ParameterStore,
        learner: Learner,
        *,
        period: PublishPeriod,
        average: AveragedParameters,
        statistics: ObservationStatistics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Publish nothing yet.

        Args:
            store: takes the sets.
            learner: where they come from.
            period: between two versions.
            average: of the acting parameters; published beside them unless its rate is 0.
            statistics: of observations, taken anew for each version until they are frozen.
            clock: monotonic seconds.
        """
        self._store = store
        self._learner = learner
        self._period = period
        self._average = average
        self._statistics = statistics
        self._clock = clock
        self._published_at = clock()
        self._published_updates = learner.updates

    def publish_if_due(self) -> None:
        """Publish when the period is over; call it after each update."""
        updates = self._learner.updates
        if self._period.is_over(updates, updates - self._published_updates, self._clock() - self._published_at):
            self.publish()

    def publish_learn(self) -> int:
        """Publish the set of role `learn`, which helpers compute on; returns its version.

        Statistics are taken anew for it too: helpers must not compute with others than the chief.
        """
        self._statistics.take()
        return self._store.publish_learn(self._learner.learning_parameters(), self._learner.updates).version

    def publish(self) -> None:
        """Publish now."""
        updates = self._learner.updates
        self._statistics.take()
        parameters = self._learner.acting_parameters()
        sets: Dict[Role, Mapping[str, npt.NDArray[Any]]] = {ACT: parameters}
        if self._average.rate:
            trained = {name: array for name, array in parameters.items() if not name.startswith(STATISTICS_PREFIX)}
            sets[AVERAGE] = {**parameters, **self._average.take_in(trained, updates)}
        self._store.publish(sets, updates)
        self._published_at, self._published_updates = self._clock(), updates
