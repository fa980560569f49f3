from __future__ import annotations

import io
import os
import sys

import pytest

from services.cli import __main__ as command
from services.cli import replay_command
from services.cli.modules import INSPECT_FOLDER


class Executed(BaseException):
    """Stands for the process image that would have replaced this one."""


@pytest.fixture
def executed(monkeypatch):
    calls = []

    def execv(path, arguments):
        calls.append((path, arguments))
        raise Executed

    monkeypatch.setattr(os, "execv", execv)
    return calls


@pytest.mark.parametrize(
    "words", [["rings/r"], ["rings/r", "--check"], ["--check", "rings/r"], ["rings/r", "--key", "7"]]
)
def test_inspect_takes_the_place_of_the_command(executed, words):
    with pytest.raises(Executed):
        command.main(["replay", "inspect", *words])
    flags = ["--check"] if "--check" in words else ["--key", "7"] if "--key" in words else []
    assert executed == [(sys.executable, [sys.executable, "-m", INSPECT_FOLDER, "rings/r", *flags])]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ([], False),
        (["reach.toml"], False),
        (["reach.toml", "--help"], False),
        (["--run.name", "items"], False),
        (["items"], True),
        (["snapshot", "x"], True),
        (["inspect"], True),
        (["--help"], True),
        (["-h"], True),
    ],
)
def test_a_run_file_is_for_the_service(words, meant):
    assert replay_command.is_meant(words) is meant


@pytest.mark.parametrize("words", [["--help"], ["items", "--help"], ["snapshot", "--help"], ["inspect", "-h"]])
def test_help_tells_of_itself(words, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["replay", *words])
    assert ended.value.code == 0
    assert "usage: shoal replay" in capsys.readouterr().out


def test_a_word_that_is_no_command_and_no_run_file_is_answered_with_the_commands(capsys):
    assert command.main(["replay", "bogus"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("shoal: there is no run file 'bogus', and no command of that name")
    assert line.endswith("one of inspect, items and snapshot")


def test_a_run_file_of_any_name_is_for_the_service(executed, tmp_path):
    (tmp_path / "settings").write_text("")
    for word in (str(tmp_path / "settings"), "not_there.toml"):
        with pytest.raises(Executed):
            command.main(["replay", word])
        assert executed.pop()[1][-1] == word


def test_a_flag_that_stands_twice_is_refused(capsys):
    assert command.main(["replay", "items", "127.0.0.1:1", "--max", "2", "--max=3"]) == 2
    assert capsys.readouterr().err == "shoal: --max is given twice; leave one of them out\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["items"], "ADDRESS"),
        (["items", "127.0.0.1:1", "--max", "0"], "'0' is no whole number from 1 to 10000"),
        (["items", "127.0.0.1:1", "--key", "-4"], "shoal replay items: error: argument --key: '-4' is no whole"),
        (["items", "127.0.0.1:1", "--key", "9223372036854775808"], "is no whole number"),
        (["items", "127.0.0.1:1", "--order", "priority"], "invalid choice"),
        (["snapshot", "127.0.0.1:1"], "FOLDER"),
        (["inspect", "a", "b"], "unrecognized"),
    ],
)
def test_a_mistaken_line_is_explained(words, says, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["replay", *words])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["items", "elsewhere"], "shoal: 'elsewhere' is no address; write HOST:PORT"),
        (["items", "10.0.0.1:7401"], "shoal: 10.0.0.1:7401 is beyond this machine: set security.ca and security.token"),
        (
            ["items", "127.0.0.1:1", "--key", "3", "--actor", "a", "--max", "2"],
            "shoal: --key shows one item; leave out --max and --actor",
        ),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(words, says, capsys):
    assert command.main(["replay", *words]) == 2
    answer = capsys.readouterr()
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith(says)


@pytest.mark.parametrize("words", [["items"], ["items", "--key", "3"], ["snapshot"]])
def test_a_replay_that_is_not_there_is_one_sentence(words, free_address, capsys):
    address = free_address()
    line = ["replay", words[0], address, *words[1:], *(["copy"] if words == ["snapshot"] else [])]
    assert command.main(line) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"shoal: no answer from a replay at {address} (unavailable")
    assert "is it running?" in sentence


def test_nothing_is_written_when_it_fails(free_address):
    output = io.StringIO()
    with pytest.raises(Exception, match="no answer"):
        replay_command.run(["items", free_address()], output)
    assert output.getvalue() == ""
