from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np

from services.common.metrics import Metrics
from services.common.peer import Peer
from services.common.run_folder import Progress
from services.learner import reader_metrics
from services.learner.parameter_service import Status
from services.learner.parameter_store import ACT, ParameterStore
from services.learner.reader_metrics import ReaderMetrics
from services.learner.readers import Readers
from services.learner.version_reservation import VersionReservation
from shoal.v1 import experience_pb2, parameters_pb2
from tests.fakes import RUN_ID, FakeClock


class Parts:
    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.readers = Readers(clock, num_actors=2)
        self.store = ParameterStore(VersionReservation(folder / "versions.json"))
        self.metrics = Metrics("learner", RUN_ID)
        status = Status(progress=Progress(updates=100))
        self.metrics.registry.register(ReaderMetrics(RUN_ID, self.readers, self.store, status))

    def saw(self, name: str, version: int, published_digest: str = "d") -> None:
        peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, name).to_proto()
        question = parameters_pb2.GetManifestRequest(peer=peer, role=ACT, running_version=version, running_digest="d")
        self.readers.saw(question, finished=False, published_digest=published_digest)

    def values(self) -> Dict[Tuple[str, str], float]:
        found = [sample for family in self.metrics.registry.collect() for sample in family.samples]
        samples = [one for one in found if not one.name.startswith("process_") and "version" not in one.labels]
        assert all(sample.labels["run"] == RUN_ID for sample in samples)
        return {(sample.name, sample.labels.get("reader", "")): sample.value for sample in samples}


def test_who_runs_what_is_told_by_name(tmp_path: Path, clock: FakeClock) -> None:
    parts = Parts(tmp_path, clock)
    for updates in (20, 70):
        parts.store.publish({ACT: {"policy.bias": np.zeros(1, np.float32)}}, updates)
    parts.saw("a", 1)
    parts.saw("b", 2, published_digest="other")
    parts.store.lag(np.array([1, 77]), 100)
    assert parts.values() == {
        ("shoal_learner_readers", ""): 2,
        ("shoal_learner_reader_lag_updates", "a"): 80,
        ("shoal_learner_reader_lag_updates", "b"): 30,
        ("shoal_learner_reader_digest_mismatch_total", ""): 1,
        ("shoal_learner_unknown_versions_total", ""): 1,
    }
    clock.now_s += 61
    assert ("shoal_learner_reader_lag_updates", "a") not in parts.values()


def test_labels_are_bounded_and_show_those_furthest_behind(tmp_path: Path, clock: FakeClock, monkeypatch: Any) -> None:
    monkeypatch.setattr(reader_metrics, "MAX_LABELS", 2)
    parts = Parts(tmp_path, clock)
    for updates in (10, 20, 30):
        parts.store.publish({ACT: {"policy.bias": np.zeros(1, np.float32)}}, updates)
    for version in (3, 1, 2):
        parts.saw(f"actor-{version}", version)
    named = {name for metric, name in parts.values() if metric == "shoal_learner_reader_lag_updates"}
    assert named == {"actor-1", "actor-2"}
