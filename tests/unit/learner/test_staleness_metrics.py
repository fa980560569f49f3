from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from services.learner.staleness_ledger import Ledger
from services.learner.staleness_metrics import LedgerCollector
from tests.fakes import FakeClock
from tests.unit.learner.test_staleness_ledger import _batch


def test_prometheus_reads_parts_actors_and_counters(clock: FakeClock) -> None:
    ledger = Ledger(bound=None, clock=clock, wall_clock=clock)
    ledger.add(*_batch([10, 300], lost=1), 1)
    registry = CollectorRegistry()
    registry.register(LedgerCollector("run-a", ledger))

    def value(name: str, **labels: str) -> object:
        return registry.get_sample_value(f"shoal_learner_{name}", {"run": "run-a", **labels})

    assert value("lag_updates_count", part="ring") == 2
    assert value("lag_updates_sum", part="ring") == 310
    assert value("lag_updates_bucket", part="ring", le="10") == 1
    assert value("lag_updates_bucket", part="ring", le="398") == 2
    assert value("lag_age_seconds_sum", part="ring") == 8.0
    assert value("lag_age_seconds_bucket", part="ring", le="3") == 0
    assert value("lag_age_seconds_bucket", part="ring", le="10") == 2
    assert value("actor_lag_updates", actor="b", statistic="max") == 303
    assert value("lost_version_items_total") == 1
    assert value("stale_items_total") == 1
    assert b"shoal_learner_lag_updates_bucket" in generate_latest(registry)
