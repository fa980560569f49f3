from __future__ import annotations

from typing import List

import numpy as np

from services.replay.quarantine_log import PERIOD_S, QuarantineLog
from tests.fakes import FakeClock, FakeLog, make_chunk


def _lanes(*lanes: int) -> np.ndarray:
    return np.array(lanes, np.int64)


def _steps(log: FakeLog) -> List[int]:
    return [values["steps"] for level, _event, values in log.lines if level == "warning"]


def test_a_line_comes_at_most_once_in_a_period_with_the_steps_since(clock: FakeClock, log: FakeLog) -> None:
    told = QuarantineLog(log, clock)
    for _ in range(10):
        told.note("actor-0", 7, make_chunk(4, 2), _lanes(1))
        clock.now_s += PERIOD_S / 9.5
    assert _steps(log) == [4]
    told.note("actor-0", 7, make_chunk(4, 2), _lanes(1))
    assert _steps(log) == [4, 40]
    assert log.lines[-1][2] == {
        "actor": "actor-0",
        "chunk": "actor-0/0000000000000007/0",
        "lanes": [1],
        "steps": 40,
    }


def test_rows_that_are_no_transitions_do_not_count(clock: FakeClock, log: FakeLog) -> None:
    QuarantineLog(log, clock).note("actor-0", 7, make_chunk(3, 2, flags=[[1, 1], [1, 0], [1, 1]]), _lanes(1))
    assert _steps(log) == [2]


def test_each_actor_has_its_own_line(clock: FakeClock, log: FakeLog) -> None:
    told = QuarantineLog(log, clock)
    told.note("actor-0", 7, make_chunk(4, 2), _lanes(1))
    told.note("actor-1", 7, make_chunk(4, 2), _lanes(0))
    assert [values["actor"] for _level, _event, values in log.lines] == ["actor-0", "actor-1"]


def test_an_actor_without_a_healthy_lane_is_said_once(clock: FakeClock, log: FakeLog) -> None:
    told = QuarantineLog(log, clock)
    told.note("actor-0", 7, make_chunk(4, 2), _lanes(1))
    assert log.events("error") == []
    for _ in range(50):
        told.note("actor-0", 7, make_chunk(4, 2), _lanes(0, 1))
        clock.now_s += 1.0
    (said,) = [(event, values) for level, event, values in log.lines if level == "error"]
    assert said[0].startswith("every lane of an actor is quarantined")
    assert said[1] == {"actor": "actor-0", "lanes": 2}


def test_an_actor_that_recovered_is_said_again_but_not_at_once(clock: FakeClock, log: FakeLog) -> None:
    told = QuarantineLog(log, clock)
    for _ in range(20):
        told.note("actor-0", 7, make_chunk(4, 2), _lanes(0, 1))
        told.note("actor-0", 7, make_chunk(4, 2), _lanes())
        clock.now_s += 1.0
    assert len(log.events("error")) == 4
