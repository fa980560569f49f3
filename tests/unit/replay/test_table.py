from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.replay.inspection import InspectOrder
from services.replay.sampler_settings import SamplerSettings
from services.replay.table import InsertStatus, SampleStatus, Table
from tests.table_states import LIMITED, draw_chunk


def _steps(table: Table) -> Any:
    assert table.check_valid() is None
    return table.info().steps


def test_what_goes_in_comes_out(make_table: Any, feed: Any, clock: Any) -> None:
    table = make_table(min_size_to_sample=3)
    waiting = table.sample(1, 4, max_wait_s=0.0)
    assert waiting.status is SampleStatus.WAITING
    assert "holds 0 items of the 3" in waiting.reason
    assert waiting.priority_mass_log2 == -np.inf
    assert feed(table, 3) == [InsertStatus.APPLIED] * 3
    clock.now_s += 2.5
    result = table.sample(2, 8, max_wait_s=0.0)
    assert (result.status, len(result.batches), result.num_items) == (SampleStatus.OK, 2, 18)
    assert result.priority_mass_log2 == pytest.approx(np.log2(18.0))
    assert result.stamps.resolve().ring_s.tolist() == [2.5] * 16
    answer = table.update_priorities(result.batches[0].keys, np.full(8, 1e300))
    assert answer.applied + answer.superseded == 8
    info = table.info()
    assert (info.rows, info.num_items, info.capacity_rows, info.n_step) == (24, 18, 64, 3)
    assert info.clamped_priorities == answer.applied
    assert (info.limiter.inserted_items, info.limiter.sampled_items) == (24, 16)
    assert (_steps(table).items, _steps(table).unripe) == (18, 6)


@pytest.mark.parametrize(("num_batches", "batch_size"), [(0, 1), (5, 1), (1, 0), (1, 17)])
def test_a_sample_out_of_range_is_refused(make_table: Any, num_batches: int, batch_size: int) -> None:
    with pytest.raises(ValueError, match="1 to 4 batches of 1 to 16"):
        make_table().sample(num_batches, batch_size, max_wait_s=0.0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_batch_size": 65}, "batches of up to 65 items are larger than the table of 64 rows"),
        ({"max_actor_silence_s": 0.0}, "max_actor_silence_s 0.0"),
        ({"samples_per_insert": 2.0}, "set error_buffer to at least"),
        ({"min_size_to_sample": 65}, "only 64 rows"),
    ],
)
def test_settings_that_cannot_work_are_refused(make_table: Any, changes: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_table(**changes)


def test_a_resend_counts_once(make_table: Any, make_chunk: Any) -> None:
    table, chunk = make_table(), make_chunk()
    answers = [table.insert("a", 1, chunk, max_wait_s=0.0) for _ in range(3)]
    assert [a.status for a in answers] == [InsertStatus.APPLIED] + [InsertStatus.DUPLICATE] * 2
    assert [a.next_sequence for a in answers] == [1, 1, 1]
    assert _steps(table).acknowledged == 8
    ahead = table.insert("a", 1, make_chunk(sequence=2), max_wait_s=0.0)
    assert (ahead.status, ahead.next_sequence) == (InsertStatus.OUT_OF_ORDER, 1)


def test_a_newer_life_closes_and_fences_the_older(make_table: Any, make_chunk: Any) -> None:
    table = make_table()
    table.insert("a", 1, make_chunk(sequence=0), max_wait_s=0.0)
    assert _steps(table).unripe == 6
    table.insert("a", 2, make_chunk(T=0, sequence=0), max_wait_s=0.0)
    assert (_steps(table).unripe, _steps(table).items, _steps(table).lost_tail) == (0, 6, 2)
    assert table.insert("a", 1, make_chunk(sequence=1), max_wait_s=0.0).status is InsertStatus.FENCED
    table.close_actor("a", 1)
    assert [actor.incarnation for actor in table.info().actors] == [2]


def test_a_gap_closes_the_windows(make_table: Any, make_chunk: Any) -> None:
    table = make_table()
    table.insert("a", 1, make_chunk(sequence=0), max_wait_s=0.0)
    table.insert("a", 1, make_chunk(sequence=1, first_step=5), max_wait_s=0.0)
    assert (_steps(table).items, _steps(table).lost_tail, _steps(table).unripe) == (6 + 2, 2, 6)
    table.insert("a", 1, make_chunk(T=0, sequence=2, first_step=12), max_wait_s=0.0)
    assert (_steps(table).items, _steps(table).lost_tail, _steps(table).unripe) == (12, 4, 0)
    back = table.insert("a", 1, make_chunk(sequence=3, first_step=11), max_wait_s=0.0)
    assert back.status is InsertStatus.REFUSED


def test_silence_and_farewell_close_the_windows(make_table: Any, make_chunk: Any, clock: Any) -> None:
    table = make_table(max_actor_silence_s=10.0)
    for actor in ("a", "b"):
        table.insert(actor, 1, make_chunk(sequence=0), max_wait_s=0.0)
    table.close_actor("b", 1)
    assert _steps(table).unripe == 6
    clock.now_s += 10.5
    assert table.expire_actors() == ["a"]
    assert (_steps(table).unripe, _steps(table).lost_tail) == (0, 4)
    assert table.expire_actors() == []
    # It was only slow: its chunk is welcome, in fresh windows.
    assert table.insert("a", 1, make_chunk(sequence=1), max_wait_s=0.0).status is InsertStatus.APPLIED
    assert (_steps(table).items, _steps(table).lost_tail, _steps(table).unripe) == (14, 4, 6)


def test_a_sick_lane_is_cut_and_the_others_go_on(make_table: Any, make_chunk: Any) -> None:
    table = make_table()
    table.insert("a", 1, make_chunk(sequence=0), max_wait_s=0.0)
    chunk = make_chunk(sequence=1)
    chunk.observation["policy"][2, 1] = np.nan
    answer = table.insert("a", 1, chunk, max_wait_s=0.0)
    assert answer.status is InsertStatus.APPLIED
    assert answer.quarantined_lanes.tolist() == [1]
    steps = _steps(table)
    assert (steps.acknowledged, steps.quarantined, steps.lost_tail, steps.items, steps.unripe) == (16, 4, 1, 8, 3)
    table.insert("a", 1, make_chunk(sequence=2), max_wait_s=0.0)
    assert _steps(table).items == 8 + 4 + 1
    assert np.isfinite(table.store.ring.observation["policy"]).all()


def test_a_sick_lane_is_described_with_the_steps_before_its_chunk(make_table: Any, make_chunk: Any) -> None:
    table = make_table()
    assert table.insert("a", 1, make_chunk(sequence=0), max_wait_s=0.0).sick_lanes == ()
    chunk = make_chunk(sequence=1)
    chunk.reward[1, 1] = np.nan
    [lane] = table.insert("a", 1, chunk, max_wait_s=0.0).sick_lanes
    assert (lane.lane, lane.step, lane.bad_columns, lane.policy_version) == (1, 5, ("reward",), 7)
    assert lane.columns["observation.policy"].tolist() == [[1, 1], [2, 1], [3, 1], [4, 1], [5, 1]]
    assert table.insert("a", 1, chunk, max_wait_s=0.0).sick_lanes == ()  # a resend
    late = make_chunk(sequence=2, first_step=9)
    late.reward[1, 0] = np.nan
    [lane] = table.insert("a", 1, late, max_wait_s=0.0).sick_lanes
    assert lane.columns["observation.policy"].tolist() == [[9, 0], [10, 0]]  # step 8 is missing
    many = make_chunk(T=2, B=20)
    many.reward[:] = np.nan
    answer = table.insert("b", 1, many, max_wait_s=0.0)
    assert (len(answer.quarantined_lanes), len(answer.sick_lanes)) == (20, 8)


def test_refusals_and_outcomes_are_counted_by_reason(make_table: Any, make_chunk: Any, feed: Any) -> None:
    table = make_table(max_version_lead=10)
    feed(table, 2)
    table.set_newest(5, 50)
    chunk = make_chunk(sequence=2)
    chunk.policy_version[:] = 16
    answer = table.insert("a", 1, chunk, max_wait_s=0.0)
    assert (answer.status, answer.next_sequence) == (InsertStatus.REFUSED, 2)
    table.insert("a", 1, make_chunk(T=33, B=2, sequence=2), max_wait_s=0.0)
    assert table.info().refused_chunks == {"version_ahead": 1, "too_large": 1, "too_many_steps": 0, "too_many_peers": 0}
    table.update_priorities(np.array([0, 0, 1, 2, 99]), np.array([1.0, 2.0, np.nan, 3.0, 1.0]))
    assert table.info().sampling.updates == {"applied": 2, "stale": 1, "rejected": 1, "superseded": 1}


def test_a_queue_is_on_policy_and_never_deadlocks(make_table: Any, make_chunk: Any) -> None:
    table = make_table(
        **{**LIMITED, "samples_per_insert": 1.0, "error_buffer": 16.0, "min_size_to_sample": 1},
        sampling=SamplerSettings(selector="fifo", max_times_sampled=1),
        max_num_batches=1,
    )
    seen: List[int] = []
    sequence, stalls = 0, 0
    while len(seen) < 2000 and stalls < 3:
        inserted = table.insert("a", 1, make_chunk(sequence=sequence), max_wait_s=0.0).status is InsertStatus.APPLIED
        sequence += inserted
        result = table.sample(1, 16, max_wait_s=0.0)
        stalls = 0 if inserted or result.status is SampleStatus.OK else stalls + 1
        for batch in result.batches:
            seen += batch.keys.tolist()
        assert table.check_valid() is None
    assert stalls == 0
    assert len(set(seen)) == len(seen) >= 2000
    # A lane's last step becomes an item with the chunk after: only by these two is the order not that of the keys.
    assert max(abs(i - key) for i, key in enumerate(seen)) <= 2
    info = table.info()
    assert info.sampling.exhausted_items == len(seen)
    waiting = table.sample(1, 16, max_wait_s=0.0)
    assert waiting.status is SampleStatus.OK or "actors must insert" in waiting.reason


def test_chunks_that_cannot_fit_are_refused(make_table: Any, make_chunk: Any) -> None:
    answer = make_table().insert("a", 1, make_chunk(T=33, B=2), max_wait_s=0.0)
    assert answer.status is InsertStatus.REFUSED
    assert "66 rows and the table only 64" in answer.reason
    table = make_table(**LIMITED)
    answer = table.insert("a", 1, make_chunk(T=5, B=2), max_wait_s=0.0)
    assert answer.status is InsertStatus.REFUSED
    assert "max_chunk_steps 8" in answer.reason
    assert table.info().actors == []


def test_versions_only_rise(make_table: Any) -> None:
    table = make_table()
    table.set_newest(5, 50)
    table.set_newest(4, 90)
    assert table.newest_version == 5
    assert table.info().newest_updates == 50


def test_items_can_be_looked_at(make_table: Any, make_chunk: Any, clock: Any) -> None:
    table = make_table(n_step=1)
    assert table.inspector.histograms() == []
    table.insert("a", 1, make_chunk(time_outs=[(3, 0)]), max_wait_s=0.0)
    clock.now_s += 3.0
    table.insert("b", 1, make_chunk(), max_wait_s=0.0)
    table.update_priorities(np.array([2]), np.array([40.0]))
    table.set_newest(10, 100)
    first = table.inspector.find(InspectOrder.HIGHEST_PRIORITY, 1)[0]
    assert (first.key, first.actor, first.priority) == (2, "a", 40.0 + 1e-6)
    assert [item.key for item in table.inspector.find(InspectOrder.OLDEST, 3)] == [0, 1, 2]
    assert [item.key for item in table.inspector.find(InspectOrder.NEWEST, 2, actor="b")] == [14, 13]
    assert table.inspector.find(InspectOrder.NEWEST, 2, actor="nobody") == []
    item = table.inspector.item(6)
    assert item is not None
    assert (item.bootstrap_key, item.discount, item.age_s, item.policy_version) == (8, 0.5, 3.0, 7)
    assert item.columns["observation.policy"].tolist() == [3.0, 0.0]
    assert item.columns["next_observation.policy"].tolist() == [-7.0, 0.0]
    assert [table.inspector.item(key) for key in (7, 8, 99, -1)] == [None] * 4  # open, no step, never was
    spreads = {spread.name: spread for spread in table.inspector.histograms()}
    assert set(spreads) == {"priority", "age_seconds", "lag_versions", "times_sampled"}
    for spread in spreads.values():
        assert spread.counts.sum() == table.info().num_items
        assert len(spread.edges) == len(spread.counts) + 1


EVENT = st.sampled_from(
    ["insert", "insert", "insert", "gap", "restart", "close", "silence", "sick", "sample", "resend"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), capacity=st.integers(16, 60), n_step=st.integers(1, 5))
def test_every_step_is_accounted_for_whatever_happens(
    data: Any, capacity: int, n_step: int, make_table: Any, make_chunk: Any, clock: Any
) -> None:
    table = make_table(capacity=capacity, n_step=n_step, max_batch_size=8, max_actor_silence_s=50.0)
    lives = {name: [1, 0, 0] for name in ("a", "b")}  # incarnation, sequence, first step
    for event in data.draw(st.lists(EVENT, min_size=5, max_size=30)):
        name = data.draw(st.sampled_from(["a", "b"]))
        life = lives[name]
        clock.now_s += 100.0 if event == "silence" else 1.0
        if event == "close":
            table.close_actor(name, life[0])
        elif event == "sample":
            result = table.sample(2, 8, max_wait_s=0.0)
            for batch in result.batches:
                table.update_priorities(batch.keys, np.abs(batch.n_step_return).astype(np.float64))
        elif event == "silence":
            table.expire_actors()
        else:
            chunk = draw_chunk(data, make_chunk, event, life)
            before = table.info().steps.acknowledged
            status = table.insert(name, life[0], chunk, max_wait_s=0.0).status
            assert status is InsertStatus.APPLIED
            assert table.info().steps.acknowledged == before + chunk.num_valid
            life[1] += 1
            life[2] += chunk.num_steps
            if event == "resend":
                assert table.insert(name, life[0], chunk, max_wait_s=0.0).status is InsertStatus.DUPLICATE
        assert table.check_valid() is None
    steps = table.info().steps
    assert steps.acknowledged == steps.resident + steps.overwritten + steps.reset + steps.quarantined + steps.lost_tail
    made = steps.items + steps.unripe + steps.unripe_evicted + steps.lost_tail + steps.quarantined
    assert steps.acknowledged == made


def test_transit_is_what_was_queued_and_what_the_replay_held(make_table: Any, make_chunk: Any, clock: Any) -> None:
    table = make_table(n_step=1)
    chunk = make_chunk()
    chunk.acting_seconds, chunk.queued_seconds, chunk.newest_version = 2.0, 0.5, 4
    ticks = iter([100.0, *[100.25] * 100])
    table._clock = lambda: next(ticks)
    table.set_newest(6, 60)
    table.insert("a", 1, chunk, max_wait_s=0.0)
    table._clock = clock
    clock.now_s = 101.25
    result = table.sample(1, 16, max_wait_s=0.0)
    stamps = result.stamps.resolve()
    assert stamps.transit_s.tolist() == [0.75] * 16
    assert stamps.ring_s.tolist() == [1.0] * 16
    assert set(stamps.acting_s.tolist()) <= {2.0, 1.5, 1.0, 0.5}
    assert (stamps.known_version[0], stamps.arrival_version[0], stamps.sampling_version) == (4, 6, 6)
    assert stamps.actor_names == ("a",)
