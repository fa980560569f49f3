from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Optional

import numpy as np
import pytest

from services.common.metrics import Metrics
from services.common.run_folder import Evaluation, Progress
from services.learner.chief_metrics import ChiefMetrics
from services.learner.parameter_service import Status
from services.learner.parameter_store import ACT, ParameterStore, VersionReservation
from shoal.v1 import parameters_pb2


class Parts:
    def __init__(self, tmp_path: Path, max_lag_updates: Optional[int] = 300) -> None:
        self.metrics = Metrics("learner", "run-a")
        self.status = Status(progress=Progress(updates=10, training_seconds=7.5, env_steps=3))
        self.store = ParameterStore(VersionReservation(tmp_path / "versions.json"))
        self.servicer = SimpleNamespace(latest=None, best=None)
        self.replay = SimpleNamespace(depth=4, num_priorities=3)
        self.updates = 10
        ChiefMetrics(
            self.metrics,
            status=self.status,
            store=self.store,
            servicer=self.servicer,  # type: ignore[arg-type]
            replay=self.replay,  # type: ignore[arg-type]
            updates=lambda: self.updates,
            max_lag_updates=max_lag_updates,
        )

    def values(self) -> Dict[str, float]:
        prefix = len("shoal_learner_")
        return {
            sample.name[prefix:] + sample.labels.get("state", ""): sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name.startswith("shoal_learner_")
        }


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_progress_is_read_when_asked(parts: Parts) -> None:
    parts.updates = 12
    values = parts.values()
    assert values["updates_total"] == 12
    assert values["training_seconds"] == 7.5
    assert (values["prefetch_depth_batches"], values["priority_queue_depth_batches"]) == (4, 3)
    assert values["lag_bound_updates"] == 300


def test_without_a_bound_there_is_none_to_show(tmp_path: Path) -> None:
    assert "lag_bound_updates" not in Parts(tmp_path, max_lag_updates=None).values()


def test_versions_of_this_life_are_counted(parts: Parts) -> None:
    before = parts.values()
    assert (before["version"], before["published_versions_total"], before["parameters_bytes"]) == (0, 0, 0)
    for updates in (0, 20):
        published = parts.store.publish({ACT: {"w": np.zeros((5, 2), np.float32)}}, updates)
    parts.store.publish_learn({"w": np.zeros(99, np.float32)}, 21)
    after = parts.values()
    assert after["version"] == published.version
    assert after["published_versions_total"] == 2
    assert after["parameters_bytes"] == 40
    assert not published.is_serialized  # to look costs nothing


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (parameters_pb2.RUN_STATE_WAITING, "waiting"),
        (parameters_pb2.RUN_STATE_TRAINING, "training"),
        (parameters_pb2.RUN_STATE_FINISHED, "finished"),
    ],
)
def test_the_run_is_in_one_state(parts: Parts, state: Any, name: str) -> None:
    parts.status.run_state = state
    states = {key: value for key, value in parts.values().items() if key.startswith("run_state")}
    assert len(states) == 3
    assert [key for key, value in states.items() if value] == [f"run_state{name}"]


def test_evaluations_are_shown_once_there_are_some(parts: Parts) -> None:
    assert not [name for name in parts.values() if "evaluated" in name or "success" in name]
    parts.servicer.latest, parts.servicer.best = (
        Evaluation(20, 10, 50, 0.5, -3.0, 20.0),
        Evaluation(7, 9, 50, 0.75, -2.0, 20.0),
    )
    values = parts.values()
    assert values["evaluated_success_ratio"] == 0.5
    assert values["evaluated_return"] == -3.0
    assert values["evaluated_version"] == 20
    assert values["best_success_ratio"] == 0.75


def test_an_environment_without_success_has_no_ratio(parts: Parts) -> None:
    parts.servicer.latest = parts.servicer.best = Evaluation(20, 10, 50, -1.0, -3.0, 20.0)
    values = parts.values()
    assert values["evaluated_return"] == -3.0
    assert "evaluated_success_ratio" not in values
    assert "best_success_ratio" not in values
