from __future__ import annotations

from services.common.staleness_log import BOUNDS, NUM_BUCKETS, ActorLag, LedgerRow
from services.learner.drain import DrainPhase, DrainState
from services.learner.learner_info import drain_state, lag_parts
from shoal.v1 import parameters_pb2


def test_each_phase_has_the_number_of_the_wire() -> None:
    names = {phase.name: parameters_pb2.DrainPhase.Value(f"DRAIN_PHASE_{phase.name}") for phase in list(DrainPhase)[1:]}
    assert names == {phase.name: phase.value for phase in list(DrainPhase)[1:]}
    message = drain_state(DrainState(DrainPhase.ACTORS, "for actors", 2.5, ("actor-0: hangs",), 7))
    assert message.phase == parameters_pb2.DRAIN_PHASE_ACTORS
    assert (message.waiting_for, message.seconds, list(message.held_up)) == ("for actors", 2.5, ["actor-0: hangs"])
    assert message.checkpoint_updates == 7


def test_the_lag_by_part_is_that_of_the_last_row() -> None:
    assert lag_parts(None) == []
    row = LedgerRow(updates=9, wall_s=0.0, bound=None, items=10)
    row.counts["ring"] = [0] * NUM_BUCKETS
    row.counts["ring"][BOUNDS.index(100)] = 10
    row.sum_seconds["ring"] = 25.0
    row.actors["actor-0"] = ActorLag(row.counts["ring"], 100)
    parts = {part.name: part for part in lag_parts(row)}
    assert list(parts) == ["acting", "in_flight", "ring", "prefetch"]
    assert 63 < parts["ring"].p50_updates < parts["ring"].p95_updates <= 100
    assert parts["ring"].mean_seconds == 2.5
    assert parts["acting"].p95_updates == 0.0
