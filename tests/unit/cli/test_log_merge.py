from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.cli.log_merge import LogMerge, clean, level_of


class Recorder:
    def __init__(self):
        self.lines = []

    def line(self, process, text, level):
        self.lines.append((process, text, level))


def log_merge(folder: Path, screen: Any, max_file_bytes: int = 10_000_000, max_old_files: int = 4) -> LogMerge:
    return LogMerge(folder, screen, max_file_bytes=max_file_bytes, max_old_files=max_old_files)


def test_levels():
    assert level_of("12:00:01 warning the replay is away waited_s=3") == "warning"
    assert level_of("12:00:01 info    fine") == "info"
    assert level_of("Traceback (most recent call last):") is None
    assert level_of("12:00:01 information") is None


def test_control_characters_do_not_reach_the_terminal():
    assert clean(b"\x1b[31mred\x1b[0m\x07 \x1b[2Jtab\there\xff\r\n") == "red tab\there�"


def test_lines_go_to_the_screen_and_to_a_file_of_each_process(tmp_path):
    screen = Recorder()
    merge = log_merge(tmp_path, screen)
    merge.line("actor-0", b"12:00:00 info    one\n")
    merge.line("replay", b"oops\n")
    merge.line("actor-0", b"12:00:01 error   two\n")
    merge.close()
    assert screen.lines == [
        ("actor-0", "12:00:00 info    one", "info"),
        ("replay", "oops", None),
        ("actor-0", "12:00:01 error   two", "error"),
    ]
    assert (tmp_path / "actor-0.log").read_text() == "12:00:00 info    one\n12:00:01 error   two\n"


def test_logs_are_appended_to(tmp_path):
    for word in (b"a", b"b"):
        merge = log_merge(tmp_path, Recorder())
        merge.line("replay", word)
        merge.close()
    assert (tmp_path / "replay.log").read_text() == "a\nb\n"


def test_notes_are_shown_at_once_and_look_like_log_lines(tmp_path):
    screen = Recorder()
    merge = log_merge(tmp_path, screen)
    merge.note("starting")
    merge.note("trouble", "warning")
    merge.close()
    assert [level for _process, _text, level in screen.lines] == [None, "warning"]
    assert [level_of(text) for _process, text, _level in screen.lines] == ["info", "warning"]


def test_a_disk_that_cannot_be_written_costs_the_file_and_is_said_once(tmp_path):
    screen = Recorder()
    merge = log_merge(tmp_path / "missing", screen)
    merge.line("replay", b"one")
    merge.line("replay", b"two")
    merge.close()
    assert [text for process, text, _level in screen.lines if process == "replay"] == ["one", "two"]
    assert [level for process, _text, level in screen.lines if process == "shoal"] == ["warning"]


def test_after_the_end_nothing_is_written(tmp_path):
    merge = log_merge(tmp_path, Recorder())
    merge.close()
    merge.line("replay", b"late")
    assert not (tmp_path / "replay.log").exists()


def _held(folder: Path) -> Any:
    return {file.name: file.read_text().split() for file in sorted(folder.iterdir())}


def test_a_full_file_is_moved_aside_and_the_oldest_makes_room(tmp_path: Path) -> None:
    merge = log_merge(tmp_path, Recorder(), max_file_bytes=6, max_old_files=2)
    for word in (b"aa", b"bb", b"cc", b"dd"):  # three bytes each with the line's end: two fit
        merge.line("replay", word)
    merge.line("actor-0", b"zz")
    assert _held(tmp_path) == {"actor-0.log": ["zz"], "replay.log": ["cc", "dd"], "replay.log.1": ["aa", "bb"]}
    for word in (b"ee", b"ff", b"gg", b"hh"):
        merge.line("replay", word)
    merge.close()
    assert _held(tmp_path) == {
        "actor-0.log": ["zz"],
        "replay.log": ["gg", "hh"],
        "replay.log.1": ["ee", "ff"],
        "replay.log.2": ["cc", "dd"],
    }


def test_what_an_earlier_start_wrote_counts(tmp_path: Path) -> None:
    (tmp_path / "replay.log").write_text("aaaa\n")
    merge = log_merge(tmp_path, Recorder(), max_file_bytes=6)
    merge.line("replay", b"bb")
    merge.close()
    assert _held(tmp_path) == {"replay.log": ["bb"], "replay.log.1": ["aaaa"]}


def test_without_old_files_a_full_one_begins_anew(tmp_path: Path) -> None:
    merge = log_merge(tmp_path, Recorder(), max_file_bytes=6, max_old_files=0)
    for word in (b"aa", b"bb", b"cc"):
        merge.line("replay", word)
    merge.close()
    assert _held(tmp_path) == {"replay.log": ["cc"]}


def test_a_line_longer_than_a_file_is_whole_in_one_of_its_own(tmp_path: Path) -> None:
    merge = log_merge(tmp_path, Recorder(), max_file_bytes=6, max_old_files=1)
    for word in (b"a", b"b" * 20, b"c"):
        merge.line("replay", word)
    merge.close()
    assert _held(tmp_path) == {"replay.log": ["c"], "replay.log.1": ["b" * 20]}


def test_a_file_that_cannot_be_moved_aside_costs_the_file_and_is_said_once(tmp_path: Path) -> None:
    screen = Recorder()
    merge = log_merge(tmp_path, screen, max_file_bytes=3, max_old_files=1)
    merge.line("replay", b"aa")
    (tmp_path / "replay.log.1").mkdir()
    (tmp_path / "replay.log.1" / "in the way").write_text("")
    for word in (b"bb", b"cc"):
        merge.line("replay", word)
    merge.close()
    assert [level for process, _text, level in screen.lines if process == "shoal"] == ["warning"]
    assert [text for process, text, _level in screen.lines if process == "replay"] == ["aa", "bb", "cc"]


@pytest.mark.parametrize("sizes", [(0, 4), (6, -1)])
def test_sizes_that_mean_nothing_are_refused(tmp_path: Path, sizes: Any) -> None:
    with pytest.raises(ValueError, match="max_file_bytes"):
        log_merge(tmp_path, Recorder(), *sizes)
