"""The chief's update: plain training while it is alone, and one step on everybody's gradients when it is not."""

from __future__ import annotations

import threading
import time
from typing import Callable, Dict, List, Optional

import numpy as np
import numpy.typing as npt
from typing_extensions import Protocol

from services.agent.algorithm import Learner, NonFiniteUpdate, Update
from services.common.batch import Batch
from services.learner.contributions import AsynchronousContributions, Share, average, mean_cosine, rate_scale
from services.learner.gradient_exchange import GradientExchange
from services.learner.gradient_metrics import GradientMetrics
from services.learner.helpers import Answer, PushStatus

CHIEF = "learner"  # its name among the contributors
Weights = npt.NDArray[np.float32]


class Updater(Protocol):
    """What the training loop calls: a learner, or one with its helpers."""

    @property
    def updates(self) -> int:
        """Updates done so far."""

    def update(self, batch: Batch, importance_weights: Weights) -> Update:
        """Train on `batch`; see `Learner.update`. A step may take several batches: `updates` tells."""


class JointUpdate:
    """What both modes share: the base that helpers compute on, and the step on what they gave."""

    def __init__(
        self,
        learner: Learner,
        exchange: GradientExchange,
        metrics: GradientMetrics,
        *,
        publish: Callable[[], int],
        stopping: threading.Event,
    ) -> None:
        """Take over `learner`; its parameters change by calls of this object alone.

        Args:
            learner: the chief's.
            exchange: where gradients arrive.
            metrics: told of each step.
            publish: makes the learner's set of role `learn` the newest one, and returns its version.
            stopping: ends the waits.
        """
        self._learner = learner
        self._exchange = exchange
        self._metrics = metrics
        self._publish = publish
        self._stopping = stopping

    @property
    def updates(self) -> int:
        """Updates done so far."""
        return self._learner.updates

    def _alone(self, batch: Batch, weights: Weights) -> Update:
        if self._exchange.is_open:  # the last helper is gone, and its base with this update
            self._exchange.close("the step is taken: no lease was running")
        return self._learner.update(batch, weights)

    def _open(self, answer: Optional[Answer] = None) -> None:
        self._exchange.open(self._publish(), self._learner.updates, answer)

    def _step(self, shares: List[Share]) -> Dict[str, float]:
        """Take the step of `shares`, publish what it led to, and answer who waits for it."""
        try:
            shown = self._learner.apply(average(shares), rate_scale(shares))
        except NonFiniteUpdate as error:  # finite ones, whose sum is not
            self._open(Answer(PushStatus.NON_FINITE, f"the mean of all gradients: {error}"))
            raise
        self._open()
        cosine = mean_cosine(shares)
        self._metrics.stepped(shares, cosine)
        if shown:
            shown["gradient_contributors"] = len([share for share in shares if share.num_samples])
            if cosine is not None:
                shown["gradient_cosine"] = cosine
        return shown


class SynchronousUpdate(JointUpdate):
    """One gradient of each living contributor, averaged by batch size, one step."""

    def update(self, batch: Batch, importance_weights: Weights) -> Update:
        """Take one step on `batch` and on what helpers compute on the same parameters.

        Raises:
            NonFiniteUpdate: the chief's own gradient, or the mean, is not finite; nothing was changed, and the helpers'
                gradients wait for another batch of the chief's.
            Stopped: the process is to end.
        """
        if not self._exchange.num_living:
            return self._alone(batch, importance_weights)
        if not self._exchange.is_open:
            self._open()
        own = self._learner.compute(batch, importance_weights)
        began_s = time.monotonic()
        others = self._exchange.collect(self._stopping)
        self._metrics.waited(time.monotonic() - began_s)
        return Update(own.td_error, self._step([Share(CHIEF, len(batch), own.gradients), *others]))


class AsynchronousUpdate(JointUpdate):
    """A step for every so many gradients, the chief's own among them; late ones count for less."""

    def __init__(
        self,
        learner: Learner,
        exchange: GradientExchange,
        contributions: AsynchronousContributions,
        metrics: GradientMetrics,
        *,
        publish: Callable[[], int],
        stopping: threading.Event,
    ) -> None:
        super().__init__(learner, exchange, metrics, publish=publish, stopping=stopping)
        self._contributions = contributions

    def update(self, batch: Batch, importance_weights: Weights) -> Update:
        """Add the gradient of `batch`, and take a step if there are enough: `updates` tells.

        Raises:
            NonFiniteUpdate: as in `SynchronousUpdate`; the gradients of the step are dropped.
            Stopped: the process is to end.
        """
        is_alone = not self._exchange.num_living
        if is_alone and self._contributions.is_empty:
            return self._alone(batch, importance_weights)
        if not self._exchange.is_open:
            self._open()
        own = self._learner.compute(batch, importance_weights)
        self._exchange.put(Share(CHIEF, len(batch), own.gradients))
        shares = self._exchange.collect(self._stopping, even_few=is_alone)
        return Update(own.td_error, self._step(shares) if shares else {})
