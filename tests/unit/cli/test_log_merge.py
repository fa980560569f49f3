from __future__ import annotations

from services.cli.log_merge import LogMerge, clean, level_of


class Recorder:
    def __init__(self):
        self.lines = []

    def line(self, process, text, level):
        self.lines.append((process, text, level))


def test_levels():
    assert level_of("12:00:01 warning the replay is away waited_s=3") == "warning"
    assert level_of("12:00:01 info    fine") == "info"
    assert level_of("Traceback (most recent call last):") is None
    assert level_of("12:00:01 information") is None


def test_control_characters_do_not_reach_the_terminal():
    assert clean(b"\x1b[31mred\x1b[0m\x07 \x1b[2Jtab\there\xff\r\n") == "red tab\there�"


def test_lines_go_to_the_screen_and_to_a_file_of_each_process(tmp_path):
    screen = Recorder()
    merge = LogMerge(tmp_path, screen)
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
        merge = LogMerge(tmp_path, Recorder())
        merge.line("replay", word)
        merge.close()
    assert (tmp_path / "replay.log").read_text() == "a\nb\n"


def test_notes_are_shown_at_once_and_look_like_log_lines(tmp_path):
    screen = Recorder()
    merge = LogMerge(tmp_path, screen)
    merge.note("starting")
    merge.note("trouble", "warning")
    merge.close()
    assert [level for _process, _text, level in screen.lines] == [None, "warning"]
    assert [level_of(text) for _process, text, _level in screen.lines] == ["info", "warning"]


def test_a_disk_that_cannot_be_written_costs_the_file_and_is_said_once(tmp_path):
    screen = Recorder()
    merge = LogMerge(tmp_path / "missing", screen)
    merge.line("replay", b"one")
    merge.line("replay", b"two")
    merge.close()
    assert [text for process, text, _level in screen.lines if process == "replay"] == ["one", "two"]
    assert [level for process, _text, level in screen.lines if process == "shoal"] == ["warning"]


def test_after_the_end_nothing_is_written(tmp_path):
    merge = LogMerge(tmp_path, Recorder())
    merge.close()
    merge.line("replay", b"late")
    assert not (tmp_path / "replay.log").exists()
