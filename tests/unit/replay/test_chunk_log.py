"""The chunk log keeps small, whatever it is told, and tells the same from any of its segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.replay import records
from services.replay.admission import InsertStatus
from services.replay.chunk_log import segments_in
from tests.table_states import Killed, die, no_space, open_files_below, state_of


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
            before = state_of(durable.table)
            assert state_of(durable.reopen()) == before
    assert sizes <= {1, 2}
    assert segments_in(durable.path / "chunks")[0].number >= 3


def test_a_copy_that_fails_leaves_no_file_open(
    make_durable: Any, make_chunk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = make_durable(capacity=1 << 16)
    for sequence in range(4000):
        durable.table.insert("a", 1, make_chunk(T=2, sequence=sequence), max_wait_s=0.0)
    chunks = durable.path / "chunks"
    segments = segments_in(chunks)
    assert len(segments) > 2
    before = open_files_below(chunks)
    copy = durable.folder.log.copy_into(tmp_path / "nowhere")
    assert len(open_files_below(chunks)) == len(before) + len(segments)
    with pytest.raises(FileNotFoundError):
        copy()
    assert open_files_below(chunks) == before
    monkeypatch.setattr(durable.folder.log, "_segments", [*segments, segments[0]._replace(file=chunks / "gone")])
    with pytest.raises(FileNotFoundError):
        durable.folder.log.copy_into(tmp_path)
    assert open_files_below(chunks) == before


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
    before = state_of(durable.table)
    assert state_of(durable.reopen()) == before
    assert durable.table.insert("a", 1, make_chunk(sequence=sequence, first_step=4), max_wait_s=0.0).reason == ""
    before = state_of(durable.table)
    assert (before[0].unripe, before[0].lost_tail) == (6 + 6, 0)  # what came before goes on in what came after
    assert state_of(durable.reopen()) == before


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
    before = state_of(durable.table)
    assert before[0].lost_tail == 2 * 2
    assert state_of(durable.reopen()) == before


def test_gaps_that_chunks_without_rows_told_stay_and_do_not_make_the_log_grow(
    make_durable: Any, feed: Any, make_chunk: Any
) -> None:
    durable = make_durable()
    for lane_group in (0, 1):
        durable.table.insert("a", 1, make_chunk(lane_group=lane_group), max_wait_s=0.0)
    feed(durable.table, 1, actor="b")
    durable.table._journal.roll()
    for sequence in range(1, 4000):
        nothing = make_chunk(T=0, sequence=sequence, first_step=4 + sequence, lane_group=1)
        assert durable.table.insert("a", 1, nothing, max_wait_s=0.0).status is InsertStatus.APPLIED
    assert durable.table.store.counters.lost_tail == 2  # of lane group 1 alone
    assert durable.folder.log.num_bytes < 3 * (1 << 18)  # of 1.3 MB that were told
    durable.table._journal.roll()  # the chunks that told of the gaps are gone from the log
    before = state_of(durable.table)
    assert state_of(durable.reopen()) == before
    for actor, lane_group in (("a", 0), ("b", 0)):
        goes_on = make_chunk(sequence=1, first_step=4, lane_group=lane_group)
        assert durable.table.insert(actor, 1, goes_on, max_wait_s=0.0).status is InsertStatus.APPLIED
    before = state_of(durable.table)
    assert before[0].lost_tail == 2
    assert state_of(durable.reopen()) == before


@pytest.mark.parametrize("stage", ["os.pwrite", "os.fsync", "Path.replace", "sync_folder"])
def test_a_death_while_a_segment_is_begun_anew_loses_nothing(
    stage: str, make_durable: Any, feed: Any, make_chunk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = make_durable()
    feed(durable.table, 1)
    durable.table._journal.roll()
    sequence = _fill_with_news(durable, make_chunk, 50, 1)
    before = state_of(durable.table)
    with monkeypatch.context() as patches:
        patches.setattr(f"services.replay.chunk_log.{stage}", die)
        with pytest.raises(Killed):
            durable.table._journal.roll()
    assert state_of(durable.reopen()) == before
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
        full.setattr("services.replay.chunk_log.os.fsync", no_space)
        answer = durable.table.insert("a", 1, make_chunk(sequence=1), max_wait_s=0.0)
    assert answer.status is InsertStatus.BLOCKED
    assert "no space is left" in answer.reason
    assert durable.table.insert("a", 1, make_chunk(sequence=1), max_wait_s=0.0).status is InsertStatus.APPLIED
    before = state_of(durable.table)
    assert state_of(durable.reopen()) == before
