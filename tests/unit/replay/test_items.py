from __future__ import annotations

from typing import Any, Dict, Sequence

import numpy as np
import pytest

from services.common.chunk import TERMINATED, TRUNCATED, VALID
from services.replay.items import StepOutcome, Timeline, Windows, build_windows

STEP, END, TIME_OUT, BOTH, RESET = VALID, VALID | TERMINATED, VALID | TRUNCATED, VALID | TERMINATED | TRUNCATED, 0
LOST, OPEN, ITEM, NO_STEP = StepOutcome.LOST, StepOutcome.OPEN, StepOutcome.ITEM, StepOutcome.NO_STEP


def _lane(flags: Sequence[int], n_step: int, final: Dict[int, int] = {}, severed: Sequence[int] = ()) -> Windows:  # noqa: B006
    """Windows of one lane whose row t has key 10 * t, reward 2^t and flags[t]; discount 1/2."""
    T = len(flags)
    return build_windows(
        Timeline(
            key=10 * np.arange(T, dtype=np.int64)[:, None],
            exists=np.ones((T, 1), np.bool_),
            reward=(2.0 ** np.arange(T)).astype(np.float32)[:, None],
            flags=np.array(flags, np.uint8)[:, None],
            final_key=np.array([final.get(t, -1) for t in range(T)], np.int64)[:, None],
            severed=np.array([t in severed for t in range(T)])[:, None],
        ),
        n_step,
        0.5,
    )


def _items(windows: Windows) -> Any:
    is_item = windows.outcome[:, 0] == ITEM
    columns = (windows.n_step_return, windows.discount, windows.bootstrap_key)
    return [tuple(column[t, 0] for column in columns) for t in np.flatnonzero(is_item)]


def test_windows_wait_for_their_last_step() -> None:
    windows = _lane([STEP] * 5, 3)
    assert windows.outcome[:, 0].tolist() == [ITEM, ITEM, OPEN, OPEN, OPEN]
    assert _items(windows) == [(1 + 1 + 1, 0.125, 30), (2 + 2 + 2, 0.125, 40)]


def test_one_step_windows() -> None:
    windows = _lane([STEP, END, STEP], 1, final={1: 90})
    assert windows.outcome[:, 0].tolist() == [ITEM, ITEM, OPEN]
    assert _items(windows) == [(1, 0.5, 10), (2, 0.0, 90)]


@pytest.mark.parametrize("end", [END, BOTH])
def test_a_terminal_end_takes_no_value(end: int) -> None:
    windows = _lane([STEP, STEP, end, STEP], 3, final={2: 90})
    assert windows.outcome[:, 0].tolist() == [ITEM, ITEM, ITEM, OPEN]
    assert _items(windows) == [(3, 0.0, 90), (4, 0.0, 90), (4, 0.0, 90)]


def test_a_time_out_bootstraps_from_the_final_observation_with_the_right_power() -> None:
    assert _items(_lane([STEP, STEP, TIME_OUT, STEP], 3, final={2: 90})) == [
        (3, 0.125, 90),
        (4, 0.25, 90),
        (4, 0.5, 90),
    ]


def test_the_reset_row_is_the_final_observation() -> None:
    windows = _lane([STEP, TIME_OUT, RESET, STEP, STEP], 3)
    assert windows.outcome[:, 0].tolist() == [ITEM, ITEM, NO_STEP, OPEN, OPEN]
    assert _items(windows) == [(2, 0.25, 20), (2, 0.5, 20)]


def test_an_end_waits_for_its_reset_row() -> None:
    assert _lane([STEP, STEP, TIME_OUT], 3).outcome[:, 0].tolist() == [OPEN, OPEN, OPEN]


def test_a_time_out_without_final_observation_loses_its_last_step_alone() -> None:
    windows = _lane([STEP, STEP, TIME_OUT, STEP, STEP], 2)
    assert windows.outcome[:, 0].tolist() == [ITEM, ITEM, LOST, OPEN, OPEN]
    assert _items(windows) == [(1 + 1, 0.25, 20), (2, 0.5, 20)]  # the second is cut to one step


def test_a_terminal_end_without_final_observation_needs_none() -> None:
    windows = _lane([STEP, END, STEP, STEP], 2)
    assert windows.outcome[:, 0].tolist() == [ITEM, ITEM, OPEN, OPEN]
    assert _items(windows) == [(1 + 1, 0.0, 20), (2, 0.0, 20)]


def test_a_cut_bootstraps_and_does_not_end() -> None:
    windows = _lane([STEP, STEP], 3, final={1: 90})
    assert _items(windows) == [(1 + 1, 0.25, 90), (2, 0.5, 90)]


def test_a_death_closes_with_what_is_known() -> None:
    windows = _lane([STEP, STEP, STEP], 3, severed=[2])
    assert windows.outcome[:, 0].tolist() == [ITEM, ITEM, LOST]
    assert _items(windows) == [(1 + 1, 0.25, 20), (2, 0.5, 20)]


def test_a_death_after_a_terminal_end_keeps_the_whole_return() -> None:
    windows = _lane([STEP, STEP, END], 3, severed=[2])
    assert windows.outcome[:, 0].tolist() == [ITEM, ITEM, LOST]
    assert _items(windows) == [(3, 0.0, 20), (4, 0.0, 20)]


def test_a_gap_parts_what_lies_on_both_sides() -> None:
    windows = _lane([STEP, STEP, STEP, STEP], 2, severed=[1])
    assert windows.outcome[:, 0].tolist() == [ITEM, LOST, OPEN, OPEN]
    assert _items(windows) == [(1, 0.5, 10)]


def test_a_reset_row_inside_an_episode_is_no_successor() -> None:
    assert _lane([STEP, RESET, STEP], 1).outcome[:, 0].tolist() == [LOST, NO_STEP, OPEN]


def test_nothing_comes_of_nothing() -> None:
    assert build_windows(
        Timeline(
            key=np.zeros((3, 0), np.int64),
            exists=np.zeros((3, 0), np.bool_),
            reward=np.zeros((3, 0), np.float32),
            flags=np.zeros((3, 0), np.uint8),
            final_key=np.zeros((3, 0), np.int64),
            severed=np.zeros((3, 0), np.bool_),
        ),
        3,
        0.9,
    ).outcome.shape == (3, 0)
