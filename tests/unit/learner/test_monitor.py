from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import pytest

from services.agent.algorithm import Update
from services.agent.health import TEXTS
from services.common.batch import Batch
from services.common.metrics import Metrics
from services.common.run_folder import Evaluation, Progress
from services.learner.monitor import SHOW_PERIOD_S, Monitor
from services.learner.parameter_service import Status
from services.learner.parameter_store import ParameterStore, VersionReservation
from tests.fakes import FakeClock

pytest.importorskip("tensorboardX")


class Events:
    """Keeps scalars in the place of TensorBoard's writer."""

    def __init__(self) -> None:
        self.scalars: List[Any] = []

    def scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def close(self) -> None: ...


class Parts:
    def __init__(self, tmp_path: Path, clock: FakeClock) -> None:
        self.status = Status()
        self.metrics = Metrics("learner", "run-a")
        self.evaluation: Optional[Evaluation] = None
        store = ParameterStore(VersionReservation(tmp_path / "versions.json"), history=[(1, 0), (2, 10)])
        self.monitor = Monitor(
            status=self.status,
            store=store,
            metrics=self.metrics,
            tensorboard=tmp_path / "tensorboard",
            earlier=Progress(updates=10, training_seconds=7.0, env_steps=3),
            clock=clock,
            env_steps=lambda: 55,
            latest_evaluation=lambda: self.evaluation,
            max_updates=31,
        )

    def gauges(self) -> Dict[str, float]:
        return {s.name: s.value for family in self.metrics.registry.collect() for s in family.samples}


@pytest.fixture
def parts(tmp_path: Path, clock: FakeClock) -> Any:
    made = Parts(tmp_path, clock)
    yield made
    made.monitor.close()


def _batch(*versions: int) -> Any:
    column: Any = np.zeros(len(versions), np.float32)
    return Batch(column, column, column, column, {}, column, column, column, {}, np.array(versions, np.int64), 1)


def _update(**metrics: float) -> Update:
    return Update(np.zeros(2, np.float32), metrics)


def test_the_seconds_of_earlier_lives_count(parts: Parts, clock: FakeClock) -> None:
    assert parts.status.progress == Progress(10, 7.0, 3)
    clock.now_s += 2.5
    assert parts.monitor.progress(12) == Progress(updates=12, training_seconds=9.5, env_steps=55)
    assert [parts.monitor.progress(updates).is_finished for updates in (30, 31, 32)] == [False, True, True]


def test_lag_and_progress_are_shown(parts: Parts, clock: FakeClock) -> None:
    clock.now_s += SHOW_PERIOD_S
    parts.monitor.after_update(30, _batch(1, 2), _update(critic_loss=0.25))  # lags 30 and 20
    parts.monitor.after_update(31, _batch(2, 2), _update())  # 21 and 21
    assert parts.status.progress.updates == 30  # shown twice a second, not on each update
    parts.monitor.show(31)
    assert parts.status.progress.updates == 31
    assert parts.status.lag_p50 == 21
    assert 21 < parts.status.lag_p95 <= 30
    gauges = parts.gauges()
    assert gauges["shoal_learner_learning_critic_loss"] == 0.25
    assert gauges["shoal_learner_item_lag_updates_count"] == gauges["shoal_learner_trained_items_total"] == 4
    assert gauges["shoal_learner_item_lag_updates_sum"] == 92


def test_what_the_algorithm_reports_has_its_sentence(parts: Parts) -> None:
    parts.monitor.after_update(30, _batch(1, 2), _update(critic_clipped_share=0.5, q_drift=0.1))
    helps = {family.name: family.documentation for family in parts.metrics.registry.collect()}
    assert helps["shoal_learner_learning_q_drift"] == TEXTS["q_drift"][:1].upper() + TEXTS["q_drift"][1:] + "."
    assert "clipped" in helps["shoal_learner_learning_critic_clipped_share"]


def test_an_evaluation_is_drawn_once_at_its_updates(parts: Parts) -> None:
    events = Events()
    parts.monitor._events.close()
    parts.monitor._events = events
    parts.evaluation = Evaluation(2, 10, 50, 0.5, -3.0, 20.0)
    parts.monitor.show(30)
    parts.monitor.show(31)
    drawn = [scalar for scalar in events.scalars if scalar[0].startswith("evaluation/")]
    assert drawn == [("evaluation/success_rate", 0.5, 10), ("evaluation/mean_return", -3.0, 10)]


def test_events_are_written(parts: Parts, tmp_path: Path) -> None:
    parts.monitor.show(30)
    parts.monitor.close()
    assert sum(file.stat().st_size for file in (tmp_path / "tensorboard").iterdir()) > 100
    parts.monitor.close()
