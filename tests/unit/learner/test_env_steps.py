from __future__ import annotations

from typing import Any, Optional

import pytest

from services.common.lifecycle import Lifecycle
from services.common.rpc import Refused, Stopped, TokenRefused, Unavailable
from services.learner import env_steps
from services.learner.env_steps import AcknowledgedSteps
from shoal.v1 import replay_pb2
from tests.conftest import Eventually


class Statistics:
    """Hears the answers, and wants no more moments when it has been told so."""

    def __init__(self) -> None:
        self.is_frozen = False
        self.heard = 0

    def note(self, info: replay_pb2.GetReplayInfoResponse) -> None:
        assert info.ring_id
        self.heard += 1


class Replay:
    """Answers `info` as the replay's client does."""

    def __init__(self) -> None:
        self.ring_id, self.acknowledged, self.is_gone = 1, 0, False
        self.fault: Exception = Unavailable("gone")
        self.statistics: Optional[Statistics] = None

    def info(self, *, with_moments: bool = False) -> replay_pb2.GetReplayInfoResponse:
        assert with_moments == (self.statistics is not None and not self.statistics.is_frozen)
        if self.is_gone:
            raise Stopped
        response = replay_pb2.GetReplayInfoResponse(ring_id=self.ring_id)
        response.steps.acknowledged = self.acknowledged
        return response

    def info_once(self) -> replay_pb2.GetReplayInfoResponse:
        if self.is_gone:
            raise self.fault
        return self.info()


def test_rings_of_the_replay_add_up() -> None:
    replay: Any = Replay()
    steps = AcknowledgedSteps({"aa": 100})
    for ring_id, acknowledged in ((1, 10), (1, 30), (2, 5)):
        replay.ring_id, replay.acknowledged = ring_id, acknowledged
        steps.poll_once(replay)
    replay.is_gone = True
    for fault in (Unavailable("gone"), Refused("its table is another's"), TokenRefused("it was withdrawn")):
        replay.fault = fault
        steps.poll_once(replay)
    assert steps.total == 100 + 30 + 5
    assert AcknowledgedSteps(steps.by_ring()).total == steps.total
    assert steps.by_ring() == {"aa": 100, "1": 30, "2": 5}


def test_the_thread_polls_until_the_stop(
    lifecycle: Lifecycle, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_steps, "POLL_PERIOD_S", 0.01)
    replay: Any = Replay()
    steps = AcknowledgedSteps({})
    statistics: Any = Statistics()
    replay.statistics = statistics
    thread = lifecycle.spawn("env-steps", lambda: steps.watch(replay, lifecycle, statistics))
    replay.acknowledged = 7
    eventually(lambda: steps.total == 7)
    eventually(lambda: statistics.heard > 3)
    replay.is_gone = True
    eventually(lambda: not thread.is_alive())
    lifecycle.check()
