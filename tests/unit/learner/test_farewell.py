from __future__ import annotations

import threading
from typing import Any, List, Optional

import pytest

from services.common.lifecycle import Lifecycle
from services.common.peer import Peer
from services.common.run_folder import Evaluation
from services.learner import farewell
from services.learner.farewell import wait_for_readers
from services.learner.readers import Readers
from shoal.v1 import experience_pb2, parameters_pb2
from tests.conftest import Eventually
from tests.fakes import RUN_ID, FakeClock, FakeLog


class Waiting:
    """`wait_for_readers` on a thread, under a clock that the test moves."""

    def __init__(self, clock: FakeClock, lifecycle: Lifecycle, log: FakeLog) -> None:
        self.readers = Readers(clock, num_actors=2)
        self.latest: Optional[Evaluation] = None
        self._arguments: Any = {"clock": clock, "lifecycle": lifecycle, "log": log}
        self._thread = threading.Thread(target=self._wait, daemon=True)

    def _wait(self) -> None:
        wait_for_readers(self.readers, last_version=9, latest_evaluation=lambda: self.latest, **self._arguments)

    def start(self) -> None:
        self._thread.start()

    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def saw(self, role: experience_pb2.Role.ValueType, name: str, *, finished: bool) -> None:
        peer = Peer(RUN_ID, role, name).to_proto()
        self.readers.saw(parameters_pb2.GetManifestRequest(peer=peer), finished=finished)

    def judge(self, version: int) -> None:
        self.latest = Evaluation(version, 0, 1, 0.0, 0.0, 0.0)


@pytest.fixture
def waiting(clock: FakeClock, lifecycle: Lifecycle, log: FakeLog) -> Waiting:
    return Waiting(clock, lifecycle, log)


ACTOR, EVALUATOR = experience_pb2.ROLE_ACTOR, experience_pb2.ROLE_EVALUATOR


def _still_waits(waiting: Waiting, log: FakeLog, eventually: Eventually, names: List[str]) -> None:
    sentence = f"waiting for {', '.join(names)} to hear that training is finished"
    eventually(lambda: log.events()[-1:] == [sentence])
    assert not waiting.is_over()


def test_nobody_to_tell_is_no_wait(waiting: Waiting, eventually: Eventually) -> None:
    waiting.start()
    eventually(waiting.is_over)


def test_it_waits_until_each_actor_was_told(waiting: Waiting, log: FakeLog, eventually: Eventually) -> None:
    for name in ("actor-0", "actor-1"):
        waiting.saw(ACTOR, name, finished=False)
    waiting.start()
    _still_waits(waiting, log, eventually, ["actor-0", "actor-1"])
    waiting.saw(ACTOR, "actor-0", finished=True)
    _still_waits(waiting, log, eventually, ["actor-1"])
    waiting.saw(ACTOR, "actor-1", finished=True)
    eventually(waiting.is_over)


def test_it_waits_until_the_last_version_is_judged(waiting: Waiting, log: FakeLog, eventually: Eventually) -> None:
    waiting.saw(EVALUATOR, "evaluator", finished=True)
    waiting.judge(8)
    waiting.start()
    _still_waits(waiting, log, eventually, ["evaluator"])
    waiting.judge(9)
    eventually(waiting.is_over)


def test_an_actor_that_lives_but_does_not_ask_is_not_waited_for_long(
    waiting: Waiting, log: FakeLog, clock: FakeClock, eventually: Eventually
) -> None:
    waiting.saw(ACTOR, "actor-0", finished=False)
    waiting.start()
    _still_waits(waiting, log, eventually, ["actor-0"])
    clock.now_s += farewell.READERS_WAIT_S + 0.1
    eventually(waiting.is_over)


def test_many_readers_ask_seldom_and_are_given_the_time(
    waiting: Waiting, log: FakeLog, clock: FakeClock, eventually: Eventually
) -> None:
    for number in range(200):
        waiting.saw(ACTOR, f"actor-{number}", finished=number > 0)
    wait_s = 2 * waiting.readers.ask_again_s
    assert wait_s > 2 * farewell.READERS_WAIT_S
    clock.now_s += farewell.LIVING_WITHIN_S + 1  # it is not this one's turn yet
    waiting.start()
    _still_waits(waiting, log, eventually, ["actor-0"])
    clock.now_s += farewell.READERS_WAIT_S
    assert not waiting.is_over()
    waiting.saw(ACTOR, "actor-0", finished=True)
    eventually(waiting.is_over)


def test_a_reader_that_was_silent_for_long_is_not_waited_for(
    waiting: Waiting, clock: FakeClock, eventually: Eventually
) -> None:
    waiting.saw(ACTOR, "actor-0", finished=False)
    waiting.saw(EVALUATOR, "evaluator", finished=True)
    clock.now_s += max(farewell.LIVING_WITHIN_S, farewell.EVALUATOR_WAIT_S) + 0.1
    waiting.start()
    eventually(waiting.is_over)


def test_an_evaluation_that_takes_long_is_waited_for(
    waiting: Waiting, log: FakeLog, clock: FakeClock, eventually: Eventually
) -> None:
    waiting.saw(EVALUATOR, "evaluator", finished=False)
    clock.now_s += farewell.LIVING_WITHIN_S + 5  # it asks between two judgements alone
    waiting.start()
    _still_waits(waiting, log, eventually, ["evaluator"])
    waiting.judge(9)
    eventually(waiting.is_over)


def test_the_evaluator_is_not_waited_for_without_end(
    waiting: Waiting, log: FakeLog, clock: FakeClock, eventually: Eventually
) -> None:
    waiting.saw(EVALUATOR, "evaluator", finished=True)
    waiting.start()
    _still_waits(waiting, log, eventually, ["evaluator"])
    for _ in range(4):
        clock.now_s += farewell.EVALUATOR_WAIT_S / 4 + 0.1
        waiting.saw(EVALUATOR, "evaluator", finished=True)
    eventually(waiting.is_over)


def test_a_stop_ends_the_wait(waiting: Waiting, lifecycle: Lifecycle, log: FakeLog, eventually: Eventually) -> None:
    waiting.saw(ACTOR, "actor-0", finished=False)
    waiting.start()
    _still_waits(waiting, log, eventually, ["actor-0"])
    lifecycle.stop("SIGTERM")
    eventually(waiting.is_over)
