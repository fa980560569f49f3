"""Damaged files, and other lives of the machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict

import numpy as np
import pytest

from services.common.errors import UserError
from services.replay import records
from services.replay.admission import InsertStatus
from services.replay.chunk_log import segments_in
from services.replay.items import StepOutcome
from tests.table_states import no_space, state_of


def _flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    file.write_bytes(data)


def _damages(path: Path) -> Dict[str, Callable[[], Any]]:
    log = path / "chunks" / "00000000.log"
    rewards = path / "columns" / "reward"
    return {
        "format.json": lambda: _flip(path / "format.json", 30),
        "guards": lambda: (path / "guards").write_bytes(b"123"),
        "reward": lambda: rewards.write_bytes(rewards.read_bytes()[:-4]),
        "priority": (path / "columns" / "priority").unlink,
        "flags": lambda: (path / "columns" / "flags").write_bytes(bytes(64)),
        "00000000.log": lambda: _flip(log, 400),
        "chunks/00000000.log": log.unlink,
        "chunks/00000000.log ": lambda: log.write_bytes(log.read_bytes()[:700]),
    }


@pytest.mark.parametrize("name", list(_damages(Path())))
def test_a_damaged_file_is_named_and_nothing_is_overwritten(name: str, make_durable: Any, feed: Any) -> None:
    durable = make_durable()
    feed(durable.table, 4)
    durable.drop()
    _damages(durable.path)[name]()
    facts = [file for file in durable.path.rglob("*") if file.is_file() and file.name not in ("lock", "nonce")]
    before = {file: file.read_bytes() for file in facts if file.name not in ("status", "priority", "times_sampled")}
    with pytest.raises(UserError, match=name.strip() + "' is damaged"):
        durable.open()
    with pytest.raises(UserError, match=name.strip()):
        durable.open()  # and again: the first try has mended and broken nothing
    derived = ("n_step_return", "discount", "bootstrap_key")
    assert {f: f.read_bytes() for f in before if f.name not in derived} == {
        f: data for f, data in before.items() if f.name not in derived
    }


def test_a_log_cut_behind_a_record_is_noticed_by_what_was_acknowledged(make_durable: Any, feed: Any) -> None:
    durable = make_durable()
    feed(durable.table, 2)
    end = durable.folder.log._offset
    feed(durable.table, 3)  # two resends, one new
    log = durable.path / "chunks" / "00000000.log"
    durable.drop()
    data = log.read_bytes()
    log.write_bytes(data[:end] + bytes(len(data) - end))
    with pytest.raises(UserError, match="it ends at key 16, but rows up to 24 were acknowledged"):
        durable.open()


def test_after_another_boot_damaged_chunks_are_dropped_and_counted(
    make_durable: Any, feed: Any, make_chunk: Any, another_boot: Any, clock: Any
) -> None:
    durable = make_durable()
    feed(durable.table, 5)
    feed(durable.table, 1, actor="b")
    before = durable.table.store.counters
    durable.drop()
    another_boot()
    observation = np.memmap(durable.path / "columns" / "observation.policy", np.float32, "r+", shape=(64, 2))
    observation[18] = 77.0  # third chunk of "a"
    observation.flush()
    clock.now_s, durable.wall_ahead_s = 3.0, 1147.0  # it stood at 100, and 50 s have gone by
    table = durable.open()
    assert table.check_valid() is None
    assert table.store.counters.acknowledged == before.acknowledged
    ring = table.store.ring
    assert not ring.status[16:24].any()
    # What had looked ahead into the damaged chunk ends before it, and its last steps have no successor.
    assert ring.status[12:16].tolist() == [StepOutcome.ITEM] * 2 + [StepOutcome.LOST] * 2
    assert ring.bootstrap_key[12:14].tolist() == [14, 15]
    assert table.store.counters.reset == 8 + 2
    assert table.damage == {"ring": 1, "log": 0}
    assert ring.inserted_s[0] == 3.0 - 50.0  # ages go on by the wall clock
    # The actor may be ahead of what is known here, and goes on where it is.
    answer = table.insert("a", 1, make_chunk(sequence=9), max_wait_s=0.0)
    assert answer.status is InsertStatus.APPLIED
    assert table.insert("a", 1, make_chunk(sequence=11), max_wait_s=0.0).status is InsertStatus.OUT_OF_ORDER
    state = state_of(table)
    again = durable.reopen()
    assert state_of(again) == state  # dropped for good, though nothing is checked in the same boot
    assert again.damage == {"ring": 0, "log": 0}


def test_after_another_boot_what_is_left_of_the_log_is_used(
    make_durable: Any, make_chunk: Any, another_boot: Any
) -> None:
    durable = make_durable(capacity=1 << 14, n_step=1)
    for sequence in range(1500):
        durable.table.insert("a", 1, make_chunk(T=2, sequence=sequence), max_wait_s=0.0)
    durable.drop()
    segments = segments_in(durable.path / "chunks")
    assert len(segments) >= 2
    another_boot()
    _flip(segments[0].file, 100_000)
    table = durable.open()
    assert table.check_valid() is None
    counters = table.store.counters
    assert counters.acknowledged == 6000
    assert 0 < counters.reset < 2000
    state = state_of(table)
    assert state_of(durable.reopen()) == state  # the hole is known now, and what came after it must be whole
    _flip(segments_in(durable.path / "chunks")[-1].file, 40)
    with pytest.raises(UserError, match="is damaged"):
        durable.reopen()


def test_priorities_that_a_crash_of_the_machine_spoilt_are_set_anew(
    make_durable: Any, feed: Any, another_boot: Any
) -> None:
    durable = make_durable(n_step=1)
    feed(durable.table, 2, q_taken=2.0, value=1.0)
    want = durable.table.store.ring.priority.copy()
    durable.drop()
    priority = np.memmap(durable.path / "columns" / "priority", np.float64, "r+")
    priority[:4] = [np.nan, -1.0, 0.0, 1e300]
    priority.flush()
    another_boot()
    table = durable.open()
    assert table.check_valid() is None
    assert table.store.ring.priority.tolist() == want.tolist()


def test_a_disk_without_room_for_the_recovery_is_said_and_can_be_retried(
    make_durable: Any, feed: Any, another_boot: Any, monkeypatch: Any
) -> None:
    durable = make_durable()
    feed(durable.table, 2)
    durable.drop()
    another_boot()

    with monkeypatch.context() as patches:
        patches.setattr("services.replay.chunk_log.os.posix_fallocate", no_space)
        with pytest.raises(UserError, match=r"no space is left for .*00000001\.log"):
            durable.open()
    assert durable.open().store.counters.acknowledged == 16


def test_a_ring_that_came_back_older_uses_keys_again_under_another_id(
    make_durable: Any, make_chunk: Any, another_boot: Any
) -> None:
    durable = make_durable(capacity=64)
    for sequence in range(2):
        durable.table.insert("a", 1, make_chunk(sequence=sequence, first_step=4 * sequence), max_wait_s=0.0)
    end = durable.folder.log._offset
    for sequence in range(2, 6):
        durable.table.insert("a", 1, make_chunk(sequence=sequence, first_step=4 * sequence), max_wait_s=0.0)
    table_id, ring_id = durable.table.table_id, durable.table.ring_id
    reserved = durable.table.store.ring.reserved
    assert (durable.reopen().table_id, durable.table.ring_id) == (table_id, ring_id), "nothing was lost: the same keys"
    durable.drop()
    # What a machine's crash can do: the end of the log and the guards were not written back.
    log = durable.path / "chunks" / "00000000.log"
    data = log.read_bytes()
    log.write_bytes(data[:end] + bytes(len(data) - end))
    guards = np.memmap(durable.path / "guards", np.int64, "r+")
    guards[:2] = 16
    guards.flush()
    another_boot()
    table = durable.open()
    assert table.store.ring.reserved < reserved
    assert table.table_id != table_id
    assert table.ring_id == ring_id


def test_an_absurd_number_of_lanes_takes_no_memory(make_durable: Any, feed: Any) -> None:
    durable = make_durable()
    feed(durable.table, 1)
    for _ in range(2):  # the second time the segment is written anew, so that its summary is believed
        durable.table._journal.roll()
    durable.drop()
    file = segments_in(durable.path / "chunks")[-1].file
    facts = json.loads(records.parse(file.read_bytes()).records[0].body)
    facts["actors"][0]["groups"][0][1] = 1 << 40  # more keys than there is memory
    file.write_bytes(records._seal(records.RecordKind.SUMMARY, json.dumps(facts).encode()).ljust(1 << 18, b"\0"))
    with pytest.raises(UserError, match=r"make no sense.*a lane group of 1099511627776 lanes"):
        durable.open()


def test_a_log_that_tells_of_rows_that_were_never_written_leaves_the_ring_alone(make_durable: Any, feed: Any) -> None:
    durable = make_durable()
    feed(durable.table, 1)
    durable.drop()
    file = segments_in(durable.path / "chunks")[-1].file
    found = records.parse(file.read_bytes()).records
    counts = replace(records.counts_of(found[-1]), reserved=1 << 40)
    told = b"".join(records._seal(record.kind, record.body) for record in found) + records.pack_state(counts)
    file.write_bytes(told.ljust(1 << 18, b"\0"))
    before = (durable.path / "guards").read_bytes()
    with pytest.raises(UserError, match=f"make no sense .rows up to {1 << 40}, of 8"):
        durable.open()
    assert (durable.path / "guards").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_steps": 1 << 31}, "a chunk of .* in a ring of 64 rows"),
        ({"num_lanes": (1 << 32) - 1, "num_steps": (1 << 32) - 1}, "a chunk of .* in a ring of 64 rows"),
        ({"num_final": 9}, "a chunk of .*'num_final': 9"),
        ({"first_key": 3}, "not behind one another"),
        ({"first_key": -8}, "not behind one another"),
        ({"num_steps": 5}, "not below key 16"),
    ],
)
def test_chunks_that_no_replay_can_have_written_are_refused(changes: Dict[str, int], words: str) -> None:
    chunks = np.zeros(2, records.CHUNK_DTYPE)
    for name, values in {"first_key": [0, 8], "num_steps": [4, 4], "num_lanes": [2, 2]}.items():
        chunks[name] = values
    records.check_chunks(chunks, capacity=64, reserved=16)
    for name, value in changes.items():
        chunks[1][name] = value
    with pytest.raises(ValueError, match=words):
        records.check_chunks(chunks, capacity=64, reserved=16)
