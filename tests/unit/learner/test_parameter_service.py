from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from services.common.run_folder import Evaluation, RunFolder
from services.learner.parameter_service import ParameterServicer, Status
from services.learner.parameter_store import ParameterStore
from services.learner.readers import Readers
from services.learner.version_reservation import VersionReservation
from tests.fakes import RUN_ID, FakeClock, FakeLog


def test_damaged_best_parameters_stop_nobody_and_are_told(tmp_path: Path, clock: FakeClock, log: FakeLog) -> None:
    folder = RunFolder(tmp_path)
    seen = Evaluation(3, 60, 50, 0.5, -1.0, 40.0)
    folder.save_best(safetensors.numpy.save({"policy.bias": np.ones(2, np.float32)}), seen)
    best = tmp_path / "best.safetensors"
    best.write_bytes(best.read_bytes()[:-3])
    ParameterServicer(
        run_id=RUN_ID,
        incarnation=1,
        store=ParameterStore(VersionReservation(tmp_path / "versions.json")),
        readers=Readers(clock, num_actors=1),
        folder=folder,
        status=Status(),
        num_actors=1,
        max_updates=1,
        waiting_for=lambda: "",
        fail=lambda error: pytest.fail(str(error)),
        log=log,
    )
    assert log.events() == ["damaged best parameters are passed over"]
    assert "move the file away: the next evaluation" in log.lines[0][2]["reason"]
