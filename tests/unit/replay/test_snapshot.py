from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable, List

import numpy as np
import pytest

from services.common.errors import UserError
from services.common.ring_layout import CHUNKS_FOLDER, GUARDS_FILE
from services.replay.admission import InsertStatus
from services.replay.footprint import column_bytes
from services.replay.items import StepOutcome
from tests.table_states import hold_pieces_of, open_files_below


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


@pytest.mark.parametrize(
    ("chunks_a_piece", "kept", "pieces"),
    # The copy goes backwards from key 80 by 16 rows a piece, the writer forwards from key 16 by 8 rows a chunk.
    [(0, 64, 4), (1, 48, 3), (2, 32, 2), (4, 32, 2), (6, 16, 1), (8, 16, 1), (80, 16, 1)],
)
def test_however_fast_the_ring_is_overwritten_a_copy_keeps_the_rows_from_where_they_meet(
    make_durable: Any, feed: Any, tmp_path: Path, monkeypatch: Any, chunks_a_piece: int, kept: int, pieces: int
) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, 10)  # the ring is full: keys 16 to 79
    calls: List[int] = []

    def insert_meanwhile() -> None:
        calls.append(chunks_a_piece)
        feed(durable.table, chunks_a_piece, first=sum(calls[:-1]) + 10, reward=9.0)

    hold_pieces_of(16, durable.table, monkeypatch, insert_meanwhile)
    copied = durable.table.snapshot(tmp_path / "copy")
    assert (copied.steps, len(calls)) == (kept, pieces)
    durable.drop()
    table = durable.open(tmp_path / "copy")
    assert table.check_valid() is None
    assert (table.store.counters.acknowledged, table.store.counters.reset) == (80, 64 - kept)
    assert table.store.counters.resident == kept
    resident = table.store.ring.status != StepOutcome.NO_STEP
    assert (table.store.ring.reward[resident] == 1.0).all()


def test_rows_that_are_overwritten_while_they_are_held_are_given_up(
    make_durable: Any, feed: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, 10)
    ring, held = durable.table.store.ring, []
    column = ring.column

    def insert_meanwhile(name: str) -> Any:
        if name == "reward":
            held.append(name)
            if len(held) == 3:  # keys 32 to 47 are being held, of which the writer takes 32 to 39
                feed(durable.table, 3, first=10, reward=9.0)
        return column(name)

    hold_pieces_of(16, durable.table, monkeypatch, lambda: None)
    monkeypatch.setattr(ring, "column", insert_meanwhile)
    assert durable.table.snapshot(tmp_path / "copy").steps == 40
    assert len(held) == 3
    durable.drop()
    table = durable.open(tmp_path / "copy")
    assert table.check_valid() is None
    assert (table.store.counters.acknowledged, table.store.counters.resident) == (80, 40)
    resident = table.store.ring.status != StepOutcome.NO_STEP
    assert (table.store.ring.reward[resident] == 1.0).all()


class _ThenInsert:
    """The table's lock, at whose release others come first."""

    def __init__(self, lock: Any, meanwhile: Callable[[], Any]) -> None:
        self.lock, self.meanwhile = lock, meanwhile

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self.lock.release()
        self.meanwhile()


@pytest.mark.parametrize(("chunks", "kept"), [(1, 56), (8, 16), (80, 16)])
def test_the_newest_rows_are_of_the_instant_of_the_log(
    make_durable: Any, feed: Any, tmp_path: Path, monkeypatch: Any, chunks: int, kept: int
) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, 10)
    hold_pieces_of(16, durable.table, monkeypatch, lambda: None)
    lock = _ThenInsert(durable.table._lock, lambda: feed(durable.table, chunks, first=10, reward=9.0))
    monkeypatch.setattr(durable.table._snapshots, "_table_lock", lock)
    assert durable.table.snapshot(tmp_path / "copy").steps == kept
    assert _guards(tmp_path / "copy") == [80 - kept + 64, 80]
    durable.drop()
    table = durable.open(tmp_path / "copy")
    assert table.check_valid() is None
    assert table.store.counters.resident == kept
    resident = table.store.ring.status != StepOutcome.NO_STEP
    assert (table.store.ring.reward[resident] == 1.0).all()


@pytest.mark.parametrize(
    ("chunks", "meanwhile", "guards"),
    # An empty ring, one half full, a full one; then the writer laps what was not held yet.
    [(0, 0, [0, 0]), (4, 0, [32, 32]), (8, 0, [64, 64]), (4, 80, [16 + 64, 32]), (8, 80, [48 + 64, 64])],
)
def test_the_guards_of_a_copy_tell_what_it_holds(
    make_durable: Any, feed: Any, tmp_path: Path, monkeypatch: Any, chunks: int, meanwhile: int, guards: List[int]
) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, chunks)
    hold_pieces_of(16, durable.table, monkeypatch, lambda: feed(durable.table, meanwhile, first=chunks, reward=9.0))
    copied = durable.table.snapshot(tmp_path / "copy")
    assert _guards(tmp_path / "copy") == guards
    log_bytes = sum(file.stat().st_size for file in (tmp_path / "copy" / CHUNKS_FOLDER).iterdir())
    assert copied.num_bytes == log_bytes + column_bytes(64, durable.table.schema)
    durable.drop()
    table = durable.open(tmp_path / "copy")
    assert table.check_valid() is None
    assert table.damage["ring"] == 0
    assert table.store.counters.resident == copied.steps


def _guards(folder: Path) -> Any:
    return np.fromfile(folder / GUARDS_FILE, np.int64).tolist()


def test_a_row_may_be_larger_than_a_piece(make_durable: Any, feed: Any, tmp_path: Path, monkeypatch: Any) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, 10)
    monkeypatch.setattr("services.replay.snapshot.PIECE_BYTES", 1)
    monkeypatch.setattr("services.replay.snapshot._let_others_run", lambda: None)
    assert durable.table.snapshot(tmp_path / "copy").steps == 64


def test_a_copy_of_no_whole_chunk_is_refused(
    make_durable: Any, feed: Any, make_chunk: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    durable = make_durable(capacity=64)
    sequence = itertools.count()

    def insert() -> None:
        for _ in range(2):
            durable.table.insert("a", 1, make_chunk(T=12, sequence=next(sequence)), max_wait_s=0.0)

    insert()  # a piece holds 16 rows, and a chunk has 24
    hold_pieces_of(16, durable.table, monkeypatch, insert)
    with pytest.raises(UserError, match="no chunk could be copied before it was overwritten; choose a larger ring"):
        durable.table.snapshot(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ring-0"]


def test_steps_that_an_actor_gives_up_meanwhile_come_back_with_the_copy(
    make_durable: Any, feed: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, 1, actor="slow")
    feed(durable.table, 5)
    hold_pieces_of(16, durable.table, monkeypatch, lambda: feed(durable.table, 1, actor="slow", incarnation=2))
    copied = durable.table.snapshot(tmp_path / "copy")
    assert durable.table.store.counters.lost_tail == 2  # the last step of the life before, in two lanes
    durable.drop()
    assert copied.steps == durable.open(tmp_path / "copy").store.counters.resident == 48


def test_rows_of_keys_that_a_restart_gave_up_are_no_steps(make_durable: Any, feed: Any, tmp_path: Path) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, 10)
    durable.table.store.ring.reserve(24)  # a process that is killed while it writes: three old chunks are gone
    durable.drop()
    table = durable.open()
    copied = table.snapshot(tmp_path / "copy")
    assert copied.steps == table.store.counters.resident == 40


def test_chunks_that_were_found_damaged_are_no_steps(
    make_durable: Any, feed: Any, tmp_path: Path, another_boot: Callable[[], None]
) -> None:
    durable = make_durable()
    feed(durable.table, 5)
    durable.drop()
    with (durable.path / "columns" / "reward").open("r+b") as stream:
        stream.seek(4 * 10)
        stream.write(b"\xff" * 4)
    another_boot()
    table = durable.open()
    copied = table.snapshot(tmp_path / "copy")
    assert copied.steps == table.store.counters.resident == 30  # and two steps that wanted a successor in it


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


def test_one_at_a_time(make_durable: Any, feed: Any, tmp_path: Path, monkeypatch: Any) -> None:
    durable = make_durable()
    begun, go_on = threading.Event(), threading.Event()
    feed(durable.table, 1)

    def wait() -> None:
        begun.set()
        go_on.wait(30.0)

    monkeypatch.setattr("services.replay.snapshot._let_others_run", wait)
    thread = threading.Thread(target=durable.table.snapshot, args=(tmp_path / "copy",))
    thread.start()
    assert begun.wait(30.0)
    with pytest.raises(UserError, match="another snapshot is under way"):
        durable.table.snapshot(tmp_path / "other")
    go_on.set()
    thread.join()
    assert durable.table.snapshot(tmp_path / "other").steps == 8


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


def test_a_write_that_falls_short_gives_the_copy_up(
    make_durable: Any, feed: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, 10)
    pwrite = os.pwrite

    def write_less(descriptor: int, data: Any, offset: int) -> int:
        is_copy = ".copying" in os.readlink(f"/proc/self/fd/{descriptor}")
        return pwrite(descriptor, bytes(data)[:-1] if is_copy else data, offset)

    with monkeypatch.context() as patches:
        patches.setattr("services.replay.snapshot.os.pwrite", write_less)
        with pytest.raises(UserError, match=r"no space is left for .*/copy', and the snapshot was given up"):
            durable.table.snapshot(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ring-0"]
    assert open_files_below(tmp_path / ".copy.copying") == []


def test_traffic_goes_on_and_every_copy_is_consistent(
    make_durable: Any, make_chunk: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    capacity = 1 << 15
    durable = make_durable(capacity=capacity)
    monkeypatch.setattr(
        "services.replay.snapshot.PIECE_BYTES", 1 << 16
    )  # some thirty pieces, and others run in between
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
        assert 0 < copied.steps == table.store.counters.resident
        ring = table.store.ring
        resident = (ring.status == StepOutcome.ITEM) | (ring.status == StepOutcome.OPEN)
        assert (ring.observation["policy"][resident, 1] == (ring.keys(resident.nonzero()[0]) % 33 % 2)).all()
        durable.drop()
