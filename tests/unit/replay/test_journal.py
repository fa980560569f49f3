from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.common.chunk import ActorCounters
from services.common.errors import UserError
from services.replay import records
from services.replay.admission import InsertStatus, settled_steps
from services.replay.chunk_log import ChunkLog, RingBroken, segments_in
from services.replay.items import StepOutcome
from services.replay.journal import FolderJournal
from services.replay.ring import Ring
from services.replay.sampler_settings import SamplerSettings
from services.replay.table import Table


class Killed(BaseException):
    """The process ends here."""


def _columns(table: Table) -> Dict[str, List[Any]]:
    ring = table.store.ring
    items = ring.status == StepOutcome.ITEM
    found = {name: ring.column(name).tolist() for name in ("status", "priority", "times_sampled")}
    for name in ("n_step_return", "discount", "bootstrap_key", "reward", "actor", "inserted_s"):
        found[name] = ring.column(name)[items].tolist()
    return found


def _ages(table: Table) -> Any:
    ring = table.store.ring
    keys = np.sort(ring.keys(np.flatnonzero(ring.status == StepOutcome.ITEM)))
    stamps = table.store.stamps.look_up(keys, 0.0, table.newest_version, table._admission.name_table()).resolve()
    columns = {name: np.asarray(value).tolist() for name, value in vars(stamps).items()}
    return columns, table.store.history.pairs(), table.info().sampling.num_expired


def _state(table: Table) -> Any:
    oldest = table.store.ring.oldest_key  # what is overwritten is no open window, whether it is still listed or not
    groups = {
        (
            (record.name, record.incarnation, tuple(record.fenced), record.acknowledged_steps),
            (record.life_acknowledged_steps, record.elsewhere_steps, record.counters.produced_steps),
        ): {
            index: (
                g.num_lanes,
                g.next_sequence,
                g.next_step,
                np.where(g.open_keys >= oldest, g.open_keys, -1).tolist(),
            )
            for index, g in record.groups.items()
        }
        for record in table._admission.actors.values()
    }
    return table.store.counters, table.store.ring.reserved, groups, _columns(table), _ages(table)


def test_a_table_comes_back_as_it_was(make_durable: Any, feed: Any, make_chunk: Any, clock: Any) -> None:
    durable = make_durable()
    feed(durable.table, 3, time_outs=[(1, 0)])
    feed(durable.table, 2, actor="b", q_taken=2.0, value=1.0)
    durable.table.update_priorities(np.arange(6), np.arange(1.0, 7.0))
    drawn = durable.table.sample(2, 8, max_wait_s=0.0)
    before = _state(durable.table)
    clock.now_s += 7.0
    table = durable.reopen()
    assert _state(table) == before
    assert table.insert("a", 1, make_chunk(sequence=2), max_wait_s=0.0).status is InsertStatus.DUPLICATE
    assert table.insert("a", 1, make_chunk(sequence=4), max_wait_s=0.0).status is InsertStatus.OUT_OF_ORDER
    assert table.insert("a", 1, make_chunk(sequence=3), max_wait_s=0.0).status is InsertStatus.APPLIED
    assert table.check_valid() is None
    assert table.inspector.item(int(drawn.batches[0].keys[0])).age_s == 7.0  # the machine's clock went on


def test_the_limiter_comes_back_without_debt(make_durable: Any, feed: Any) -> None:
    durable = make_durable(samples_per_insert=4.0, error_buffer=64.0, max_chunk_steps=8, n_step=1)
    feed(durable.table, 3)
    durable.table.sample(4, 8, max_wait_s=0.0)
    durable.table.note_state()
    info = durable.table.info().limiter
    assert durable.table._limiter.balance != 0.0
    table = durable.reopen()
    assert (table.info().limiter.inserted_items, table.info().limiter.sampled_items) == (
        info.inserted_items,
        info.sampled_items,
    )
    assert table._limiter.balance == 0.0
    assert table.sample(1, 4, max_wait_s=0.0).batches


def test_fenced_lives_stay_fenced_and_closed_windows_closed(make_durable: Any, feed: Any, make_chunk: Any) -> None:
    durable = make_durable()
    feed(durable.table, 1, incarnation=1)
    feed(durable.table, 1, incarnation=2)
    feed(durable.table, 1, actor="b")
    durable.table.close_actor("b", 1)
    before = _state(durable.table)
    table = durable.reopen()
    assert _state(table) == before
    assert table.insert("a", 1, make_chunk(sequence=1), max_wait_s=0.0).status is InsertStatus.FENCED
    assert table.store.counters.lost_tail == 4


def test_another_n_and_discount_rebuild_the_items(make_durable: Any, make_table: Any, feed: Any) -> None:
    durable = make_durable(n_step=3, discount=0.5)
    feed(durable.table, 4, time_outs=[(2, 1)])
    for n_step, discount in ((1, 0.25), (5, 1.0), (3, 0.5)):
        table = durable.reopen(n_step=n_step, discount=discount)
        fresh = make_table(n_step=n_step, discount=discount)
        feed(fresh, 4, time_outs=[(2, 1)])
        got, want = _columns(table), _columns(fresh)
        assert (table.store.counters.items, table.store.counters.unripe) == (
            fresh.store.counters.items,
            fresh.store.counters.unripe,
        )
        for name in ("status", "n_step_return", "discount", "bootstrap_key"):
            assert got[name] == want[name]
        assert (durable.folder.format.n_step, durable.folder.format.discount) == (n_step, discount)


STAGES = ["reserve", "evict", "half the columns", "settle", "half a record", "record", "commit"]


def _kill_at(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the process dies at `stage` of an insert."""
    if stage == "reserve":
        monkeypatch.setattr("services.replay.item_store.ItemStore._evict", _die)
    elif stage == "evict":
        monkeypatch.setattr("services.replay.item_store.ItemStore._write", _die)
    elif stage == "half the columns":
        write = Ring.write

        def half(self: Ring, first_key: int, columns: Any) -> None:
            if "flags" in columns:
                write(self, first_key, {name: rows[: len(rows) // 2] for name, rows in columns.items()})
                raise Killed
            write(self, first_key, columns)

        monkeypatch.setattr(Ring, "write", half)
    elif stage == "settle":
        monkeypatch.setattr("services.replay.journal.FolderJournal.inserted", _die)
    elif stage == "half a record":
        append = ChunkLog.append

        def torn(self: ChunkLog, record: bytes) -> None:
            append(self, record[: len(record) // 2])
            raise Killed

        monkeypatch.setattr(ChunkLog, "append", torn)
    elif stage == "record":
        monkeypatch.setattr(Ring, "commit", _die)
    else:
        monkeypatch.setattr("services.replay.admission.Admission.acknowledge", _die)


def _die(*_values: Any) -> None:
    raise Killed


@pytest.mark.parametrize("num_chunks", [2, 7, 9])
@pytest.mark.parametrize("stage", STAGES)
def test_a_death_at_any_stage_of_an_insert_loses_and_doubles_nothing(
    stage: str, num_chunks: int, make_durable: Any, make_table: Any, feed: Any, make_chunk: Any, monkeypatch: Any
) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, num_chunks, time_outs=[(1, 1)])
    overwritten = durable.table.store.counters.overwritten
    with monkeypatch.context() as patches:
        _kill_at(stage, patches)
        with pytest.raises(Killed):
            durable.table.insert("a", 1, make_chunk(sequence=num_chunks, time_outs=[(1, 1)]), max_wait_s=0.0)
    table = durable.reopen()
    is_there = stage in ("record", "commit")
    assert table.store.counters.acknowledged == 8 * (num_chunks + is_there)
    again = table.insert("a", 1, make_chunk(sequence=num_chunks, time_outs=[(1, 1)]), max_wait_s=0.0)
    assert again.status is (InsertStatus.DUPLICATE if is_there else InsertStatus.APPLIED)
    assert table.check_valid() is None
    # What the chunk that vanished had overwritten is gone, and counted.
    rows = table.store.ring.num_rows
    assert rows == min(64, 9 * (num_chunks + 1 + (not is_there)))
    assert table.store.counters.overwritten >= overwritten
    if num_chunks == 2:
        fresh = make_table()
        feed(fresh, 3, time_outs=[(1, 1)])
        assert table.store.counters == fresh.store.counters
        assert sorted(_columns(table)["n_step_return"]) == sorted(_columns(fresh)["n_step_return"])
    assert _state(durable.reopen()) == _state(table)


def test_nothing_is_acknowledged_when_the_log_finds_no_room(make_durable: Any, feed: Any, make_chunk: Any) -> None:
    durable = make_durable()
    feed(durable.table, 1)
    before = durable.table.store.counters
    log = durable.folder.log
    log._offset, kept = log._size - 100, log._offset  # the segment is used up ...
    blocker = durable.path / "chunks" / "00000001.log"
    blocker.mkdir()  # ... and the next one cannot be made
    answer = durable.table.insert("a", 1, make_chunk(sequence=1), max_wait_s=0.0)
    assert answer.status is InsertStatus.BLOCKED
    assert "00000001.log" in answer.reason
    assert durable.table.expire_actors() == []
    assert durable.table.store.counters == before
    blocker.rmdir()
    log._offset = kept
    assert durable.table.insert("a", 1, make_chunk(sequence=1), max_wait_s=0.0).status is InsertStatus.APPLIED


def test_a_record_that_cannot_be_written_ends_it_all(
    make_durable: Any, feed: Any, make_chunk: Any, monkeypatch: Any
) -> None:
    durable = make_durable()
    feed(durable.table, 1)

    with monkeypatch.context() as patches:
        patches.setattr("services.replay.chunk_log.os.pwrite", _no_space)
        with pytest.raises(RingBroken, match="no space is left"):
            durable.table.insert("a", 1, make_chunk(sequence=1), max_wait_s=0.0)
    with pytest.raises(RingBroken, match="takes no record"):  # memory is ahead of the log: no later chunk either
        durable.table.insert("b", 1, make_chunk(), max_wait_s=0.0)
    assert durable.reopen().store.counters.acknowledged == 8


def test_versions_and_stamps_come_back(make_durable: Any, feed: Any, make_chunk: Any, clock: Any) -> None:
    durable = make_durable()
    feed(durable.table, 1)
    durable.table.set_newest(8, 40)
    late = replace(make_chunk(sequence=1), acting_seconds=4.0, queued_seconds=0.5, newest_version=6)
    durable.table.insert("a", 1, late, max_wait_s=0.0)
    clock.now_s += 3.0
    before = _ages(durable.table)
    stamps, pairs, _ = before
    assert sorted(set(stamps["arrival_version"])) == [0, 8]
    assert sorted(set(stamps["known_version"])) == [0, 6]
    assert sorted(set(stamps["transit_s"])) == [0.0, 0.5]
    assert pairs == [(0, 0), (8, 40)]
    table = durable.reopen()
    assert _ages(table) == before
    assert table.newest_version == 8
    drawn = table.sample(1, 4, max_wait_s=0.0)
    assert drawn.stamps.source.sampling_version == 8


def test_a_version_that_found_no_room_is_written_before_the_next_chunk(
    make_durable: Any, feed: Any, make_chunk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = make_durable()
    with monkeypatch.context() as full:
        full.setattr(FolderJournal, "why_full", lambda _: "no space is left")
        durable.table.set_newest(3, 30)
    feed(durable.table, 1)
    before = _ages(durable.table)
    assert set(before[0]["arrival_version"]) == {3}
    assert _ages(durable.reopen()) == before


def test_a_ring_from_before_versions_were_written_down_opens_as_it_did(
    make_durable: Any, feed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = make_durable()
    durable.table.set_newest(8, 40)
    feed(durable.table, 2)
    with monkeypatch.context() as older:
        older.setattr(records, "summary_versions", lambda _: [])
        older.setattr(records, "version_facts", lambda _: (0, 0))
        table = durable.reopen()
    stamps, pairs, _ = _ages(table)
    assert set(stamps["arrival_version"]) == {0}  # unknown
    assert pairs == [(0, 0)]
    assert table.sample(1, 4, max_wait_s=0.0).batches


def test_the_first_summary_need_not_speak_of_versions(make_durable: Any) -> None:
    durable = make_durable()
    summary = records.parse(segments_in(durable.path / "chunks")[0].file.read_bytes()).records[0]
    facts = json.loads(summary.body)
    del facts["versions"]
    assert records.summary_versions(summary._replace(body=json.dumps(facts).encode())) == []


def test_versions_outlive_the_segments_that_heard_of_them(make_durable: Any, make_chunk: Any) -> None:
    durable = make_durable(capacity=256)
    durable.table.set_newest(2, 20)
    durable.table.set_newest(9, 90)
    for sequence in range(2000):
        durable.table.insert("a", 1, make_chunk(T=2, sequence=sequence), max_wait_s=0.0)
    assert segments_in(durable.path / "chunks")[0].number >= 1
    table = durable.reopen()
    assert table.store.history.pairs() == [(0, 0), (2, 20), (9, 90)]
    assert set(_ages(table)[0]["arrival_version"]) == {9}


def test_a_chief_whose_versions_begin_anew_begins_another_history(make_durable: Any, feed: Any) -> None:
    durable = make_durable(sampling=SamplerSettings(max_lag_updates=50))
    durable.table.set_newest(7, 70, chief=1)
    feed(durable.table, 2)
    durable.table.set_newest(20, 700, chief=1)
    assert durable.table.info().num_items == 0
    durable.table.set_newest(1, 0, chief=2)
    for table in (durable.table, durable.reopen()):
        assert table.newest_version == 1
        assert table.store.history.pairs() == [(0, 0), (1, 0)]
        assert table.info().num_items > 0
        assert table.check_valid() is None


def test_the_log_stays_small_and_the_table_comes_back_from_any_of_its_segments(
    make_durable: Any, feed: Any, make_chunk: Any
) -> None:
    durable = make_durable(capacity=256)
    sizes = set()
    for sequence in range(4000):
        status = durable.table.insert("a", 1, make_chunk(T=2, sequence=sequence), max_wait_s=0.0).status
        assert status is InsertStatus.APPLIED
        if sequence % 500 == 499:
            sizes.add(len(segments_in(durable.path / "chunks")))
            before = _state(durable.table)
            assert _state(durable.reopen()) == before
    assert sizes <= {1, 2}
    assert segments_in(durable.path / "chunks")[0].number >= 3


def _fill_with_news(durable: Any, make_chunk: Any, num_news: int, sequence: int) -> int:
    """What the log is told while no rows come; returns the next sequence number."""
    for _ in range(num_news):
        known = durable.table.store.history
        durable.table.set_newest(known.newest_version + 1, known.newest_updates + 5)
        nothing = make_chunk(T=0, sequence=sequence, first_step=4)
        assert durable.table.insert("a", 1, nothing, max_wait_s=0.0).status is InsertStatus.APPLIED
        sequence += 1
    return sequence


def test_the_log_does_not_grow_while_no_rows_come(make_durable: Any, feed: Any, make_chunk: Any) -> None:
    durable = make_durable()
    feed(durable.table, 1)
    feed(durable.table, 1, actor="b")
    sequence, sizes = 1, []
    for _ in range(5):
        sequence = _fill_with_news(durable, make_chunk, 1000, sequence)
        sizes.append(durable.folder.log.num_bytes)
    assert max(sizes) < 3 * (1 << 18)  # of 2.3 MB that were told
    before = _state(durable.table)
    assert _state(durable.reopen()) == before
    assert durable.table.insert("a", 1, make_chunk(sequence=sequence, first_step=4), max_wait_s=0.0).reason == ""
    before = _state(durable.table)
    assert (before[0].unripe, before[0].lost_tail) == (6 + 6, 0)  # what came before goes on in what came after
    assert _state(durable.reopen()) == before


def test_windows_closed_while_no_rows_came_stay_closed(make_durable: Any, feed: Any, make_chunk: Any) -> None:
    durable = make_durable()
    for actor in ("a", "b", "c"):
        feed(durable.table, 1, actor=actor)
    durable.table._journal.roll()
    durable.table.close_actor("b", 1)
    feed(durable.table, 1, actor="c", incarnation=2, T=0)  # another life closes the windows of the one before
    sequence = _fill_with_news(durable, make_chunk, 1500, 1)
    files = segments_in(durable.path / "chunks")
    assert [record.kind for record in records.parse(files[-1].file.read_bytes()).records[:3]] == [
        records.RecordKind.SUMMARY,
        records.RecordKind.CLOSED,
        records.RecordKind.CLOSED,
    ]
    for actor, life in (("a", 1), ("b", 1), ("c", 2)):
        chunk = make_chunk(sequence=sequence if actor == "a" else 1, first_step=0 if actor == "c" else 4)
        assert durable.table.insert(actor, life, chunk, max_wait_s=0.0).status is InsertStatus.APPLIED
    before = _state(durable.table)
    assert before[0].lost_tail == 2 * 2
    assert _state(durable.reopen()) == before


def test_a_gap_that_a_chunk_without_rows_told_stays_one(make_durable: Any, feed: Any, make_chunk: Any) -> None:
    durable = make_durable()
    feed(durable.table, 1)
    durable.table._journal.roll()
    durable.table.insert("a", 1, make_chunk(T=0, sequence=1, first_step=9), max_wait_s=0.0)
    assert durable.table.store.counters.lost_tail == 2
    durable.table._journal.roll()
    before = _state(durable.table)
    assert _state(durable.reopen()) == before


@pytest.mark.parametrize("stage", ["os.pwrite", "os.fsync", "Path.replace", "sync_folder"])
def test_a_death_while_a_segment_is_begun_anew_loses_nothing(
    stage: str, make_durable: Any, feed: Any, make_chunk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = make_durable()
    feed(durable.table, 1)
    durable.table._journal.roll()
    sequence = _fill_with_news(durable, make_chunk, 50, 1)
    before = _state(durable.table)
    with monkeypatch.context() as patches:
        patches.setattr(f"services.replay.chunk_log.{stage}", _die)
        with pytest.raises(Killed):
            durable.table._journal.roll()
    assert _state(durable.reopen()) == before
    assert [file.name for file in sorted((durable.path / "chunks").iterdir())] == ["00000000.log", "00000001.log"]
    assert _fill_with_news(durable, make_chunk, 1, sequence) == sequence + 1


def test_a_disk_too_full_to_begin_a_segment_anew_blocks_and_can_be_retried(
    make_durable: Any, feed: Any, make_chunk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = make_durable()
    feed(durable.table, 1)
    durable.table._journal.roll()
    log = durable.folder.log
    with monkeypatch.context() as full:
        full.setattr("services.replay.chunk_log.SPARE_BYTES", log._size)
        full.setattr("services.replay.chunk_log.os.fsync", _no_space)
        answer = durable.table.insert("a", 1, make_chunk(sequence=1), max_wait_s=0.0)
    assert answer.status is InsertStatus.BLOCKED
    assert "no space is left" in answer.reason
    assert durable.table.insert("a", 1, make_chunk(sequence=1), max_wait_s=0.0).status is InsertStatus.APPLIED
    before = _state(durable.table)
    assert _state(durable.reopen()) == before


def _no_space(*_values: Any) -> None:
    raise OSError(28, "No space left on device")


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
    state = _state(table)
    again = durable.reopen()
    assert _state(again) == state  # dropped for good, though nothing is checked in the same boot
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
    state = _state(table)
    assert _state(durable.reopen()) == state  # the hole is known now, and what came after it must be whole
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
        patches.setattr("services.replay.chunk_log.os.posix_fallocate", _no_space)
        with pytest.raises(UserError, match=r"no space is left for .*00000001\.log"):
            durable.open()
    assert durable.open().store.counters.acknowledged == 16


EVENT = st.sampled_from(
    ["insert", "insert", "insert", "gap", "restart", "close", "silence", "sick", "sample", "resend", "reopen", "kill",
     "boot", "copy", "version", "version", "roll", "roll"]
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    capacity=st.integers(16, 60),
    n_step=st.integers(1, 5),
    bound=st.sampled_from([None, 0, 30]),
    most=st.sampled_from([0, 4]),
)
def test_every_step_is_accounted_for_whatever_happens_and_however_often_it_comes_back(
    data: Any,
    capacity: int,
    n_step: int,
    bound: Optional[int],
    most: int,
    make_durable: Any,
    make_chunk: Any,
    clock: Any,
) -> None:
    boot = ["boot"]
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("services.replay.ring_folder.boot_id", lambda: boot[0])
        sampling = SamplerSettings(max_lag_updates=bound, max_times_sampled=most)
        durable = make_durable(capacity=capacity, n_step=n_step, max_actor_silence_s=50.0, sampling=sampling)
        _live(data, durable, make_chunk, clock, boot)


def _live(data: Any, durable: Any, make_chunk: Any, clock: Any, boot: List[str]) -> None:
    lives = {name: [1, 0, 0] for name in ("a", "b")}  # incarnation, sequence, first step
    for number, event in enumerate(data.draw(st.lists(EVENT, min_size=5, max_size=30))):
        table = durable.table
        name = data.draw(st.sampled_from(["a", "b"]))
        life = lives[name]
        clock.now_s += 100.0 if event == "silence" else 1.0
        if event == "close":
            table.close_actor(name, life[0])
        elif event == "sample":
            for batch in table.sample(2, 8, max_wait_s=0.0).batches:
                table.update_priorities(batch.keys, np.abs(batch.n_step_return).astype(np.float64))
        elif event == "version":
            known = table.store.history
            table.set_newest(known.newest_version + 1, known.newest_updates + data.draw(st.integers(0, 20)))
        elif event == "silence":
            table.expire_actors()
        elif event == "roll":
            for _ in range(data.draw(st.integers(1, 2))):
                table._journal.roll()
        elif event == "reopen":
            before = _state(table)
            assert _state(durable.reopen()) == before
            table = durable.reopen(n_step=data.draw(st.integers(1, 5)))
            durable.settings["n_step"] = table.settings.n_step
        elif event == "boot":
            boot[0] = f"boot {number}"
            durable.reopen()
        elif event == "copy":
            target = durable.path.with_name(f"{durable.path.name}-{number}")
            table.snapshot(target)
            durable.drop()
            durable.path = target
            acknowledged = table.store.counters.acknowledged
            assert durable.open().store.counters.acknowledged == acknowledged
        else:
            _insert(data, durable, make_chunk, event, name, life)
        assert durable.table.check_valid() is None
    durable.drop()


def _insert(data: Any, durable: Any, make_chunk: Any, event: str, name: str, life: List[int]) -> None:
    table = durable.table
    if event == "restart":
        life[:] = [life[0] + 1, 0, 0]
    life[2] += event == "gap"
    T = data.draw(st.integers(0, 4))
    places = st.lists(st.tuples(st.integers(0, max(0, T - 1)), st.integers(0, 1)), max_size=3, unique=True)
    marks = {kind: data.draw(places) if T else [] for kind in ("ends", "time_outs", "resets")}
    has_final = data.draw(st.booleans()) and not marks["resets"]
    cut = has_final and data.draw(st.booleans()) and T > 0
    chunk = make_chunk(T=T, sequence=life[1], first_step=life[2], cut=cut, final=has_final, **marks)
    chunk.policy_version[:] = data.draw(st.integers(0, table.newest_version))
    if event == "sick" and T:
        chunk.reward[data.draw(st.integers(0, T - 1)), 0] = np.nan
    before_steps = table.info().steps.acknowledged
    if event == "kill":
        with pytest.MonkeyPatch.context() as patches:
            _kill_at(data.draw(st.sampled_from(STAGES)), patches)
            try:
                table.insert(name, life[0], chunk, max_wait_s=0.0)
            except Killed:
                pass
        table = durable.reopen()
        assert table.store.counters.acknowledged in (before_steps, before_steps + chunk.num_valid)
    status = table.insert(name, life[0], chunk, max_wait_s=0.0).status
    assert status in ((InsertStatus.APPLIED, InsertStatus.DUPLICATE)[: 1 + (event == "kill")])
    assert table.info().steps.acknowledged == before_steps + chunk.num_valid
    life[1] += 1
    life[2] += T
    if event == "resend":
        assert table.insert(name, life[0], chunk, max_wait_s=0.0).status is InsertStatus.DUPLICATE


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


def _counted(chunk: Any, produced: int, buffered: int, **dropped: int) -> Any:
    return replace(chunk, counters=ActorCounters(produced, buffered, dropped))


@pytest.mark.parametrize("rolls_at", [-1, 0, 20, 39])
def test_the_account_of_a_life_comes_back(make_durable: Any, make_chunk: Any, rolls_at: int) -> None:
    durable = make_durable()
    insert = durable.table.insert
    insert("a", 1, _counted(make_chunk(sequence=0), 20, 4), max_wait_s=0.0)
    insert("b", 7, _counted(make_chunk(sequence=5), 100, 4, full=6), max_wait_s=0.0)  # another ring had the rest
    for number in range(40):
        insert("a", 2, _counted(make_chunk(sequence=number), 8 * number + 8, 0), max_wait_s=0.0)
        if number == rolls_at:  # the summary of a new segment carries it on
            durable.table._journal.roll()
    insert("b", 8, _counted(make_chunk(sequence=0), 12, 4), max_wait_s=0.0)
    insert("c", 1, _counted(make_chunk(sequence=3), 50, 4, full=6), max_wait_s=0.0)
    before = {actor.name: actor for actor in durable.table.info().actors}
    assert (before["a"].life_acknowledged_steps, before["a"].elsewhere_steps, before["a"].earlier_lives) == (320, 0, 1)
    assert (before["b"].life_acknowledged_steps, before["b"].elsewhere_steps) == (8, 0)
    assert (before["c"].life_acknowledged_steps, before["c"].elsewhere_steps) == (8, 32)
    table = durable.reopen()
    after = {actor.name: actor for actor in table.info().actors}
    for name, actor in after.items():
        assert replace(actor, seconds_since_insert=0.0) == replace(before[name], seconds_since_insert=0.0)
        assert settled_steps(actor.counters) == actor.life_acknowledged_steps + actor.elsewhere_steps


def test_a_life_that_began_and_sent_nothing_comes_back_so(make_durable: Any, make_chunk: Any) -> None:
    durable = make_durable(samples_per_insert=1.0, error_buffer=64.0, max_chunk_steps=8, n_step=1, min_size_to_sample=1)
    table = durable.table
    for number in range(20):
        if table.insert("a", 1, _counted(make_chunk(sequence=number), 8 * number + 8, 0), max_wait_s=0.0).reason:
            break
    assert table.insert("a", 2, _counted(make_chunk(sequence=0), 8, 0), max_wait_s=0.0).status is InsertStatus.BLOCKED
    (actor,) = durable.reopen().info().actors
    assert (actor.incarnation, actor.life_acknowledged_steps, actor.counters) == (2, 0, ActorCounters())
