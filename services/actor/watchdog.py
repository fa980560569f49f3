"""Names an environment that hangs: a step that does not return is said by the process itself, while it lasts."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy.typing as npt

from services.actor.envs.contract import EnvStep, Observation, VectorEnv
from services.actor.envs.wrapped_env import WrappedEnv
from services.common.log import Log
from services.common.waits import Waited

PERIOD_S = 0.25  # between two looks


class WatchedEnv(WrappedEnv):
    """Knows since when a call of an environment has been going on.

    Args:
        env: the environment.
        clock: monotonic seconds.
    """

    def __init__(self, env: VectorEnv, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(env)
        self._clock = clock
        # The call under way, when it began (0: none is), and the seconds of those that have returned. Another thread
        # reads them: they change together.
        self._now: Tuple[str, float, float] = ("", 0.0, 0.0)

    def reset(self, seed: Optional[int] = None) -> Observation:
        """As the environment."""
        self._begin("reset")
        try:
            return self._env.reset(seed)
        finally:
            self._end()

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """As the environment."""
        self._begin("step")
        try:
            return self._env.step(action)
        finally:
            self._end()

    def _begin(self, call: str) -> None:
        self._now = (call, self._clock(), self._now[2])

    def _end(self) -> None:
        call, began_s, spent_s = self._now
        self._now = (call, 0.0, spent_s + self._clock() - began_s)

    def busy_s(self) -> Tuple[str, float]:
        """The call under way and how long it has lasted; 0 s between calls."""
        call, began_s, _ = self._now
        return call, self._clock() - began_s if began_s else 0.0

    def waited(self) -> Waited:
        """How long acting has waited for this environment."""
        _, began_s, spent_s = self._now
        now_s = self._clock() - began_s if began_s else 0.0
        return Waited(spent_s + now_s, now_s)


class Watchdog:
    """Looks at the environments of an actor on a thread of its own.

    It says a hang once, and that it is over once; it ends nothing, since a slow simulator is not a broken one. A call
    that never gives up Python's lock silences this thread too: then the chief's view shows that the actor is silent.
    """

    def __init__(
        self,
        envs: Sequence[WatchedEnv],
        *,
        max_step_s: float,
        stopping: threading.Event,
        log: Log,
        on_hang: Callable[[], None],
    ) -> None:
        """Prepare; `run` is the thread.

        Args:
            envs: one a lane group.
            max_step_s: a call that takes longer hangs.
            stopping: ends the watch.
            log: where it is said.
            on_hang: called once for each hang.
        """
        self._envs = envs
        self._max_step_s = max_step_s
        self._stopping = stopping
        self._log = log
        self._on_hang = on_hang
        self._said: List[float] = [0.0] * len(envs)  # the longest duration of a hang that was said; 0: none is

    @property
    def longest_s(self) -> float:
        """Seconds that the longest call under way has lasted."""
        return max((env.busy_s()[1] for env in self._envs), default=0.0)

    def waited(self) -> Waited:
        """How long a lane group has waited for its environment, on average, and the longest call under way."""
        each = [env.waited() for env in self._envs]
        return Waited(
            sum(one.total_s for one in each) / max(1, len(each)), max((one.now_s for one in each), default=0.0)
        )

    @property
    def waiting_for(self) -> str:
        """One sentence while an environment hangs; empty otherwise."""
        for group, env in enumerate(self._envs):
            call, seconds = env.busy_s()
            if seconds > self._max_step_s:
                return self._sentence(group, call, seconds)
        return ""

    def run(self) -> None:
        """Look until the process is to end."""
        while not self._stopping.wait(min(PERIOD_S, self._max_step_s / 4)):
            self.look()

    def look(self) -> None:
        """Say what began to hang, or goes on again, since the last look."""
        for group, env in enumerate(self._envs):
            call, seconds = env.busy_s()
            if seconds > self._max_step_s:
                if not self._said[group]:
                    self._on_hang()
                    self._log.warning(self._sentence(group, call, seconds), max_step_s=self._max_step_s)
                self._said[group] = seconds
            elif self._said[group]:
                self._log.info("the environment goes on", lane_group=group, after_s=round(self._said[group], 1))
                self._said[group] = 0.0

    def _sentence(self, group: int, call: str, seconds: float) -> str:
        which = f" of lane group {group}" if len(self._envs) > 1 else ""
        return f"the environment{which} hangs: {call} has not returned for {seconds:.1f} s"
