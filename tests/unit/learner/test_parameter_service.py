from __future__ import annotations

from pathlib import Path
from typing import List

import numpy as np
import pytest
import safetensors.numpy

from services.common.peer import Peer
from services.common.run_folder import Evaluation, RunFolder
from services.learner.parameter_service import ParameterServicer, Readers, Status
from services.learner.parameter_store import ParameterStore, VersionReservation
from shoal.v1 import experience_pb2, parameters_pb2
from tests.fakes import RUN_ID, FakeClock, FakeLog


def _saw(readers: Readers, name: str, *, version: int = 0, finished: bool = False, waiting_for: str = "") -> None:
    peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, name).to_proto()
    request = parameters_pb2.GetManifestRequest(
        peer=peer, running_version=version, running_digest="d", waiting_for=waiting_for
    )
    readers.saw(request, finished=finished)


def test_a_rung_is_kept_over_lives_and_shared_when_all_are_taken(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=3)
    rungs = [readers.lease_rung(name) for name in ("a", "b", "c", "a", "d", "b", "d")]
    assert rungs == [0, 1, 2, 0, 0, 1, 0]


def test_readers_live_as_long_as_they_ask(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=3)
    _saw(readers, "a", version=4)
    clock.now_s += 5
    _saw(readers, "b")
    assert [reader.peer.name for reader in readers.living(5.0)] == ["a", "b"]
    clock.now_s += 1
    assert [reader.peer.name for reader in readers.living(5.0)] == ["b"]
    _saw(readers, "a", version=5, finished=True)
    living: List[int] = [reader.version for reader in readers.living(5.0) if reader.told_finished]
    assert living == [5]


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


def test_what_a_reader_waits_for_is_kept_until_it_says_otherwise(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=1)
    for said in ("the environment hangs", "x" * 1000, ""):
        _saw(readers, "a", waiting_for=said)
        (reader,) = readers.living(1.0)
        assert reader.waiting_for == said[:300]
