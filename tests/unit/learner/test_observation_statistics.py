from __future__ import annotations

import threading
from typing import Any, Dict

import numpy as np
import pytest

from services.agent.normalizer import Normalizer
from services.common.codec import encode_schema
from services.common.errors import UserError
from services.common.lifecycle import Lifecycle
from services.common.moments import Moments, encode_moments
from services.common.rpc import Stopped
from services.learner.observation_statistics import ObservationStatistics
from shoal.v1 import replay_pb2
from tests.fakes import SCHEMA, FakeLog


def _info(steps: int, mean: float = 0.0, **changes: Any) -> replay_pb2.GetReplayInfoResponse:
    moments = {"policy": Moments(steps, np.full(2, mean), np.full(2, 4.0 * steps))}
    values: Dict[str, Any] = {"schema": encode_schema(SCHEMA), "moments": encode_moments(moments), **changes}
    return replay_pb2.GetReplayInfoResponse(**values)


@pytest.fixture
def normalizer() -> Normalizer:
    return Normalizer(SCHEMA, observations=True, reward_scale=1.0)


def _make(normalizer: Normalizer, log: Any, **changes: Any) -> ObservationStatistics:
    return ObservationStatistics(normalizer, **{"enabled": True, "warmup_steps": 100, "log": log, **changes})


def test_they_change_when_taken_and_freeze_once_enough_steps_are_behind_them(
    normalizer: Normalizer, log: FakeLog
) -> None:
    statistics = _make(normalizer, log)
    statistics.take()
    assert normalizer.steps == 0
    statistics.note(_info(60, mean=1.0))
    assert normalizer.steps == 0  # only together with a publication
    statistics.take()
    assert normalizer.parameters["normalizer.policy.mean"].tolist() == [1, 1]
    assert normalizer.parameters["normalizer.policy.std"].tolist() == [2, 2]
    assert not statistics.is_frozen
    statistics.note(_info(50, mean=7.0))  # a replay that was started again counts what is resident
    statistics.take()
    assert normalizer.steps == 60
    statistics.note(_info(130, mean=3.0))
    statistics.take()
    assert statistics.is_frozen
    assert log.events("info") == ["statistics of observations are frozen"]
    for later in (_info(10**6, mean=9.0), _info(10**6, moments=[])):
        statistics.note(later)
        statistics.take()
    assert normalizer.parameters["normalizer.policy.mean"].tolist() == [3, 3]
    assert normalizer.steps == 130


def test_those_of_a_resumed_learner_stay_frozen_bit_for_bit(normalizer: Normalizer, log: FakeLog) -> None:
    first = _make(normalizer, log)
    first.note(_info(100, mean=0.1))
    first.take()
    resumed = Normalizer(SCHEMA, observations=True, reward_scale=1.0)
    resumed.load_state(normalizer.state())
    again = _make(resumed, log)
    assert again.is_frozen
    again.note(_info(5000, mean=2.0))
    again.take()
    for name, array in normalizer.parameters.items():
        assert resumed.parameters[name].tobytes() == array.tobytes()


def test_without_normalization_nothing_is_asked_for(log: FakeLog, lifecycle: Lifecycle) -> None:
    plain = Normalizer(SCHEMA, observations=False, reward_scale=1.0)
    statistics = _make(plain, log, enabled=False)
    assert statistics.is_frozen
    statistics.note(_info(0, moments=[]))
    assert not statistics.wait_for_first(None, lifecycle, min_steps=10)  # type: ignore[arg-type]


def test_a_replay_without_moments_is_told(normalizer: Normalizer, log: FakeLog) -> None:
    statistics = _make(normalizer, log)
    statistics.note(replay_pb2.GetReplayInfoResponse())  # no actor yet, so nobody knows
    with pytest.raises(UserError, match="the replay keeps no moments of observations: start the replay with the same"):
        statistics.note(_info(0, moments=[]))


class Replay:
    """Its steps grow with every question."""

    def __init__(self) -> None:
        self.steps = 0

    def info(self, *, with_moments: bool) -> replay_pb2.GetReplayInfoResponse:
        assert with_moments
        self.steps += 20
        return _info(self.steps, mean=float(self.steps))


@pytest.mark.parametrize(("warmup_steps", "min_steps", "expected"), [(1000, 50, 60), (30, 500, 40)])
def test_the_first_are_waited_for_before_the_first_update(
    warmup_steps: int, min_steps: int, expected: int, normalizer: Normalizer, log: FakeLog, lifecycle: Lifecycle
) -> None:
    replay: Any = Replay()
    statistics = _make(normalizer, log, warmup_steps=warmup_steps)
    assert statistics.wait_for_first(replay, lifecycle, min_steps=min_steps)
    assert normalizer.steps == expected
    assert statistics.is_frozen == (warmup_steps == 30)
    assert not statistics.wait_for_first(replay, lifecycle, min_steps=min_steps)  # of a resumed learner


def test_a_stop_ends_the_wait(normalizer: Normalizer, log: FakeLog) -> None:
    life, replay = Lifecycle(), Replay()
    threading.Timer(0.3, life.stop, ["test"]).start()
    with pytest.raises(Stopped):
        _make(normalizer, log).wait_for_first(replay, life, min_steps=10**9)  # type: ignore[arg-type]
