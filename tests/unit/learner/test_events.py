from __future__ import annotations

from pathlib import Path
from typing import Dict, List

import pytest

from services.common.errors import UserError

pytest.importorskip("tensorboardX")

from services.learner.event_files import event_files, next_suffix, thin_out
from services.learner.events import EventLog


def points(folder: Path) -> Dict[str, List[int]]:
    """Metric -> the updates of its points, in the order of the files; each record's checksums are checked."""
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    found: Dict[str, List[int]] = {}
    for file in event_files(folder):
        data, start = file.read_bytes(), 0
        while start < len(data):
            length = int.from_bytes(data[start : start + 8], "little")
            assert int.from_bytes(data[start + 8 : start + 12], "little") == masked_crc32c(data[start : start + 8])
            body = data[start + 12 : start + 12 + length]
            assert int.from_bytes(data[start + 12 + length : start + 16 + length], "little") == masked_crc32c(body)
            event = event_pb2.Event.FromString(body)
            if event.summary.value:
                found.setdefault(event.summary.value[0].tag, []).append(event.step)
            start += 16 + length
    return found


def total_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_points_are_in_a_file_and_a_second_life_adds_its_own(tmp_path: Path) -> None:
    for life in range(2):
        log = EventLog(tmp_path / "tensorboard", max_bytes=1_000_000)
        for updates in range(3):
            log.scalar("loss", 0.5, 10 * life + updates)
        log.close()
        log.close()
    assert points(tmp_path / "tensorboard") == {"loss": [0, 1, 2, 10, 11, 12]}
    assert len(event_files(tmp_path / "tensorboard")) == 2  # though both may be of one second


def test_events_stay_bounded_over_lives_and_a_curve_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    updates = 0
    for _life in range(4):
        log = EventLog(tmp_path, max_bytes=20_000)
        for _ in range(1000):
            updates += 1
            log.scalar("loss", 0.5, updates)
            if updates % 100 == 0:
                log.scalar("evaluation/success_rate", 0.5, updates)
                assert total_bytes(tmp_path) <= 20_000
        log.close()
    found = points(tmp_path)
    assert found["evaluation/success_rate"] == list(range(100, updates + 1, 100))  # the rare ones are all there
    loss = found["loss"]
    assert loss == sorted(set(loss))
    assert loss[0] == 1
    assert loss[-1] == updates
    assert max(later - earlier for earlier, later in zip(loss, loss[1:])) <= updates / 16  # and nothing between is lost


def test_one_thinning_leaves_at_most_half_of_a_curve_and_leaves_it_even(tmp_path: Path) -> None:
    log = EventLog(tmp_path, max_bytes=1_000_000)
    for updates in range(101):
        log.scalar("a", 0.0, updates)
        log.scalar("b", 0.0, updates)
    log.close()
    before = total_bytes(tmp_path)
    thin_out(tmp_path)
    for curve in points(tmp_path).values():
        assert curve == list(range(0, 101, 4))
    assert total_bytes(tmp_path) < 0.3 * before


def test_a_record_that_a_crash_cut_short_is_left_out(tmp_path: Path) -> None:
    log = EventLog(tmp_path, max_bytes=1_000_000)
    for updates in range(3):
        log.scalar("a", 0.0, updates)
    log.close()
    (file,) = event_files(tmp_path)
    file.write_bytes(file.read_bytes()[:-5])
    thin_out(tmp_path)
    assert points(tmp_path) == {"a": [0, 1]}


def test_an_empty_folder_has_nothing_to_thin_out(tmp_path: Path) -> None:
    thin_out(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert next_suffix(tmp_path) == ".0001"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write TensorBoard events to .*file"):
        EventLog(tmp_path / "file" / "tensorboard", max_bytes=1_000_000)
