from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.common.batch import Batch
from services.common.errors import UserError
from services.learner.batch_dump import BatchDump, StoppedBatch, load_stopped_batch
from tests.fakes import FakeLog


def _stopped(updates: int = 7) -> StoppedBatch:
    rng = np.random.default_rng(updates)
    observation = {"camera.left": rng.integers(0, 255, (3, 2, 2)).astype(np.uint8), "policy": rng.random((3, 2))}
    batch = Batch(
        keys=np.arange(3),
        probability=rng.random(3),
        priority=rng.random(3),
        times_sampled=np.ones(3, np.int64),
        observation=observation,
        action=rng.random((3, 1)).astype(np.float32),
        n_step_return=np.array([1.0, np.nan, np.inf], np.float32),
        discount=np.ones(3, np.float32),
        next_observation={name: rows + 1 for name, rows in observation.items()},
        policy_version=np.array([4, 5, 6]),
        num_items=99,
    )
    weights = np.array([1.0, 0.5, 0.25], np.float32)
    return StoppedBatch(batch, weights, "the gradient of q is not finite", updates, 12, np.array([False, True, True]))


def test_everything_comes_back(tmp_path: Path) -> None:
    BatchDump(tmp_path / "non_finite", FakeLog(), max_files=20).write(_stopped())  # type: ignore[arg-type]
    (file,) = (tmp_path / "non_finite").iterdir()
    loaded, expected = load_stopped_batch(file), _stopped()
    assert (loaded.reason, loaded.updates, loaded.table_id) == (expected.reason, 7, 12)
    np.testing.assert_array_equal(loaded.suspects, expected.suspects)
    np.testing.assert_array_equal(loaded.importance_weights, expected.importance_weights)
    for field in fields(Batch):
        ours, theirs = getattr(loaded.batch, field.name), getattr(expected.batch, field.name)
        if isinstance(theirs, dict):
            assert set(ours) == set(theirs)
            for name, rows in theirs.items():
                np.testing.assert_array_equal(ours[name], rows, err_msg=name)
                assert ours[name].dtype == rows.dtype
        else:
            np.testing.assert_array_equal(ours, theirs, err_msg=field.name)


def test_the_folder_stays_bounded_over_all_lives(tmp_path: Path) -> None:
    for life in range(3):
        dump = BatchDump(tmp_path, FakeLog(), max_files=8)  # type: ignore[arg-type]
        for number in range(4):
            dump.write(_stopped(100 * life + number))
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 8
    assert load_stopped_batch(kept[-1]).updates == 203
    assert load_stopped_batch(kept[0]).updates == 100


def test_with_no_files_to_keep_none_is_written(tmp_path: Path) -> None:
    BatchDump(tmp_path / "non_finite", FakeLog(), max_files=0).write(_stopped())  # type: ignore[arg-type]
    assert not (tmp_path / "non_finite").exists()


def test_a_disk_that_fails_is_told_and_harms_nobody(tmp_path: Path, log: FakeLog) -> None:
    (tmp_path / "file").write_text("")
    dump: Any = BatchDump(tmp_path / "file" / "non_finite", log, max_files=20)  # type: ignore[arg-type]
    dump.write(_stopped())
    assert log.events("warning") == ["a stopped batch could not be written"]


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "batch-00000001.safetensors"
    file.write_bytes(b"rubbish")
    with pytest.raises(UserError, match=r"batch-00000001\.safetensors' is no stopped batch"):
        load_stopped_batch(file)
