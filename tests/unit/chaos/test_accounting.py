"""The accounting finds each way in which steps go wrong, and nothing where none did."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.accounting import MAX_LANE, MAX_LIFE, MAX_STEP, Rows, account, step_ids
from tests.chaos.journal import Answer

LANES, STEPS = 3, 4


def answer(sequence: int, *, life: int = 7, acknowledged: bool = True) -> Answer:
    return Answer("actor-0", life, 0, sequence, sequence * STEPS, STEPS, LANES, acknowledged, 1.0 * sequence)


def rows_of(*chunks: Answer, version: int = 5) -> Rows:
    life, step, lane = (
        np.concatenate([np.zeros(0, np.int64), *column])
        for column in zip(
            *(
                (
                    np.full(STEPS * LANES, chunk.life),
                    chunk.first_step + np.repeat(np.arange(STEPS), LANES),
                    np.tile(np.arange(LANES), STEPS),
                )
                for chunk in chunks
            )
        )
    )
    return Rows(life, step, lane, np.full(len(life), version, np.int64))


def without(rows: Rows, place: int) -> Rows:
    life, step, lane, version = (
        np.delete(column, place) for column in (rows.life, rows.step, rows.lane, rows.policy_version)
    )
    return Rows(life, step, lane, version)


def test_what_is_there_once_is_sound() -> None:
    chunks = [answer(0), answer(1), answer(0, life=8)]
    found = account(chunks, rows_of(*chunks))
    assert found.is_sound()
    assert (found.acknowledged, found.present, found.unanswered) == (36, 36, 0)


@given(place=st.integers(0, 2 * STEPS * LANES - 1))
def test_each_step_that_is_missing_is_lost(place: int) -> None:
    chunks = [answer(0), answer(1)]
    found = account(chunks, without(rows_of(*chunks), place))
    assert (found.lost, found.doubled) == (1, 0)
    assert not found.is_sound()
    assert found.is_sound(counted_lost=1)


@given(copies=st.integers(2, 4))
def test_each_copy_beyond_the_first_is_doubled(copies: int) -> None:
    found = account([answer(0), answer(1)], rows_of(*[answer(0)] * copies, answer(1)))
    assert (found.lost, found.doubled) == (0, (copies - 1) * STEPS * LANES)
    assert not found.is_sound()


def test_a_resend_that_was_answered_twice_is_one_chunk() -> None:
    assert account([answer(0), answer(0)], rows_of(answer(0))).is_sound()


def test_the_last_chunk_of_a_life_may_be_there_without_an_answer() -> None:
    found = account([answer(0), answer(1, acknowledged=False)], rows_of(answer(0), answer(1)))
    assert found.is_sound()
    assert found.unanswered == STEPS * LANES


def test_a_chunk_without_an_answer_before_one_that_has_it_is_a_fault() -> None:
    found = account([answer(1)], rows_of(answer(0), answer(1)))
    assert [fault.split()[0] for fault in found.faults] == ["life"]
    assert "nobody acknowledged" in found.faults[0]


def test_two_chunks_without_an_answer_are_a_fault() -> None:
    found = account([answer(0)], rows_of(answer(0), answer(1), answer(2)))
    assert "several chunks" in found.faults[0]


def test_a_version_that_falls_within_a_life_is_a_fault() -> None:
    chunks = [answer(0), answer(1)]
    rows = rows_of(*chunks)
    rows.policy_version[rows.step >= STEPS] = 4
    assert "acted with version 4 after 5" in account(chunks, rows).faults[0]
    of_two_lives: List[Any] = [answer(0), answer(0, life=8)]
    rows = rows_of(*of_two_lives)
    rows.policy_version[rows.life == 8] = 4
    assert account(of_two_lives, rows).is_sound()


@given(
    st.lists(
        st.tuples(st.integers(0, MAX_LIFE - 1), st.integers(0, MAX_STEP - 1), st.integers(0, MAX_LANE - 1)),
        unique=True,
        min_size=1,
    )
)
def test_no_two_steps_have_one_number(steps: List[Any]) -> None:
    life, step, lane = np.array(steps, np.int64).T
    ids = step_ids(life, step, lane)
    assert len(set(ids.tolist())) == len(steps)
    assert (ids >= 0).all()


@pytest.mark.parametrize(("life", "step", "lane"), [(MAX_LIFE, 0, 0), (0, MAX_STEP, 0), (0, 0, MAX_LANE), (-1, 0, 0)])
def test_what_cannot_be_numbered_is_refused(life: int, step: int, lane: int) -> None:
    with pytest.raises(ValueError, match="is not within"):
        step_ids(*(np.array([value], np.int64) for value in (life, step, lane)))
