"""Helpers and the chief together: the service that gradients arrive at, and the update that uses them."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Callable, Optional

from services.agent.algorithm import Learner
from services.common.config.gradients import GradientsSection
from services.common.log import Log
from services.common.metrics import Metrics
from services.common.waits import Held
from services.learner.contributions import AsynchronousContributions, SynchronousContributions
from services.learner.gradient_exchange import GradientExchange
from services.learner.gradient_metrics import GradientMetrics
from services.learner.gradient_service import GradientServicer
from services.learner.helpers import Helpers
from services.learner.joint_update import AsynchronousUpdate, SynchronousUpdate, Updater

ONLINE = "online."  # of a learner's state: before the names of what is trained


class Collaboration:
    """The parts that take helpers' gradients. Without helpers it changes nothing."""

    def __init__(
        self,
        settings: GradientsSection,
        *,
        num_planned: int,
        run_id: str,
        incarnation: int,
        metrics: Metrics,
        log: Log,
        held: Held = contextlib.nullcontext,
    ) -> None:
        """Build the parts.

        Args:
            settings: how gradients become steps.
            num_planned: helpers that the run file plans.
            run_id: of the run.
            incarnation: of the chief.
            metrics: where those of the gradients belong.
            log: where joins and refusals are said.
            held: entered while training waits for gradients.
        """
        self._asynchronous: Optional[AsynchronousContributions] = None
        if settings.mode == "asynchronous":
            self._asynchronous = AsynchronousContributions(
                accumulate=settings.accumulate, max_lag_updates=settings.max_lag_updates
            )
            _warn(settings, num_planned, log)
        helpers = Helpers(time.monotonic, lease_s=settings.lease_s, max_helpers=settings.max_helpers)
        contributions = self._asynchronous or SynchronousContributions()
        self._exchange = GradientExchange(
            helpers, contributions, answers_at_once=self._asynchronous is not None, held=held
        )
        self._metrics = GradientMetrics(metrics, num_helpers=lambda: self._exchange.num_living)
        self.servicer = GradientServicer(
            run_id=run_id,
            incarnation=incarnation,
            exchange=self._exchange,
            metrics=self._metrics,
            mode=settings.mode,
            lease_s=settings.lease_s,
            log=log,
        )
        # Each helper holds one call while it waits, and a second for as long as a broken first is not known to be dead.
        self.num_threads = 2 * settings.max_helpers

    @property
    def waiting_for(self) -> str:
        """One sentence while training waits for helpers; empty otherwise."""
        return self._exchange.waiting_for

    def begin(
        self, learner: Learner, schema_digest: str, publish: Callable[[], int], stopping: threading.Event
    ) -> Updater:
        """Let helpers in, and return what the training loop calls with each batch.

        Args:
            learner: the chief's.
            schema_digest: what batches look like.
            publish: makes the learner's set of role `learn` the newest one, and returns its version.
            stopping: ends the waits.
        """
        trained = {name[len(ONLINE) :]: array for name, array in learner.state().items() if name.startswith(ONLINE)}
        shapes = {name: array.shape for name, array in trained.items()}
        self.servicer.expect(shapes, schema_digest)
        if self._asynchronous is None:
            return SynchronousUpdate(learner, self._exchange, self._metrics, publish=publish, stopping=stopping)
        return AsynchronousUpdate(
            learner, self._exchange, self._asynchronous, self._metrics, publish=publish, stopping=stopping
        )

    def end(self, reason: str) -> None:
        """Training is over: pushes that wait are given back."""
        self._exchange.close(reason)
        self._exchange.end(reason)


def _warn(settings: GradientsSection, num_planned: int, log: Log) -> None:
    log.warning(
        "gradients.mode is asynchronous: late gradients hurt learning; synchronous is the default for that reason",
        max_lag_updates=settings.max_lag_updates,
    )
    if settings.accumulate < num_planned + 1:
        log.warning(
            "gradients.accumulate is less than there are contributors: while one computes, others overtake it, and "
            "its gradient comes late; raise it, or start fewer helpers",
            accumulate=settings.accumulate,
            contributors=num_planned + 1,
        )
