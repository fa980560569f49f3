from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.common.batch import Batch
from services.common.errors import UserError
from services.common.metrics import Metrics
from services.common.staleness_log import PARTS, read_rows
from services.learner.data_staleness import DataStaleness
from services.learner.drawn_batch import DrawnBatch
from services.learner.parameter_store import ACT, ParameterStore
from services.learner.staleness import StalenessRules
from services.learner.staleness_ledger import ROW_PERIOD_S
from services.learner.version_reservation import VersionReservation
from tests.fakes import FakeClock
from tests.unit.learner.test_staleness import EVERY_TEN, stamps_of


def _staleness(folder: Path, clock: FakeClock, **rules: Any) -> DataStaleness:
    return DataStaleness(
        StalenessRules(**rules),
        EVERY_TEN,
        folder / "staleness.jsonl",
        Metrics("learner", "run-a"),
        run="run-a",
        max_rows=512,
        clock=clock,
        wall_clock=clock,
    )


def _drawn(*versions: int, with_stamps: bool = True, arrived_s: float = 0.0) -> DrawnBatch:
    n = len(versions)
    column: Any = np.ones(n, np.float32)
    stamps = stamps_of([9] * n, [9] * n, 9) if with_stamps else None
    batch = Batch(column, column, column, column, {}, column, column, column, {}, np.array(versions), 1, stamps)
    return DrawnBatch(batch, 1, arrived_s, 0.125)


WEIGHTS = np.ones(2, np.float32)


def test_what_is_weighed_is_in_the_ledger(tmp_path: Path, clock: FakeClock) -> None:
    staleness = _staleness(tmp_path, clock, max_lag_updates=40)
    weighed = staleness.weigh(_drawn(5, 6, arrived_s=clock.now_s - 2.0), 95, WEIGHTS)
    assert weighed.tolist() == [0.0, 1.0]  # 45 and 35 behind
    clock.now_s += ROW_PERIOD_S
    staleness.weigh(_drawn(77, 9), 100, WEIGHTS)
    (row,) = read_rows(tmp_path / "staleness.jsonl")
    assert (row.items, row.refused, row.lost, row.updates, row.bound) == (4, 1, 1, 100, 40)
    assert row.sum_seconds["prefetch"] > 2 * 2.125
    assert [row.sum_updates[part] for part in PARTS] == [40 + 30, 0, 0, 5 + 5 + 10]


def test_the_last_row_is_written_at_the_end_and_a_next_life_goes_on(tmp_path: Path, clock: FakeClock) -> None:
    for _ in range(2):
        staleness = _staleness(tmp_path, clock)
        assert staleness.weigh(_drawn(5, 6), 95, WEIGHTS) is WEIGHTS
        staleness.close(96)
        staleness.close(97)  # nothing more
    assert [(row.updates, row.items) for row in read_rows(tmp_path / "staleness.jsonl")] == [(96, 2), (96, 2)]


def test_a_batch_without_stamps_is_left_alone(tmp_path: Path, clock: FakeClock) -> None:
    staleness = _staleness(tmp_path, clock, max_lag_updates=0)
    assert staleness.weigh(_drawn(5, 6, with_stamps=False), 95, WEIGHTS) is WEIGHTS
    staleness.close(96)
    assert not (tmp_path / "staleness.jsonl").exists()


def test_a_full_disk_is_said(tmp_path: Path, clock: FakeClock) -> None:
    staleness = _staleness(tmp_path / "missing", clock)
    staleness.weigh(_drawn(5, 6), 95, WEIGHTS)
    with pytest.raises(UserError, match="cannot write"):
        staleness.close(96)


def test_the_bound_holds_when_the_chief_comes_back_from_its_checkpoint(tmp_path: Path, clock: FakeClock) -> None:
    store = ParameterStore(VersionReservation(tmp_path / "versions.json"))
    parameters = {ACT: {"w": np.zeros(1, np.float32)}}
    old, new = (store.publish(parameters, updates).version for updates in (0, 80))
    again = ParameterStore(VersionReservation(tmp_path / "versions.json", new), store.history())
    later = again.publish(parameters, 80).version
    staleness = DataStaleness(
        StalenessRules(max_lag_updates=90),
        again,
        tmp_path / "staleness.jsonl",
        Metrics("learner", "run-a"),
        run="run-a",
        max_rows=512,
        clock=clock,
        wall_clock=clock,
    )
    drawn = _drawn(old, new, later, later - 1)  # the last was published after the checkpoint, by the life before
    weighed = staleness.weigh(drawn, 100, np.ones(4, np.float32))
    assert weighed.tolist() == [0.0, 1.0, 1.0, 1.0]
    assert staleness.ledger.totals().lost == 1


def test_what_would_be_trained_on_beyond_the_bound_is_counted(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics("learner", "run-a")
    staleness = DataStaleness(
        StalenessRules(max_lag_updates=40),
        EVERY_TEN,
        tmp_path / "staleness.jsonl",
        metrics,
        run="run-a",
        max_rows=100,
        clock=clock,
        wall_clock=clock,
    )

    def breaches() -> Any:
        return metrics.registry.get_sample_value("shoal_learner_bound_breaches_total", {"run": "run-a"})

    staleness.weigh(_drawn(5, 6), 95, WEIGHTS)
    assert breaches() == 0
    monkeypatch.setattr(StalenessRules, "weigh", lambda _rules, weights, _lag: weights)  # rules that do not hold
    staleness.weigh(_drawn(5, 6), 95, WEIGHTS)
    assert breaches() == 1
