from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.common.errors import UserError
from services.common.run_folder import Progress
from services.common.sealed import seal
from services.learner.checkpoint import Checkpoint, CheckpointFolder, generator_state
from services.learner.version_history import VersionRecord
from tests.fakes import SCHEMA, FakeLog

CHECKPOINT = Checkpoint(
    algorithm="td3",
    schema=SCHEMA,
    progress=Progress(updates=40, training_seconds=1.5, env_steps=1234),
    history=[VersionRecord(1, 0, 12.5, 1.7e9, is_thinned=True), VersionRecord(1001, 40, 2.5, 1.7e9 + 10)],
    acknowledged={"ab": 1000, "cd": 234},
    generators={"stand_ins": {"bit_generator": "PCG64", "state": {"state": 1 << 100, "inc": 3}}},
    state={"policy.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "updates": np.array(40, np.int64)},
)


@pytest.fixture
def folder(tmp_path: Path, log: FakeLog) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints", log)


def _at(updates: int) -> Checkpoint:
    return replace(CHECKPOINT, progress=replace(CHECKPOINT.progress, updates=updates))


def _files(tmp_path: Path) -> List[Path]:
    return sorted((tmp_path / "checkpoints").iterdir())


def test_a_new_run_has_none(folder: CheckpointFolder) -> None:
    assert folder.load_newest() is None


def test_everything_comes_back(folder: CheckpointFolder) -> None:
    folder.save(CHECKPOINT)
    loaded: Any = folder.load_newest()
    assert replace(loaded, state={}) == replace(CHECKPOINT, state={})
    assert set(loaded.state) == set(CHECKPOINT.state)
    for name, tensor in CHECKPOINT.state.items():
        np.testing.assert_array_equal(loaded.state[name], tensor)
        assert (loaded.state[name].dtype, loaded.state[name].shape) == (tensor.dtype, tensor.shape)


def test_the_averaged_policy_comes_back_apart_from_the_state(folder: CheckpointFolder) -> None:
    average = {"policy.0.weight": np.full((2, 3), 0.25, np.float32)}
    folder.save(replace(CHECKPOINT, average=average))
    loaded: Any = folder.load_newest()
    assert set(loaded.state) == set(CHECKPOINT.state)
    np.testing.assert_array_equal(loaded.average["policy.0.weight"], average["policy.0.weight"])
    np.testing.assert_array_equal(loaded.state["policy.0.weight"], CHECKPOINT.state["policy.0.weight"])


def test_a_history_of_pairs_of_an_older_shoal_is_read(folder: CheckpointFolder, tmp_path: Path) -> None:
    facts = {
        "algorithm": "td3",
        "schema": SCHEMA.to_dict(),
        "progress": {"updates": 40, "training_seconds": 1.5, "env_steps": 1234, "is_finished": False},
        "history": [[1, 0], [1001, 40]],
        "acknowledged": {},
    }
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "000000000040.safetensors").write_bytes(seal(CHECKPOINT.state, facts))
    loaded: Any = folder.load_newest()
    assert loaded.history == [VersionRecord(1, 0), VersionRecord(1001, 40)]
    assert loaded.average == {}


def test_the_newest_is_that_of_most_updates_and_few_are_kept(folder: CheckpointFolder, tmp_path: Path) -> None:
    for updates in (9, 10, 99, 100, 1000, 20_000):  # names must sort as numbers do
        folder.save(_at(updates))
    loaded: Any = folder.load_newest()
    assert loaded.progress.updates == 20_000
    kept = [int(file.stem) for file in _files(tmp_path)]
    assert kept == [100, 1000, 20_000]


def test_as_many_are_kept_as_wanted_and_that_of_the_best_version(tmp_path: Path, log: FakeLog) -> None:
    best: List[Any] = [None]
    folder = CheckpointFolder(tmp_path / "checkpoints", log, keep=2, best_updates=lambda: best[0])

    def kept_after(*updates: int) -> List[int]:
        for number in updates:
            folder.save(_at(number))
        return [int(file.stem) for file in _files(tmp_path)]

    assert kept_after(10, 20, 30) == [20, 30]
    best[0] = 25  # 30 is the first that has what the best version learned
    assert kept_after(40, 50, 60) == [30, 50, 60]
    best[0] = 60
    assert kept_after(70) == [60, 70]
    best[0] = 5  # judged late: the nearest that is left
    assert kept_after(80, 90) == [60, 80, 90]
    best[0] = 1000
    assert kept_after(100) == [90, 100]


def test_what_a_killed_life_left_is_removed_at_the_next_write(folder: CheckpointFolder, tmp_path: Path) -> None:
    folder.save(_at(10))
    for name in (".000000000020.safetensors.77", ".tmpAb12"):
        (tmp_path / "checkpoints" / name).write_bytes(b"part")
    loaded: Any = folder.load_newest()
    assert loaded.progress.updates == 10
    folder.save(_at(20))
    assert [file.name for file in _files(tmp_path)] == ["000000000010.safetensors", "000000000020.safetensors"]


def test_a_file_of_an_earlier_shoal_is_read(folder: CheckpointFolder, tmp_path: Path) -> None:
    """As versions wrote it that kept no generators of numpy: made at once in memory, without that fact."""
    facts = {
        "algorithm": "td3",
        "schema": SCHEMA.to_dict(),
        "progress": {"updates": 40, "training_seconds": 1.5, "env_steps": 1234, "is_finished": False},
        "history": [[1, 0], [1001, 40]],
        "acknowledged": {"ab": 1000, "cd": 234},
    }
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "000000000040.safetensors").write_bytes(seal(CHECKPOINT.state, facts))
    loaded: Any = folder.load_newest()
    history = [VersionRecord(1, 0), VersionRecord(1001, 40)]
    expected = replace(CHECKPOINT, state={}, generators={}, average={}, history=history)
    assert replace(loaded, state={}) == expected


def test_a_generator_goes_on_where_it_was(folder: CheckpointFolder) -> None:
    generator = np.random.default_rng(3)
    generator.integers(10, size=7)
    folder.save(replace(CHECKPOINT, generators={"stand_ins": generator_state(generator)}))
    loaded: Any = folder.load_newest()
    resumed = np.random.default_rng(9)
    resumed.bit_generator.state = loaded.generators["stand_ins"]
    assert resumed.integers(1 << 60, size=5).tolist() == generator.integers(1 << 60, size=5).tolist()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_no_damaged_byte_is_ever_resumed_from(tmp_path: Path, at: float, change: int) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", FakeLog())
    folder.save(_at(10))
    folder.save(_at(20))
    newest = _files(tmp_path)[-1]
    data = bytearray(newest.read_bytes())
    data[int(at * len(data))] ^= change
    newest.write_bytes(data)
    loaded: Any = folder.load_newest()
    if loaded.progress.updates != 10:  # a blank of the header's padding became another blank: the content is whole
        assert replace(loaded, state={}) == replace(_at(20), state={})
        for name, tensor in CHECKPOINT.state.items():
            np.testing.assert_array_equal(loaded.state[name], tensor)


@pytest.mark.parametrize("damage", [b"", b"rubbish", None])
def test_damaged_ones_are_passed_over_and_told(
    damage: Any, folder: CheckpointFolder, tmp_path: Path, log: FakeLog
) -> None:
    for updates in (10, 20, 30):
        folder.save(_at(updates))
    for file in _files(tmp_path)[1:]:
        whole = file.read_bytes()
        flipped = whole[:-1] + bytes([whole[-1] ^ 1])
        file.write_bytes(flipped if damage is None else damage)
    loaded: Any = folder.load_newest()
    assert loaded.progress.updates == 10
    told = [values["file"] for level, _, values in log.lines if level == "warning"]
    assert told == [str(file) for file in reversed(_files(tmp_path)[1:])]
    folder.save(_at(15))  # the damaged ones are in the way of counting, not of the newest intact one
    loaded = folder.load_newest()
    assert loaded.progress.updates == 15


def test_none_intact_is_told_and_nothing_is_overwritten(folder: CheckpointFolder, tmp_path: Path) -> None:
    folder.save(_at(10))
    _files(tmp_path)[0].write_bytes(b"rubbish")
    with pytest.raises(UserError, match=r"no checkpoint in '.*checkpoints' is intact"):
        folder.load_newest()
    assert _files(tmp_path)[0].read_bytes() == b"rubbish"


def test_a_full_disk_leaves_earlier_ones(
    folder: CheckpointFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save(_at(10))

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(UserError, match="No space left"):
        folder.save(_at(20))
    loaded: Any = folder.load_newest()
    assert loaded.progress.updates == 10
    assert len(_files(tmp_path)) == 1
