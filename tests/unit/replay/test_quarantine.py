from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.replay.quarantine import non_finite_lanes, without_lanes

BAD = [np.nan, np.inf, -np.inf]


def test_healthy_chunks_pass_untouched(make_chunk: Any) -> None:
    chunk = make_chunk(T=3, B=4, time_outs=[(1, 2)])
    lanes = non_finite_lanes(chunk)
    assert lanes.tolist() == [False] * 4
    assert without_lanes(chunk, lanes) is chunk


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", ["observation", "action", "reward", "final"])
def test_a_bad_value_takes_its_lane_out_and_no_other(make_chunk: Any, bad: float, where: str) -> None:
    chunk = make_chunk(T=3, B=4, time_outs=[(0, 1), (1, 2)])
    column = {
        "observation": chunk.observation["policy"][2, 2, 1:],
        "action": chunk.action[2, 2],
        "reward": chunk.reward[2, 2:3],
        "final": chunk.final.observation["policy"][1],
    }[where]
    column[:] = bad
    lanes = non_finite_lanes(chunk)
    assert lanes.tolist() == [False, False, True, False]
    clean = without_lanes(chunk, lanes)
    assert clean.flags[:, 2].tolist() == [0, 0, 0]
    assert clean.num_valid == 9
    assert clean.final.step.tolist() == [1]
    for _, rows in clean.columns():
        assert rows.dtype.kind != "f" or np.isfinite(rows[~np.isnan(rows)]).all()
    assert np.isfinite(clean.observation["policy"]).all()
    assert np.isfinite(clean.reward).all()
    assert np.isfinite(clean.action).all()
    healthy = [0, 1, 3]
    np.testing.assert_array_equal(clean.observation["policy"][:, healthy], chunk.observation["policy"][:, healthy])


def test_junk_of_a_reset_row_is_no_illness(make_chunk: Any) -> None:
    chunk = make_chunk(T=3, B=2, resets=[(1, 0)])
    chunk.reward[1, 0] = np.nan
    chunk.action[1, 0] = np.inf
    lanes = non_finite_lanes(chunk)
    assert not lanes.any()
    clean = without_lanes(chunk, lanes)
    assert (clean.reward[1, 0], clean.action[1, 0, 0]) == (0.0, 0.0)
    np.testing.assert_array_equal(clean.observation["policy"], chunk.observation["policy"])
    chunk.observation["policy"][1, 0, 0] = np.nan  # but it is the true final observation
    assert non_finite_lanes(chunk).tolist() == [True, False]


def test_absent_critics_are_no_illness(make_chunk: Any) -> None:
    assert not non_finite_lanes(make_chunk(q_taken=np.nan, value=np.nan)).any()
