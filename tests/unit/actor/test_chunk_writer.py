from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Tuple

import numpy as np
import pytest

from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.contract import AutoReset
from services.common.chunk import TERMINATED, TRUNCATED, VALID, Chunk
from services.common.errors import UserError
from tests.fakes import SCHEMA, FakeClock, FakeEnv, FakePolicy

PARAMETERS = {"policy.bias": np.full(1, 0.5, np.float32)}


class Actor:
    """Env, policy and writer, stepped by hand."""

    def __init__(self, clock: FakeClock, autoreset: AutoReset = AutoReset.SAME_STEP, chunk_steps: int = 4) -> None:
        self.env = FakeEnv(2, episode_steps=3, autoreset=autoreset)
        self.policy = FakePolicy()
        self.writer = ChunkWriter(
            SCHEMA, num_lanes=2, chunk_steps=chunk_steps, autoreset=autoreset, clock=clock, lane_group=0
        )
        self.observation = self.env.reset(0)
        self.clock = clock
        self.version = 0

    def final_value(self, observation: Any) -> Any:
        return self.policy.value(PARAMETERS, observation)

    def step(self, times: int = 1) -> List[Chunk]:
        chunks: List[Chunk] = []
        for _ in range(times):
            self.version += 1
            decision = self.policy.act(PARAMETERS, self.observation, np.random.default_rng(0))
            self.writer.record_decision(self.observation, decision, self.version)
            step = self.env.step(decision.action)
            self.clock.now_s += 1
            chunk = self.writer.record_outcome(step, self.final_value, newest_version=self.version + 10)
            self.observation = step.observation
            if chunk is not None:
                chunk.check(SCHEMA)
                chunks.append(chunk)
        return chunks

    def cut(self) -> Any:
        chunk = self.writer.cut(self.observation, self.final_value)
        if chunk is not None:
            chunk.check(SCHEMA)
        return chunk


def _final(chunk: Chunk) -> List[Tuple[int, int, bool]]:
    """(step, steps since the episode's start in the final observation, cut) of each."""
    ages = chunk.final.observation["policy"][:, 0].astype(int)
    return list(zip(chunk.final.step.tolist(), ages.tolist(), chunk.final.cut.tolist()))


def test_columns_hold_what_was_seen_done_and_got(clock: FakeClock) -> None:
    (chunk,) = Actor(clock).step(4)
    # Episodes of three steps: the fourth step is the first of the next.
    np.testing.assert_array_equal(chunk.observation["policy"][..., 0], [[0, 0], [1, 1], [2, 2], [0, 0]])
    np.testing.assert_array_equal(chunk.observation["policy"][..., 1], [[0, 1]] * 4)
    np.testing.assert_array_equal(chunk.observation["camera"][..., 1, 1], [[0, 0], [1, 1], [2, 2], [0, 0]])
    np.testing.assert_array_equal(chunk.reward, [[1, 1], [2, 2], [3, 3], [1, 1]])
    np.testing.assert_array_equal(chunk.action, np.full((4, 2, 1), 0.5))
    np.testing.assert_array_equal(chunk.policy_version, [1, 2, 3, 4])
    np.testing.assert_array_equal(chunk.q_taken, 10 + chunk.observation["policy"][..., 0])
    np.testing.assert_array_equal(chunk.value, 20 + chunk.observation["policy"][..., 0])
    ends = [VALID | TRUNCATED, VALID | TERMINATED]
    np.testing.assert_array_equal(chunk.flags, [[VALID, VALID], [VALID, VALID], ends, [VALID, VALID]])
    assert chunk.newest_version == 14
    assert chunk.acting_seconds == 4


def test_a_handed_over_chunk_is_not_written_again(clock: FakeClock) -> None:
    actor = Actor(clock)
    (first,) = actor.step(4)
    before = first.observation["policy"].copy(), first.flags.copy(), first.final.observation["policy"].copy()
    (second,) = actor.step(4)
    np.testing.assert_array_equal(first.observation["policy"], before[0])
    np.testing.assert_array_equal(first.flags, before[1])
    np.testing.assert_array_equal(first.final.observation["policy"], before[2])
    assert (first.first_step, second.first_step) == (0, 4)
    np.testing.assert_array_equal(second.observation["policy"][..., 0], [[1, 1], [2, 2], [0, 0], [1, 1]])


def test_same_step_mode_keeps_the_true_final_observations(clock: FakeClock) -> None:
    (chunk,) = Actor(clock).step(4)
    assert _final(chunk) == [(4, 3, False), (5, 3, False)]  # step 2 of lanes 0 and 1 led to age 3
    np.testing.assert_array_equal(chunk.final.observation["policy"][:, 1], [0, 1])
    np.testing.assert_array_equal(chunk.final.value, [23, 23])


def test_next_step_mode_keeps_none_for_the_rows_hold_them(clock: FakeClock) -> None:
    (chunk,) = Actor(clock, AutoReset.NEXT_STEP).step(4)
    assert _final(chunk) == []
    np.testing.assert_array_equal(chunk.observation["policy"][..., 0], [[0, 0], [1, 1], [2, 2], [3, 3]])
    ends = [VALID | TRUNCATED, VALID | TERMINATED]
    np.testing.assert_array_equal(chunk.flags, [[VALID, VALID], [VALID, VALID], ends, [0, 0]])
    assert chunk.num_valid == 6


@pytest.mark.parametrize("autoreset", [AutoReset.SAME_STEP, AutoReset.NEXT_STEP])
def test_a_stop_cuts_running_episodes(autoreset: AutoReset, clock: FakeClock) -> None:
    actor = Actor(clock, autoreset)
    actor.step(2)
    chunk = actor.cut()
    assert chunk.num_steps == 2
    assert _final(chunk) == [(2, 2, True), (3, 2, True)]
    np.testing.assert_array_equal(chunk.final.value, [22, 22])
    assert actor.cut() is None
    assert actor.writer.is_empty


def test_a_stop_on_an_end_in_same_step_mode_cuts_nothing_else(clock: FakeClock) -> None:
    actor = Actor(clock)
    actor.step(3)
    assert _final(actor.cut()) == [(4, 3, False), (5, 3, False)]


def test_a_stop_on_an_end_in_next_step_mode_keeps_its_final_observation(clock: FakeClock) -> None:
    actor = Actor(clock, AutoReset.NEXT_STEP)
    actor.step(3)
    assert _final(actor.cut()) == [(4, 3, False), (5, 3, False)]


def test_a_stop_on_the_reset_row_of_next_step_mode_has_nothing_to_cut(clock: FakeClock) -> None:
    actor = Actor(clock, AutoReset.NEXT_STEP, chunk_steps=9)
    actor.step(4)
    chunk = actor.cut()
    assert _final(chunk) == []
    assert chunk.num_valid == 6


def test_a_stop_where_one_lane_ended_and_one_runs(clock: FakeClock) -> None:
    for autoreset in (AutoReset.SAME_STEP, AutoReset.NEXT_STEP):
        actor = Actor(clock, autoreset)
        actor.env._episode_steps = np.array([5, 2])
        actor.step(2)
        assert _final(actor.cut()) == [(2, 2, True), (3, 2, False)], autoreset


def test_an_introduction_has_no_steps_and_takes_no_step_number(clock: FakeClock) -> None:
    actor = Actor(clock)
    chunk = actor.writer.introduce()
    chunk.check(SCHEMA)
    assert (chunk.num_steps, chunk.num_lanes, chunk.num_valid) == (0, 2, 0)
    assert actor.step(4)[0].first_step == 0


def test_a_lost_final_observation_of_a_truncation_is_told(clock: FakeClock) -> None:
    actor = Actor(clock)
    step = actor.env.step

    def losing(action: Any) -> Any:
        return replace(step(action), true_next_observation=None)

    actor.env.step = losing  # type: ignore[method-assign]
    actor.step(2)
    with pytest.raises(UserError, match="loses the final observation of a truncated episode"):
        actor.step(1)


def test_a_lost_final_observation_that_is_accepted_leaves_the_step_without_one(clock: FakeClock) -> None:
    actor = Actor(clock)
    step = actor.env.step

    def losing(action: Any) -> Any:
        got = step(action)
        return replace(got, true_next_observation=None, no_final=got.truncated & ~got.terminated)

    actor.env.step = losing  # type: ignore[method-assign]
    actor.step(3)
    chunk = actor.cut()
    flags = chunk.flags[2]
    assert flags.tolist() == [VALID | TRUNCATED, VALID | TERMINATED]
    assert [lane for lane, _, _ in _final(chunk)] == [5]  # of the lane that terminated, in the third step of two lanes


def test_a_lost_final_observation_of_a_termination_does_no_harm(clock: FakeClock) -> None:
    actor = Actor(clock)
    step = actor.env.step

    def losing(action: Any) -> Any:
        got = step(action)
        ended = got.terminated | got.truncated
        return replace(got, true_next_observation=None, terminated=ended, truncated=np.zeros_like(ended))

    actor.env.step = losing  # type: ignore[method-assign]
    (chunk,) = actor.step(4)
    assert chunk.final.step.tolist() == [4, 5]
