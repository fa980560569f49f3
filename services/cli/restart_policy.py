"""What the end of a process means, and when it is started again. Pure: time is an argument."""

from __future__ import annotations

import enum
import signal
from collections import deque
from typing import Deque, Optional

from services.common.errors import EXIT_FENCED, EXIT_OK, EXIT_USER


class Verdict(enum.Enum):
    """What a process's exit code says."""

    DONE = "ended"  # by itself and as it should
    CRASHED = "crashed"  # start it again
    USER_ERROR = "stopped by a mistake"  # a restart does not mend it: stop everything
    FENCED = "fenced"  # another process has taken its place


def judge(role: str, exit_code: int) -> Verdict:
    """Read the exit code of a process that nobody asked to stop.

    Args:
        role: "replay", "learner", "helper", "actor" or "evaluator".
        exit_code: as subprocess gives it, negative for a signal.
    """
    if exit_code == EXIT_USER:
        return Verdict.USER_ERROR
    if exit_code == EXIT_FENCED:
        return Verdict.FENCED
    if exit_code == EXIT_OK and role != "replay":
        return Verdict.DONE
    # A replay never ends by itself: without one all others would wait for ever.
    return Verdict.CRASHED


def describe(exit_code: int) -> str:
    """An exit code in words."""
    if exit_code < 0:
        try:
            return f"killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"killed by signal {-exit_code}"
    return f"exit code {exit_code}"


class RestartPolicy:
    """Exponential backoff of one process, forgotten after a calm life, and an end to hopeless restarts."""

    def __init__(
        self,
        *,
        first_s: float = 0.2,
        limit_s: float = 5.0,
        calm_s: float = 10.0,
        max_crashes: int = 10,
        window_s: float = 60.0,
    ) -> None:
        """Make a policy.

        Args:
            first_s: wait before the first restart; each further one doubles it.
            limit_s: longest wait.
            calm_s: a life of this length starts the backoff anew.
            max_crashes: crashes within `window_s` that are put up with.
            window_s: see `max_crashes`.
        """
        self.first_s = first_s
        self.limit_s = limit_s
        self.calm_s = calm_s
        self.max_crashes = max_crashes
        self.window_s = window_s
        self._next_s = first_s
        self._crashes: Deque[float] = deque()

    def crashed(self, now_s: float, lived_s: float) -> Optional[float]:
        """Count a crash.

        Args:
            now_s: by a monotonic clock.
            lived_s: how long the process lived.

        Returns:
            Seconds to wait before it is started again, or None: give up.
        """
        self._crashes.append(now_s)
        while now_s - self._crashes[0] > self.window_s:
            self._crashes.popleft()
        if len(self._crashes) > self.max_crashes:
            return None
        if lived_s >= self.calm_s:
            self._next_s = self.first_s
        wait_s = self._next_s
        self._next_s = min(self.limit_s, 2 * self._next_s)
        return wait_s
