from __future__ import annotations

from typing import Any, Callable, List

import numpy as np
import pytest

from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.contract import AutoReset
from services.actor.loop import act
from services.actor.parameter_client import Draining, ParameterSet
from services.common.chunk import Chunk
from services.common.lifecycle import Lifecycle
from services.common.rpc import Stopped
from tests.fakes import SCHEMA, FakeClock, FakeEnv, FakePolicy


class Parameters:
    """The newest set, as the parameter client gives it; each question makes a newer one."""

    def __init__(self) -> None:
        self.newest: Any = None
        self.newest_known_version = 99
        self.asked: List[float] = []
        self.is_stopped = False
        self.is_draining = False
        self.is_silent = False  # the chief has nothing, and the run is drained meanwhile

    def wait_for_newest(self, max_age_s: float) -> ParameterSet:
        self.asked.append(max_age_s)
        if self.is_stopped:
            raise Stopped
        if self.is_silent:
            raise Draining
        version = len(self.asked)
        bias = np.full(1, version / 100, np.float32)
        self.newest = ParameterSet(version, version, "digest", {"policy.bias": bias})
        return self.newest  # type: ignore[no-any-return]


class Acting:
    def __init__(self, clock: FakeClock, lifecycle: Lifecycle, chunk_steps: int = 4, stop_at: int = 6) -> None:
        self.env = FakeEnv(2, episode_steps=100, on_step=lambda n: lifecycle.stop("test") if n == stop_at else None)
        self.policy, self.parameters = FakePolicy(), Parameters()
        self.sent: List[Chunk] = []
        self.send: Callable[[Chunk], None] = self.sent.append
        self.lifecycle = lifecycle
        self.rests: List[int] = []  # chunks sent before each
        self.writer = ChunkWriter(
            SCHEMA, num_lanes=2, chunk_steps=chunk_steps, autoreset=AutoReset.SAME_STEP, clock=clock
        )

    def rest(self) -> None:
        self.rests.append(len(self.sent))
        self.parameters.is_draining = self.parameters.is_silent = False

    def run(self) -> None:
        parameters: Any = self.parameters
        act(
            self.env,
            self.policy,
            parameters,
            self.writer,
            send=self.send,
            rest=self.rest,
            rng=np.random.default_rng(0),
            seed=7,
            max_policy_age_s=2.5,
            lifecycle=self.lifecycle,
        )
        for chunk in self.sent:
            chunk.check(SCHEMA)


def _lengths(acting: Acting) -> List[int]:
    return [chunk.num_steps for chunk in acting.sent]


def test_each_step_takes_the_newest_parameters_and_tells_their_version(clock: FakeClock, lifecycle: Lifecycle) -> None:
    acting = Acting(clock, lifecycle)
    acting.run()
    assert _lengths(acting) == [4, 2]
    assert acting.env.seeds == [7]
    assert acting.parameters.asked == [2.5] * 6
    assert acting.policy.annealed == [1, 2, 3, 4, 5, 6]  # the updates behind each set
    versions = np.concatenate([chunk.policy_version for chunk in acting.sent])
    np.testing.assert_array_equal(versions, [1, 2, 3, 4, 5, 6])
    actions = np.concatenate([chunk.action[:, 0, 0] for chunk in acting.sent])
    np.testing.assert_allclose(actions, versions / 100)
    assert acting.sent[0].newest_version == 99


def test_the_policy_sees_what_the_chunk_holds(clock: FakeClock, lifecycle: Lifecycle) -> None:
    acting = Acting(clock, lifecycle)
    acting.run()
    seen = np.concatenate([chunk.observation["policy"] for chunk in acting.sent])
    np.testing.assert_array_equal(seen, acting.policy.seen)
    np.testing.assert_array_equal(seen[:, 0, 0], np.arange(6))


def test_a_stop_cuts_the_running_episodes(clock: FakeClock, lifecycle: Lifecycle) -> None:
    acting = Acting(clock, lifecycle)
    acting.run()
    assert len(acting.sent[0].final) == 0
    assert acting.sent[1].final.cut.tolist() == [True, True]
    np.testing.assert_array_equal(acting.sent[1].final.observation["policy"][:, 0], [6, 6])


def test_a_stop_on_a_chunks_border_takes_one_more_step_to_cut_at(clock: FakeClock, lifecycle: Lifecycle) -> None:
    acting = Acting(clock, lifecycle, stop_at=8)
    acting.run()
    assert _lengths(acting) == [4, 4, 1]
    assert acting.sent[2].final.cut.tolist() == [True, True]


@pytest.mark.timeout(20)
def test_chunks_of_one_step_end_too(clock: FakeClock, lifecycle: Lifecycle) -> None:
    acting = Acting(clock, lifecycle, chunk_steps=1, stop_at=3)
    acting.run()
    assert _lengths(acting) == [1, 1, 1, 1]


def test_a_stop_before_the_first_parameters_sends_nothing(clock: FakeClock, lifecycle: Lifecycle) -> None:
    acting = Acting(clock, lifecycle)
    acting.parameters.is_stopped = True
    acting.run()
    assert acting.sent == []
    assert acting.env.steps == 0


def test_a_stop_while_parked_sends_what_there_is(clock: FakeClock, lifecycle: Lifecycle) -> None:
    acting = Acting(clock, lifecycle, stop_at=10**6)

    def park(number: int) -> None:
        acting.parameters.is_stopped = number == 3

    acting.env._on_step = park
    acting.run()
    assert _lengths(acting) == [3]
    assert acting.sent[0].final.cut.tolist() == [True, True]


def _drain_at(acting: Acting, step: int, stop_at: int) -> None:
    def on_step(number: int) -> None:
        if number == step:
            acting.parameters.is_draining = True
        if number == stop_at:
            acting.lifecycle.stop("test")

    acting.env._on_step = on_step


def test_a_drained_run_cuts_the_episodes_sends_them_and_begins_new_ones_when_it_goes_on(
    clock: FakeClock, lifecycle: Lifecycle
) -> None:
    acting = Acting(clock, lifecycle)
    _drain_at(acting, step=6, stop_at=9)
    acting.run()
    assert _lengths(acting) == [4, 2, 3]
    assert acting.rests == [2]  # all that was made was sent before
    assert acting.sent[1].final.cut.tolist() == [True, True]
    assert [chunk.first_step for chunk in acting.sent] == [0, 4, 6]  # no gap: nothing was lost on the way
    assert acting.env.seeds == [7, None]
    np.testing.assert_array_equal(acting.sent[2].observation["policy"][:, 0, 0], [0, 1, 2])


def test_a_drain_on_a_chunks_border_takes_one_more_step_to_cut_at(clock: FakeClock, lifecycle: Lifecycle) -> None:
    acting = Acting(clock, lifecycle)
    _drain_at(acting, step=4, stop_at=6)
    acting.run()
    assert _lengths(acting) == [4, 1, 1]
    assert acting.rests == [2]
    assert acting.sent[1].final.cut.tolist() == [True, True]


def test_an_actor_that_starts_in_a_drained_run_makes_no_step_before_it_goes_on(
    clock: FakeClock, lifecycle: Lifecycle
) -> None:
    acting = Acting(clock, lifecycle, stop_at=1)
    acting.parameters.is_draining = True
    acting.run()
    assert acting.rests == [0]
    assert _lengths(acting) == [1]


def test_an_actor_without_parameters_comes_to_rest_too(clock: FakeClock, lifecycle: Lifecycle) -> None:
    acting = Acting(clock, lifecycle, stop_at=2)
    acting.parameters.is_silent = True
    acting.run()
    assert acting.rests == [0]
    assert _lengths(acting) == [2]


def test_the_first_set_may_come_with_the_word_of_the_drain(clock: FakeClock, lifecycle: Lifecycle) -> None:
    acting = Acting(clock, lifecycle, stop_at=2)
    wait_for_newest = acting.parameters.wait_for_newest

    def with_the_word(max_age_s: float) -> ParameterSet:
        newest = wait_for_newest(max_age_s)
        acting.parameters.is_draining = not acting.rests
        return newest

    acting.parameters.wait_for_newest = with_the_word  # type: ignore[method-assign]
    acting.run()
    assert acting.rests == [0]  # no step was made before
    assert _lengths(acting) == [2]
