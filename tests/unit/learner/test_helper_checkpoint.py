from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.common.errors import UserError
from services.learner.helper_checkpoint import HelperCheckpoint, HelperState, load_helper_state
from tests.fakes import FakeClock, FakeLog

STATE = HelperState(
    sequence=7,
    residual={"q.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "generator": np.ones(2, np.float32)},
    generator={"generator": np.arange(5, dtype=np.uint8)},
)


def test_everything_comes_back(tmp_path: Path, clock: FakeClock, log: FakeLog) -> None:
    file = tmp_path / "helpers" / "helper-0.safetensors"
    HelperCheckpoint(file, lambda: STATE, period_s=1, clock=clock).save()
    found = load_helper_state(file, log)
    assert found.sequence == 7
    for ours, theirs in ((STATE.residual, found.residual), (STATE.generator, found.generator)):
        assert set(ours) == set(theirs)  # a tensor of the name `generator` is no generator
        for name, array in ours.items():
            np.testing.assert_array_equal(theirs[name], array)
            assert theirs[name].dtype == array.dtype


def test_it_is_written_by_period(tmp_path: Path, clock: FakeClock) -> None:
    file = tmp_path / "helper-0.safetensors"
    taken = []
    checkpoint = HelperCheckpoint(file, lambda: taken.append(1) or STATE, period_s=5, clock=clock)
    checkpoint.save_if_due()
    assert not file.exists()
    clock.now_s += 5
    for _ in range(3):
        checkpoint.save_if_due()
    assert len(taken) == 1
    checkpoint.save()
    clock.now_s += 4
    checkpoint.save_if_due()
    assert len(taken) == 2


def test_no_file_is_a_new_helper_and_a_damaged_one_is_said(tmp_path: Path, clock: FakeClock, log: FakeLog) -> None:
    file = tmp_path / "helper-0.safetensors"
    assert load_helper_state(file, log) == HelperState()
    assert log.lines == []
    HelperCheckpoint(file, lambda: STATE, period_s=1, clock=clock).save()
    whole = file.read_bytes()
    for damaged in (whole[:-3], whole[:-1] + b"\1", b"", b"no such thing"):
        file.write_bytes(damaged)
        assert load_helper_state(file, log) == HelperState()
    assert [event for event in log.events("warning") if "damaged" in event] == log.events()
    assert len(log.lines) == 4


def test_a_full_disk_leaves_the_last_state(
    tmp_path: Path, clock: FakeClock, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "helper-0.safetensors"
    HelperCheckpoint(file, lambda: STATE, period_s=1, clock=clock).save()

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="No space left"):
        HelperCheckpoint(file, lambda: HelperState(sequence=8), period_s=1, clock=clock).save()
    monkeypatch.undo()
    assert load_helper_state(file, log).sequence == 7
