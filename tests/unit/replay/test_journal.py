from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.common.chunk import ActorCounters
from services.replay import records
from services.replay.admission import InsertStatus, settled_steps
from services.replay.chunk_log import RingBroken, segments_in
from services.replay.journal import FolderJournal
from services.replay.sampler_settings import SamplerSettings
from tests.table_states import STAGES, Killed, ages_of, columns_of, kill_at, no_space, state_of


def test_a_table_comes_back_as_it_was(make_durable: Any, feed: Any, make_chunk: Any, clock: Any) -> None:
    durable = make_durable()
    feed(durable.table, 3, time_outs=[(1, 0)])
    feed(durable.table, 2, actor="b", q_taken=2.0, value=1.0)
    durable.table.update_priorities(np.arange(6), np.arange(1.0, 7.0))
    drawn = durable.table.sample(2, 8, max_wait_s=0.0)
    before = state_of(durable.table)
    clock.now_s += 7.0
    table = durable.reopen()
    assert state_of(table) == before
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
    before = state_of(durable.table)
    table = durable.reopen()
    assert state_of(table) == before
    assert table.insert("a", 1, make_chunk(sequence=1), max_wait_s=0.0).status is InsertStatus.FENCED
    assert table.store.counters.lost_tail == 4


def test_another_n_and_discount_rebuild_the_items(make_durable: Any, make_table: Any, feed: Any) -> None:
    durable = make_durable(n_step=3, discount=0.5)
    feed(durable.table, 4, time_outs=[(2, 1)])
    for n_step, discount in ((1, 0.25), (5, 1.0), (3, 0.5)):
        table = durable.reopen(n_step=n_step, discount=discount)
        fresh = make_table(n_step=n_step, discount=discount)
        feed(fresh, 4, time_outs=[(2, 1)])
        got, want = columns_of(table), columns_of(fresh)
        assert (table.store.counters.items, table.store.counters.unripe) == (
            fresh.store.counters.items,
            fresh.store.counters.unripe,
        )
        for name in ("status", "n_step_return", "discount", "bootstrap_key"):
            assert got[name] == want[name]
        assert (durable.folder.format.n_step, durable.folder.format.discount) == (n_step, discount)


@pytest.mark.parametrize("num_chunks", [2, 7, 9])
@pytest.mark.parametrize("stage", STAGES)
def test_a_death_at_any_stage_of_an_insert_loses_and_doubles_nothing(
    stage: str, num_chunks: int, make_durable: Any, make_table: Any, feed: Any, make_chunk: Any, monkeypatch: Any
) -> None:
    durable = make_durable(capacity=64)
    feed(durable.table, num_chunks, time_outs=[(1, 1)])
    overwritten = durable.table.store.counters.overwritten
    with monkeypatch.context() as patches:
        kill_at(stage, patches)
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
        assert sorted(columns_of(table)["n_step_return"]) == sorted(columns_of(fresh)["n_step_return"])
    assert state_of(durable.reopen()) == state_of(table)


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
        patches.setattr("services.replay.chunk_log.os.pwrite", no_space)
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
    before = ages_of(durable.table)
    stamps, pairs, _ = before
    assert sorted(set(stamps["arrival_version"])) == [0, 8]
    assert sorted(set(stamps["known_version"])) == [0, 6]
    assert sorted(set(stamps["transit_s"])) == [0.0, 0.5]
    assert pairs == [(0, 0), (8, 40)]
    table = durable.reopen()
    assert ages_of(table) == before
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
    before = ages_of(durable.table)
    assert set(before[0]["arrival_version"]) == {3}
    assert ages_of(durable.reopen()) == before


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
    stamps, pairs, _ = ages_of(table)
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
    assert set(ages_of(table)[0]["arrival_version"]) == {9}


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
