from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.replay.quarantine import MAX_STEPS, describe_sick, non_finite_lanes, without_lanes
from services.replay.ring import Ring

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


NONE_OPEN = np.full(3, -1, np.int64)


def test_a_sick_lane_is_described_up_to_its_first_bad_step(schema: Any, make_chunk: Any) -> None:
    chunk = make_chunk(T=6, B=3, sequence=4, first_step=20, time_outs=[(1, 2)])
    chunk.policy_version[:] = np.arange(6)
    chunk.reward[3, 2] = np.nan
    chunk.action[3, 2] = np.inf
    chunk.observation["policy"][5, 2] = np.nan
    lane = describe_sick(Ring(64, schema), "a", 11, chunk, 2, NONE_OPEN)
    assert (lane.actor, lane.incarnation, lane.lane, lane.sequence) == ("a", 11, 2, 4)
    assert (lane.step, lane.policy_version, lane.bad_columns) == (23, 3, ("action", "reward"))
    assert lane.columns["observation.policy"].tolist() == [[20, 2], [21, 2], [22, 2], [23, 2]]
    assert lane.columns["policy_version"].tolist() == [0, 1, 2, 3]
    assert np.isnan(lane.columns["reward"][-1])
    assert np.isfinite(lane.columns["reward"][:-1]).all()
    assert len(lane.columns["final.observation.policy"]) == 0
    chunk.final.observation["policy"][:] = np.nan
    lane = describe_sick(Ring(64, schema), "a", 11, chunk, 2, NONE_OPEN)
    assert (lane.step, lane.bad_columns) == (21, ("final.observation.policy",))
    assert np.isnan(lane.columns["final.observation.policy"]).all()


def test_a_long_chunk_is_described_by_its_last_good_steps(schema: Any, make_chunk: Any) -> None:
    chunk = make_chunk(T=200, B=1)
    chunk.reward[150, 0] = np.nan
    lane = describe_sick(Ring(64, schema), "a", 11, chunk, 0, NONE_OPEN)
    assert {len(column) for name, column in lane.columns.items() if not name.startswith("final.")} == {MAX_STEPS}
    assert lane.columns["observation.policy"][-1].tolist() == [150, 0]


@pytest.mark.parametrize("reward", [1.2e38, -3e38])
def test_rewards_whose_sum_no_float32_holds_are_quarantined(reward: float, make_table: Any, make_chunk: Any) -> None:
    table = make_table(n_step=3, discount=1.0)
    chunk = make_chunk(T=8)
    chunk.reward[3, 1] = reward
    result = table.insert("a", 1, chunk, max_wait_s=0.0)
    assert result.quarantined_lanes.tolist() == [1]
    assert result.sick_lanes[0].bad_columns == ("reward",)
    chunk = make_chunk(T=8, sequence=1)
    chunk.reward[:] = 1.1e38  # as large as may be
    assert table.insert("a", 1, chunk, max_wait_s=0.0).quarantined_lanes.tolist() == []
    assert np.isfinite(table.store.ring.n_step_return).all()
    assert table.check_valid() is None
