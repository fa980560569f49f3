from __future__ import annotations

from typing import Any, Callable, List

import numpy as np
import pytest

from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.contract import AutoReset
from services.actor.loop import act
from services.actor.parameter_client import ParameterSet
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

    def wait_for_newest(self, max_age_s: float) -> ParameterSet:
        self.asked.append(max_age_s)
        if self.is_stopped:
            raise Stopped
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
        self.writer = ChunkWriter(
            SCHEMA, num_lanes=2, chunk_steps=chunk_steps, autoreset=AutoReset.SAME_STEP, clock=clock
        )

    def run(self) -> None:
        parameters: Any = self.parameters
        act(
            self.env,
            self.policy,
            parameters,
            self.writer,
            send=self.send,
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
