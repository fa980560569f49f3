"""A helper's loop: newest base, next batch, gradients, push, residual by the answer, priorities back."""

from __future__ import annotations

from typing import Callable, Optional

import numpy as np
import numpy.typing as npt

from services.agent.algorithm import Contribution, Learner, NonFiniteUpdate
from services.common.errors import UserError
from services.common.parameter_set import ParameterSet
from services.learner.chief_client import ChiefClient
from services.learner.drawn_batch import DrawnBatch
from services.learner.gradients import EncodedGradients, GradientEncoder, NonFinite
from services.learner.helper_metrics import HelperMetrics
from services.learner.importance import importance_weights
from services.learner.replay_client import ReplayClient
from shoal.v1 import gradients_pb2

DATA_PATIENCE_S = 1.0  # for a batch, until the helper lets the step go on without it
ACCEPTED = (gradients_pb2.PUSH_STATUS_ACCEPTED, gradients_pb2.PUSH_STATUS_SCALED)
# Unanswered at a stop: the chief may have used it. A lost gradient harms less than one that counts twice.
COMMITTED = (*ACCEPTED, gradients_pb2.PUSH_STATUS_UNSPECIFIED)


def contribute(
    learner: Learner,
    batches: ReplayClient,
    chief: ChiefClient,
    encoder: GradientEncoder,
    metrics: HelperMetrics,
    *,
    on_finite: Callable[[], None],
    on_non_finite: Callable[[DrawnBatch, npt.NDArray[np.float32], str, int], None],
    checkpoint_if_due: Callable[[], None],
    importance_exponent: float,
) -> None:
    """Compute gradients for the chief until training is finished.

    `on_finite` hears of each gradient that is, and `on_non_finite` of each that is not: its batch, the importance
    weights, why, and the updates of its base.

    Raises:
        Fenced, Refused: as `ChiefClient`.
        Stopped: the process is to end before that.
        UserError: the chief trains other networks.
    """
    while True:
        base = chief.next_base()
        if base is None:
            return
        drawn = batches.next_within(DATA_PATIENCE_S)
        made, encoded = None, None
        if drawn is not None:
            weights = importance_weights(drawn.batch, importance_exponent)
            try:
                made = _compute(learner, base, drawn, weights)
                encoded = encoder.encode(made.gradients)
                on_finite()
            except (NonFiniteUpdate, NonFinite) as error:
                on_non_finite(drawn, weights, str(error), base.updates)
        status = chief.push(base, len(drawn.batch) if drawn and encoded else 0, encoded)
        _settle(encoder, encoded, committed=status in COMMITTED)
        if drawn is not None and made is not None:
            batches.report(drawn, made.td_error)
        metrics.pushed(base, encoded, status, encoder.residual_norm)
        checkpoint_if_due()


def _compute(learner: Learner, base: ParameterSet, drawn: DrawnBatch, weights: npt.NDArray[np.float32]) -> Contribution:
    try:
        learner.load_learning_parameters(base.parameters, base.updates)
    except ValueError as error:
        raise UserError(
            f"the chief's parameters do not fit this helper: {error}; start it with the chief's run file"
        ) from None
    return learner.compute(drawn.batch, weights)


def _settle(encoder: GradientEncoder, encoded: Optional[EncodedGradients], *, committed: bool) -> None:
    """Keep the residual that the push left, or set it back."""
    if encoded is not None and committed:
        encoder.commit()
    elif encoded is not None:
        encoder.rollback()
