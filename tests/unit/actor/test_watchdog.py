from __future__ import annotations

import threading
from typing import Any, List

import numpy as np
import pytest

from services.actor.watchdog import Watchdog, WatchedEnv
from services.common.waits import Waited
from tests.conftest import Eventually
from tests.fakes import FakeClock, FakeEnv, FakeLog

ACTION = np.zeros((2, 1), np.float32)


class Watched:
    """Two environments whose steps last as long as the test likes; time stands still."""

    def __init__(self, clock: FakeClock, log: FakeLog, max_step_s: float = 5.0) -> None:
        self.clock = clock
        self.envs = [WatchedEnv(FakeEnv(on_step=self._step), clock) for _ in range(2)]
        self.hangs: List[int] = []
        self.stopping = threading.Event()
        self.dog = Watchdog(
            self.envs, max_step_s=max_step_s, stopping=self.stopping, log=log, on_hang=lambda: self.hangs.append(1)
        )
        self.during_step: Any = lambda _number: None

    def _step(self, number: int) -> None:
        self.during_step(number)


@pytest.fixture
def watched(clock: FakeClock, log: FakeLog) -> Watched:
    return Watched(clock, log)


def test_a_step_that_does_not_return_is_said_once_and_so_is_its_end(watched: Watched, log: FakeLog) -> None:
    seen = []

    def hang(_number: int) -> None:
        for seconds in (4.0, 2.0, 3.0):
            watched.clock.now_s += seconds
            watched.dog.look()
            seen.append((watched.dog.waiting_for, watched.dog.longest_s))

    watched.during_step = hang
    watched.envs[1].step(ACTION)
    assert seen == [
        ("", 4.0),
        ("the environment of lane group 1 hangs: step has not returned for 6.0 s", 6.0),
        ("the environment of lane group 1 hangs: step has not returned for 9.0 s", 9.0),
    ]
    assert len(watched.hangs) == 1
    assert log.events("warning") == ["the environment of lane group 1 hangs: step has not returned for 6.0 s"]
    assert (watched.dog.waiting_for, watched.dog.longest_s) == ("", 0.0)
    watched.dog.look()
    watched.dog.look()
    assert log.lines[-1] == ("info", "the environment goes on", {"lane_group": 1, "after_s": 9.0})
    assert len(log.lines) == 2


def test_each_hang_counts(watched: Watched) -> None:
    def hang(_number: int) -> None:
        watched.clock.now_s += 6
        watched.dog.look()

    watched.during_step = hang
    for _ in range(3):
        watched.envs[0].step(ACTION)
        watched.dog.look()
    assert len(watched.hangs) == 3


def test_a_single_environment_is_not_numbered_and_a_reset_is_watched_too(clock: FakeClock, log: FakeLog) -> None:
    class Slow(FakeEnv):
        def reset(self, seed: Any = None) -> Any:
            clock.now_s += 6
            dog.look()
            return super().reset(seed)

    env = WatchedEnv(Slow(), clock)
    dog = Watchdog([env], max_step_s=5, stopping=threading.Event(), log=log, on_hang=lambda: None)
    env.reset(1)
    assert log.events() == ["the environment hangs: reset has not returned for 6.0 s"]


def test_a_step_that_raises_is_over(watched: Watched) -> None:
    def explode(_number: int) -> None:
        raise ValueError("physics exploded")

    watched.during_step = explode
    with pytest.raises(ValueError, match="physics exploded"):
        watched.envs[0].step(ACTION)
    watched.clock.now_s += 100
    assert watched.dog.waiting_for == ""


def test_the_thread_looks_while_the_step_hangs_and_ends_when_asked(log: FakeLog, eventually: Eventually) -> None:
    go_on, stopping = threading.Event(), threading.Event()
    env = WatchedEnv(FakeEnv(on_step=lambda _n: go_on.wait(10)))
    dog = Watchdog([env], max_step_s=0.02, stopping=stopping, log=log, on_hang=lambda: None)
    watch, act = threading.Thread(target=dog.run), threading.Thread(target=env.step, args=(ACTION,))
    watch.start()
    act.start()
    eventually(lambda: log.events("warning"))
    go_on.set()
    act.join(10)
    eventually(lambda: log.events("info") == ["the environment goes on"])
    stopping.set()
    watch.join(10)
    assert not watch.is_alive()


def test_everything_else_is_the_environments() -> None:
    inner = FakeEnv(3)
    env = WatchedEnv(inner)
    assert (env.num_lanes, env.autoreset) == (3, inner.autoreset)
    assert (env.observation_spec, env.action_spec) == (inner.observation_spec, inner.action_spec)
    assert not hasattr(env, "device")
    inner.device = "cuda:0"  # type: ignore[attr-defined]
    assert env.device == "cuda:0"
    env.close()
    assert inner.is_closed


def test_what_acting_waits_for_its_environments_adds_up_while_they_step(watched: Watched) -> None:
    seen = []

    def take(_number: int) -> None:
        watched.clock.now_s += 3
        seen.append(watched.dog.waited())

    watched.during_step = take
    watched.envs[0].step(ACTION)
    watched.envs[0].step(ACTION)
    assert seen == [Waited(1.5, 3.0), Waited(3.0, 3.0)]  # the mean over both, and the longest call under way
    watched.clock.now_s += 100
    assert watched.dog.waited() == Waited(3.0, 0.0)
    watched.envs[1].step(ACTION)
    assert watched.envs[1].waited() == Waited(3.0, 0.0)
    assert watched.dog.waited() == Waited(4.5, 0.0)
