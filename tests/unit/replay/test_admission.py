from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Tuple

import pytest

from services.common.chunk import ActorCounters, Chunk
from services.replay.admission import (
    MAX_LANES,
    MAX_SENTENCE,
    WORD_LASTS_S,
    Admission,
    InsertStatus,
    LaneGroup,
    settled_steps,
)


def _apply(admission: Admission, incarnation: int, chunk: Chunk, now_s: float = 0.0) -> LaneGroup:
    assert admission.judge("a", incarnation, chunk).status is InsertStatus.APPLIED
    admission.enter("a", incarnation, now_s)
    group = admission.group_of(admission.actors["a"], chunk)
    admission.acknowledge(admission.actors["a"], group, chunk)
    return group


def test_each_sequence_is_applied_once_and_in_order(make_chunk: Any) -> None:
    admission = Admission(3)
    _apply(admission, 1, make_chunk(sequence=0))
    _apply(admission, 1, make_chunk(sequence=1))
    for sequence in (0, 1):
        verdict = admission.judge("a", 1, make_chunk(sequence=sequence))
        assert (verdict.status, verdict.next_sequence) == (InsertStatus.DUPLICATE, 2)
    verdict = admission.judge("a", 1, make_chunk(sequence=4))
    assert (verdict.status, verdict.next_sequence) == (InsertStatus.OUT_OF_ORDER, 2)
    assert "while 2 is awaited" in verdict.reason


def test_an_unknown_lane_group_may_begin_anywhere(make_chunk: Any) -> None:
    admission = Admission(3)
    group = _apply(admission, 1, make_chunk(sequence=17))
    assert (group.next_sequence, group.next_step) == (18, 72)
    _apply(admission, 1, make_chunk(sequence=5, lane_group=1))
    assert admission.judge("a", 1, make_chunk(sequence=19)).status is InsertStatus.OUT_OF_ORDER


def test_a_newer_life_fences_the_older_for_good(make_chunk: Any) -> None:
    admission = Admission(3)
    group = _apply(admission, 1, make_chunk(sequence=0))
    assert admission.judge("a", 2, make_chunk(sequence=0)).status is InsertStatus.APPLIED
    assert admission.enter("a", 2, 1.0) == [group]
    assert admission.enter("a", 2, 1.0) == []
    verdict = admission.judge("a", 1, make_chunk(sequence=1))
    assert verdict.status is InsertStatus.FENCED
    assert "incarnation 0x2" in verdict.reason
    admission.enter("a", 3, 2.0)
    assert admission.judge("a", 1, make_chunk(sequence=1)).status is InsertStatus.FENCED
    assert admission.judge("a", 2, make_chunk(sequence=1)).status is InsertStatus.FENCED
    assert admission.judge("b", 1, make_chunk(sequence=1)).status is InsertStatus.APPLIED


@pytest.mark.parametrize(
    ("of_chunk", "sentence"), [({"B": 3}, "has 2 lanes, not 3"), ({"first_step": 3}, "those below 4 were acknowledged")]
)
def test_what_can_never_be_right_is_refused(make_chunk: Any, of_chunk: Any, sentence: str) -> None:
    admission = Admission(3)
    _apply(admission, 1, make_chunk(sequence=0))
    verdict = admission.judge("a", 1, make_chunk(sequence=1, **of_chunk))
    assert verdict.status is InsertStatus.REFUSED
    assert sentence in verdict.reason


def test_an_introduction_without_steps_does_not_fix_the_size(make_chunk: Any) -> None:
    admission = Admission(3)
    group = _apply(admission, 1, make_chunk(T=0, B=1, sequence=0))
    assert group.num_lanes == 0
    assert _apply(admission, 1, make_chunk(T=4, B=5, sequence=1, first_step=0)) is group
    assert (group.num_lanes, group.open_keys.shape) == (5, (3, 5))
    assert _apply(admission, 1, make_chunk(T=0, B=1, sequence=2, first_step=4)).num_lanes == 5


def test_silence_matters_only_with_open_windows(make_chunk: Any) -> None:
    admission = Admission(3)
    group = _apply(admission, 1, make_chunk(sequence=0), now_s=5.0)
    assert admission.silent(100.0, 10.0) == []
    group.open_keys[-1] = 3
    assert admission.silent(15.0, 10.0) == []
    assert admission.silent(15.1, 10.0) == [admission.actors["a"]]
    admission.actors["a"].calls_in_flight = 1
    assert admission.silent(100.0, 10.0) == []


def _of_life(admission: Admission) -> Tuple[int, int]:
    record = admission.actors["a"]
    return record.life_acknowledged_steps, record.elsewhere_steps


def _with(chunk: Chunk, produced: int, buffered: int = 0, **dropped: int) -> Chunk:
    return replace(chunk, counters=ActorCounters(produced, buffered, dropped))


def test_a_life_is_accounted_for_from_its_first_chunk_on(make_chunk: Any) -> None:
    admission = Admission(3)
    _apply(admission, 1, _with(make_chunk(sequence=0), 16, 8))
    _apply(admission, 1, _with(make_chunk(sequence=1), 24, 4, buffer_full=4))
    assert _of_life(admission) == (16, 0)
    record = admission.actors["a"]
    assert settled_steps(record.counters) == 16
    _apply(admission, 2, _with(make_chunk(sequence=0), 8))  # another life counts anew
    assert _of_life(admission) == (8, 0)
    assert (record.acknowledged_steps, len(record.fenced)) == (24, 1)


def test_a_life_that_has_sent_nothing_yet_claims_nothing(make_chunk: Any) -> None:
    admission = Admission(3)
    _apply(admission, 1, _with(make_chunk(sequence=0), 16, 8))
    admission.enter("a", 2, 1.0)
    assert _of_life(admission) == (0, 0)
    assert admission.actors["a"].counters == ActorCounters()


@pytest.mark.parametrize("groups", [[0, 1], [1, 0], [0, 0]])
def test_what_another_ring_acknowledged_before_is_told_apart(make_chunk: Any, groups: List[int]) -> None:
    admission = Admission(3)
    first, second = groups
    _apply(admission, 1, _with(make_chunk(sequence=9, lane_group=first), 100, 20, buffer_full=10))
    assert _of_life(admission) == (8, 62)  # 100 - 20 - 10 were settled, 8 of them here
    _apply(admission, 1, _with(make_chunk(sequence=10, lane_group=second), 120, 32, buffer_full=10))
    assert _of_life(admission) == (16, 62)
    # A loss from here on is no other ring's: it is what an audit must find.
    _apply(admission, 1, _with(make_chunk(sequence=11, lane_group=second), 140, 32, buffer_full=10))
    assert _of_life(admission) == (24, 62)
    assert settled_steps(admission.actors["a"].counters) != sum(_of_life(admission))


def test_what_an_actor_waits_for_is_kept_until_it_sends_a_chunk(make_chunk: Any) -> None:
    admission = Admission(3)
    admission.note_wait("a", 1, "parked", 1.0)  # nobody knows it yet
    _apply(admission, 1, make_chunk(sequence=0))
    record = admission.actors["a"]
    admission.note_wait("a", 9, "of another life", 1.0)
    assert record.waiting_for == ""
    admission.note_wait("a", 1, "parked for 1 s", 2.0)
    admission.note_wait("a", 1, "parked for 3 s" + "x" * 400, 4.0)
    assert record.waiting_for.startswith("parked for 3 s")
    assert (len(record.waiting_for), record.waiting_since_s, record.heard_s) == (MAX_SENTENCE, 2.0, 4.0)
    admission.note_wait("a", 1, "again", 4.1 + WORD_LASTS_S)  # it was not heard of in between
    assert record.waiting_since_s == 4.1 + WORD_LASTS_S
    _apply(admission, 1, make_chunk(sequence=1))
    assert record.waiting_for == ""


def test_names_are_let_in_up_to_a_bound_and_known_ones_for_ever() -> None:
    admission = Admission(3, max_peers=2)
    for name in ("a", "b"):
        assert not admission.why_no_peer(name)
        admission.enter(name, 1, 0.0)
    assert "replay.max_peers" in admission.why_no_peer("c")
    assert not admission.why_no_peer("a")
    admission.enter("a", 2, 0.0)  # another life of it is no other name
    assert len(admission.actors) == 2


def test_lanes_of_an_actor_are_bounded_over_its_groups(make_chunk: Any) -> None:
    admission = Admission(3)
    admission.enter("a", 1, 0.0)
    record = admission.actors["a"]
    first = make_chunk(T=1, B=MAX_LANES // 2, lane_group=0)
    second = make_chunk(T=1, B=MAX_LANES // 2 + 1, lane_group=1)
    assert admission.judge("a", 1, first).status is InsertStatus.APPLIED
    admission.group_of(record, first)
    assert "lanes" in admission.judge("a", 1, second).reason
    assert admission.judge("a", 2, second).status is InsertStatus.APPLIED  # another life has lanes of its own
