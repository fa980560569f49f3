from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.common.errors import UserError
from services.replay.inspect_folder import main
from tests.table_states import hold_pieces_of


def test_a_ring_in_use_is_described(make_durable: Any, feed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    durable = make_durable()
    feed(durable.table, 3, time_outs=[(1, 0)])
    durable.table.set_newest(6, 60)
    before = {file: file.read_bytes() for file in durable.path.rglob("*") if file.is_file()}
    assert main([str(durable.path), "--check"]) == 0
    lines = dict.fromkeys(line.rstrip() for line in capsys.readouterr().out.splitlines())
    text = "\n".join(lines)
    for part in (
        "in use         by process ",
        "version 1, run 'run', schema ",
        "observation    policy float32[2]",
        "action         float32[1]",
        "of n_step 3 and discount 0.5",
        "27 of 64, keys 0 to 27",
        "acknowledged 24",
        "unripe 5",
        "can be drawn   19 items",
        "learner        version 6 after 60 updates",
        "3 in the ring, oldest and newest",
        "a incarnation 1, 24 steps acknowledged, last chunk",
        "KiB",
        "damaged        0 chunks",
    ):
        assert part in text, part
    assert {file: file.read_bytes() for file in durable.path.rglob("*") if file.is_file()} == before


def test_a_copy_that_holds_less_than_its_log_tells_says_so(
    make_durable: Any, feed: Any, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, 8)
    durable.table.snapshot(tmp_path / "whole")
    hold_pieces_of(16, durable.table, monkeypatch, lambda: feed(durable.table, 6, first=8))
    durable.table.snapshot(tmp_path / "part")
    assert main([str(tmp_path / "whole"), "--check"]) == 0
    out = capsys.readouterr().out
    assert "rows           64 of 64, keys 0 to 64" in out
    assert "in part" not in out
    assert main([str(tmp_path / "part"), "--check"]) == 0
    out = capsys.readouterr().out
    assert "rows           16 of 64, keys 48 to 64" in out
    assert "a copy         in part: older rows were overwritten before" in out
    assert "2 in the ring" in out


def test_damaged_rows_are_found(make_durable: Any, feed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    durable = make_durable()
    feed(durable.table, 3)
    durable.drop()
    reward = durable.path / "columns" / "reward"
    reward.write_bytes(b"\xff" * 4 + reward.read_bytes()[4:])
    assert main([str(durable.path)]) == 0
    assert "by nobody" in capsys.readouterr().out
    assert main([str(durable.path), "--check"]) == 1
    assert "1 chunks, from key 0" in capsys.readouterr().out


def test_what_is_no_ring_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "format.json' is missing" in capsys.readouterr().err
    assert main([]) == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_damaged_chunk_log_is_said_as_the_replay_says_it(
    is_cut: bool, make_durable: Any, feed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    durable = make_durable()
    feed(durable.table, 12)
    durable.drop()
    log = durable.path / "chunks" / "00000000.log"
    data = log.read_bytes()
    log.write_bytes(data[:700] + (bytes(len(data) - 700) if is_cut else b"\xa5" * 600 + data[1300:]))
    with pytest.raises(UserError) as caught:
        durable.open()
    assert "00000000.log' is damaged" in str(caught.value)
    assert main([str(durable.path), "--check"]) != 0
    answer = capsys.readouterr()
    assert answer.err == f"shoal replay inspect: {caught.value}\n"
    assert "damaged  " not in answer.out


def test_a_reader_that_has_gone_is_no_crash(make_durable: Any, feed: Any) -> None:
    durable = make_durable()
    feed(durable.table, 3)
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "services.replay.inspect_folder", str(durable.path), "--check"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == 141


def test_the_chunk_of_a_row_is_named_by_the_log(
    make_durable: Any, feed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    durable = make_durable()
    feed(durable.table, 3, time_outs=[(1, 0)])  # nine rows each
    assert [chunk_named(durable, key, capsys) for key in (0, 8, 9, 26)] == [
        f"a/0000000000000001/{sequence}" for sequence in (0, 0, 1, 2)
    ]
    item = durable.table.inspector.item(9)
    assert item.chunk == "a/0000000000000001/1"
    assert main([str(durable.path), "--key", "27"]) == 2
    assert "holds no chunk with the row 27" in capsys.readouterr().err
    assert main([str(durable.path), "--key", "x"]) == 2
    assert "usage:" in capsys.readouterr().err


def chunk_named(durable: Any, key: int, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([str(durable.path), "--key", str(key)]) == 0
    return capsys.readouterr().out.strip().partition("chunk=")[2]
