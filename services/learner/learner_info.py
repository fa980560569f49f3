"""The chief's answers about itself: what the parts know, as messages."""

from __future__ import annotations

from typing import List, Optional, Sequence

from services.common.staleness_log import PARTS, LedgerRow
from services.learner.drain import DrainState
from services.learner.helpers import HelperView
from shoal.v1 import parameters_pb2


def drain_state(state: DrainState) -> parameters_pb2.DrainState:
    """How far a drain is."""
    return parameters_pb2.DrainState(
        phase=parameters_pb2.DrainPhase.ValueType(int(state.phase)),
        waiting_for=state.waiting_for,
        seconds=state.seconds,
        held_up=state.held_up,
        checkpoint_updates=state.checkpoint_updates,
    )


def helper_infos(helpers: Sequence[HelperView]) -> List[parameters_pb2.HelperInfo]:
    """Each helper."""
    return [
        parameters_pb2.HelperInfo(
            name=helper.name,
            incarnation=helper.incarnation,
            lease_left_seconds=helper.lease_left_s,
            pushes=helper.sequence,
            is_awaited=helper.is_awaited,
            push_waits_seconds=helper.push_waits_s,
        )
        for helper in helpers
    ]


def lag_parts(row: Optional[LedgerRow]) -> List[parameters_pb2.LagPart]:
    """The parts of the lag in a row of the ledger; none before the first."""
    if row is None:
        return []
    return [
        parameters_pb2.LagPart(
            name=part,
            p50_updates=row.quantile(part, 0.5),
            p95_updates=row.quantile(part, 0.95),
            mean_seconds=row.sum_seconds[part] / max(1, row.items),
        )
        for part in PARTS
    ]
