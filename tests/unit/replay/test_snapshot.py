from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from services.common.errors import UserError
from services.replay.admission import InsertStatus
from services.replay.items import StepOutcome
from services.replay.snapshot import Snapshots


def test_a_copy_opens_like_any_ring(make_durable: Any, feed: Any, make_chunk: Any, tmp_path: Path) -> None:
    durable = make_durable()
    feed(durable.table, 4, time_outs=[(2, 0)])
    feed(durable.table, 1, actor="b")
    want = durable.table.store
    copied = durable.table.snapshot(tmp_path / "copy")
    assert copied.steps == 40
    assert copied.num_bytes > 64 * 100
    for path in (tmp_path / "copy").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path
    feed(durable.table, 6)  # traffic goes on, and the copy knows nothing of it
    durable.drop()
    table = durable.open(tmp_path / "copy")
    assert table.check_valid() is None
    assert table.store.counters.acknowledged == 40
    assert table.store.counters.items == int((table.store.ring.status == StepOutcome.ITEM).sum())
    assert table.store.ring.reward[:44].tolist() == want.ring.reward[:44].tolist()
    assert table.insert("a", 1, make_chunk(sequence=2), max_wait_s=0.0).status is InsertStatus.DUPLICATE
    assert table.insert("a", 1, make_chunk(sequence=6), max_wait_s=0.0).status is InsertStatus.APPLIED


def test_what_is_overwritten_while_it_is_copied_is_given_up(
    make_durable: Any, feed: Any, make_chunk: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, 10)  # the ring is full: keys 16 to 79
    copy_column = Snapshots._copy.__globals__["_copy_column"]
    sequence = [10]

    def insert_meanwhile(column: Any, file: Path) -> int:
        if file.name in ("reward", "policy_version"):
            durable.table.insert("a", 1, make_chunk(sequence=sequence[0], reward=9.0), max_wait_s=0.0)
            sequence[0] += 1
        return int(copy_column(column, file))

    monkeypatch.setattr("services.replay.snapshot._copy_column", insert_meanwhile)
    copied = durable.table.snapshot(tmp_path / "copy")
    assert sequence == [12]
    assert copied.steps == 48  # of 64, 16 were overwritten
    durable.drop()
    table = durable.open(tmp_path / "copy")
    assert table.check_valid() is None
    assert (table.store.counters.acknowledged, table.store.counters.reset) == (80, 16)
    assert table.store.counters.resident == 48
    resident = table.store.ring.status != StepOutcome.NO_STEP
    assert (table.store.ring.reward[resident] == 1.0).all()


def test_a_ring_that_is_overwritten_faster_than_copied_is_not_kept(
    make_durable: Any, feed: Any, make_chunk: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, 10)
    copy_column = Snapshots._copy.__globals__["_copy_column"]
    sequence = [10]

    def insert_meanwhile(column: Any, file: Path) -> int:
        for _ in range(4):
            durable.table.insert("a", 1, make_chunk(sequence=sequence[0]), max_wait_s=0.0)
            sequence[0] += 1
        return int(copy_column(column, file))

    monkeypatch.setattr("services.replay.snapshot._copy_column", insert_meanwhile)
    with pytest.raises(UserError, match="overwritten faster than it could be copied"):
        durable.table.snapshot(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ring-0"]


def test_nothing_is_overwritten(make_durable: Any, make_table: Any, tmp_path: Path) -> None:
    durable = make_durable()
    (tmp_path / "copy").mkdir()
    with pytest.raises(UserError, match="exists; a snapshot overwrites nothing"):
        durable.table.snapshot(tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []
    with pytest.raises(UserError, match="no absolute path"):
        durable.table.snapshot(Path("copy"))
    with pytest.raises(UserError, match="is no folder of the replay's machine"):
        durable.table.snapshot(tmp_path / "nowhere" / "copy")
    with pytest.raises(UserError, match=r"in memory and takes no snapshots: set replay\.data_dir"):
        make_table().snapshot(tmp_path / "other")


def test_one_at_a_time(make_durable: Any, tmp_path: Path, monkeypatch: Any) -> None:
    durable = make_durable()
    begun, go_on = threading.Event(), threading.Event()
    copy_column = Snapshots._copy.__globals__["_copy_column"]

    def slowly(column: Any, file: Path) -> int:
        begun.set()
        go_on.wait(30.0)
        return int(copy_column(column, file))

    monkeypatch.setattr("services.replay.snapshot._copy_column", slowly)
    thread = threading.Thread(target=durable.table.snapshot, args=(tmp_path / "copy",))
    thread.start()
    begun.wait(30.0)
    with pytest.raises(UserError, match="another snapshot is under way"):
        durable.table.snapshot(tmp_path / "other")
    go_on.set()
    thread.join()
    assert durable.table.snapshot(tmp_path / "other").steps == 0


def test_a_full_disk_leaves_no_half_copy(make_durable: Any, feed: Any, tmp_path: Path, monkeypatch: Any) -> None:
    durable = make_durable(capacity=1 << 14)
    feed(durable.table, 3)
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        pytest.skip(f"NOT TESTED: this user may not mount ({answer.stderr.strip()})")
    try:
        with pytest.raises(UserError, match=r"a snapshot takes 1\.\d MiB, and .* has 1\.0 MiB left"):
            durable.table.snapshot(small / "copy")
        monkeypatch.setattr("services.replay.snapshot.column_bytes", lambda *_values: 0)
        with pytest.raises(UserError, match=r"no space is left for .*/copy', and the snapshot was given up"):
            durable.table.snapshot(small / "copy")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
    assert durable.table.snapshot(tmp_path / "copy").steps == 24


def test_traffic_goes_on_and_every_copy_is_consistent(make_durable: Any, make_chunk: Any, tmp_path: Path) -> None:
    # A lap of the writer, which never pauses, takes some ten times as long as a copy.
    capacity = 1 << 15
    durable = make_durable(capacity=capacity)
    stop, inserted = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            durable.table.insert("a", 1, make_chunk(T=16, sequence=inserted[0], time_outs=[(3, 0)]), max_wait_s=0.0)
            inserted[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    copies = []
    try:
        for number in range(4):
            # The first copy is of a ring that is not full, the others meet one whose oldest rows are being overwritten.
            until = (400, capacity // 32)[number > 0] + 400 * number
            while inserted[0] < until:
                time.sleep(0.001)
            copies.append((durable.table.snapshot(tmp_path / f"copy-{number}"), inserted[0]))
    finally:
        stop.set()
        thread.join()
    durable.drop()
    for number, (copied, most) in enumerate(copies):
        table = durable.open(tmp_path / f"copy-{number}")
        assert table.check_valid() is None
        acknowledged = table.store.counters.acknowledged
        assert acknowledged % 32 == 0
        assert 0 < acknowledged <= 32 * most
        # Of the oldest chunk, which may be overwritten in part, nothing can be checked, so it goes.
        assert copied.steps - 32 <= table.store.counters.resident + table.store.counters.lost_tail <= copied.steps
        ring = table.store.ring
        resident = (ring.status == StepOutcome.ITEM) | (ring.status == StepOutcome.OPEN)
        assert (ring.observation["policy"][resident, 1] == (ring.keys(resident.nonzero()[0]) % 33 % 2)).all()
        durable.drop()
