from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

from services.common.sick_lane import SickLane, load_dump
from services.replay.quarantine_dump import QuarantineDump


class FakeLog:
    def __init__(self) -> None:
        self.lines: List[Any] = []

    def info(self, event: str, **values: Any) -> None:
        self.lines.append((event, values))

    debug = warning = error = info


@pytest.fixture
def lane() -> SickLane:
    return SickLane(
        actor="actor-0",
        incarnation=2**63 + 5,
        lane_group=1,
        lane=3,
        sequence=9,
        step=97,
        policy_version=12,
        bad_columns=("reward",),
        columns={"reward": np.array([1.0, np.nan], np.float32), "observation.policy": np.ones((2, 3), np.float32)},
    )


def _dump(folder: Path, log: FakeLog, **changes: Any) -> QuarantineDump:
    clock = iter(range(1000, 2000))
    return QuarantineDump(
        folder, **{"max_files": 10, "max_bytes": 1 << 20, "log": log, "now_s": lambda: float(next(clock)), **changes}
    )


def test_a_dump_can_be_loaded(tmp_path: Path, lane: SickLane) -> None:
    log = FakeLog()
    dump = _dump(tmp_path / "made" / "here", log)
    dump.write(lane)
    [file] = (tmp_path / "made" / "here").iterdir()
    assert file.name == "quarantine-actor-0-1000000-1-3.safetensors"
    loaded = load_dump(file)
    assert dataclasses.replace(loaded, columns={}) == dataclasses.replace(lane, columns={})
    assert set(loaded.columns) == set(lane.columns)
    for name, column in lane.columns.items():
        np.testing.assert_array_equal(loaded.columns[name], column)
    assert (dump.written, dump.failed) == (1, 0)
    assert log.lines[0][1]["file"] == str(file)


def test_the_oldest_make_room_in_number_and_in_bytes(tmp_path: Path, lane: SickLane) -> None:
    (tmp_path / "mine.safetensors").write_text("not ours")
    dump = _dump(tmp_path, FakeLog(), max_files=3)
    for number in range(6):
        dump.write(dataclasses.replace(lane, lane=number))
    assert sorted(load_dump(file).lane for file in tmp_path.glob("quarantine-*")) == [3, 4, 5]
    size = next(tmp_path.glob("quarantine-*")).stat().st_size
    dump = _dump(tmp_path, FakeLog(), max_bytes=int(2.5 * size))
    dump.write(dataclasses.replace(lane, lane=6))
    assert sorted(load_dump(file).lane for file in tmp_path.glob("quarantine-*")) == [5, 6]
    assert (tmp_path / "mine.safetensors").read_text() == "not ours"
    log = FakeLog()
    dump = _dump(tmp_path, log, max_bytes=size - 1)
    dump.write(lane)
    assert dump.failed == 1
    assert "all dumps together may take" in log.lines[0][1]["reason"]
    assert len(list(tmp_path.glob("quarantine-*"))) == 2  # what could not be written pushed nothing out


def test_a_disk_that_cannot_be_written_is_counted_and_said(tmp_path: Path, lane: SickLane) -> None:
    (tmp_path / "file").write_text("")
    log = FakeLog()
    dump = _dump(tmp_path / "file" / "folder", log)
    dump.write(lane)
    assert (dump.written, dump.failed) == (0, 1)
    assert log.lines[0][0] == "a quarantined lane could not be written"


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path, lane: SickLane, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    log = FakeLog()
    dump = _dump(tmp_path, log)
    dump.write(lane)
    assert dump.failed == 1
    assert "No space left on device" in log.lines[0][1]["reason"]
    assert list(tmp_path.iterdir()) == []


def test_a_name_from_the_wire_names_no_other_folder(tmp_path: Path, lane: SickLane) -> None:
    dump = _dump(tmp_path / "dumps", FakeLog())
    dump.write(dataclasses.replace(lane, actor="../../etc/" + "x" * 300))
    [file] = (tmp_path / "dumps").iterdir()
    assert load_dump(file).actor.startswith("../../etc/xxx")
    assert len(file.name) < 128


def test_what_is_no_dump_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "quarantine-a-1-0-0.safetensors"
    file.write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"quarantine-a-1-0-0\.safetensors' is no quarantine dump"):
        load_dump(file)


@pytest.mark.parametrize("changes", [{"max_files": 0}, {"max_bytes": 0}])
def test_no_room_at_all_is_refused(tmp_path: Path, changes: Any) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        _dump(tmp_path, FakeLog(), **changes)


def test_a_lane_that_stays_sick_is_written_once_a_minute(tmp_path: Path, lane: SickLane) -> None:
    clock = [1000.0]
    dump = _dump(tmp_path, FakeLog(), now_s=lambda: clock[0])
    for _ in range(59):
        dump.write(lane)
        clock[0] += 1.0
    assert dump.written == 1
    dump.write(dataclasses.replace(lane, lane=7))
    assert dump.written == 2
    clock[0] += 1.0
    dump.write(lane)
    assert dump.written == 3
