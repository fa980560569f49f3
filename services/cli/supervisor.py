"""Watches a run's processes: starts, restarts, and stops them in order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from services.cli.child import Child
from services.cli.log_merge import LogMerge
from services.cli.restart_policy import RestartPolicy, Verdict, describe, judge
from services.cli.snapshot import ProcessState
from services.cli.stop_signals import StopSignals
from services.common.errors import EXIT_CRASH, EXIT_OK, EXIT_USER

TICK_S = 0.05
FINISH_S = 8.0  # for actors and evaluator to hear that training is finished, and for its last judgement
KILL_S = 9.5  # who is still there so long after the stop began is killed
# Who is asked to stop, and when, in seconds since the stop began, its turn is over and the next are asked too.
STOP_STAGES: Tuple[Tuple[Tuple[str, ...], float], ...] = (
    (("actor", "evaluator", "helper"), 3.0),
    (("learner",), 6.5),
    (("replay",), KILL_S),
)


@dataclass(frozen=True)
class Outcome:
    """How the watch ended."""

    exit_code: int
    sentence: str = ""  # what went wrong
    finished: bool = False  # the learner ended by itself


class Watched:
    """A child with its restart policy."""

    def __init__(self, child: Child, policy: RestartPolicy) -> None:
        self.child = child
        self.policy = policy
        self.started_s = 0.0
        self.restart_s: Optional[float] = None  # when it is started again
        self.restarts = 0
        self.verdict: Optional[Verdict] = None  # of its last end; None while it lives or waits for its restart

    @property
    def name(self) -> str:
        return self.child.spec.name

    @property
    def role(self) -> str:
        return self.child.spec.role

    def state(self, now_s: float) -> ProcessState:
        """For the live view."""
        if self.verdict is not None:
            healthy = self.verdict is Verdict.DONE
            return ProcessState(self.name, self.verdict.value, self.restarts, healthy)
        if self.restart_s is not None:
            text = f"again in {max(0.0, self.restart_s - now_s):.1f} s"
            return ProcessState(self.name, text, self.restarts, healthy=False)
        return ProcessState(self.name, "running", self.restarts)


class Supervisor:
    """The main loop of `shoal up`; one thread, no locks."""

    def __init__(
        self,
        children: Sequence[Child],
        merge: LogMerge,
        signals: StopSignals,
        on_tick: Callable[[str, Tuple[ProcessState, ...]], None],
        *,
        make_policy: Callable[[], RestartPolicy] = RestartPolicy,
        is_training_finished: Callable[[], bool],
        finish_s: float = FINISH_S,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            children: in the order of their start.
            merge: takes notes.
            signals: entered by the caller.
            on_tick: called many times a second with the phase and the state of each process.
            make_policy: one for each child.
            is_training_finished: whether a learner that ended by itself made its last update.
            finish_s: how long actors and evaluator may go on when the learner is done.
        """
        self._watched = [Watched(child, make_policy()) for child in children]
        self._merge = merge
        self._signals = signals
        self._on_tick = on_tick
        self._is_training_finished = is_training_finished
        self._finish_s = finish_s
        self._finish_by: Optional[float] = None
        self._phase = "starting"

    def run(self) -> Outcome:
        """Start all, watch until the end, stop all; when it returns, no child lives."""
        try:
            for watched in self._watched:
                self._start(watched)
            self._phase = "training"
            outcome = self._watch()
            self._stop_all()
            if outcome.exit_code == EXIT_CRASH:
                self._merge.note(outcome.sentence, "error")
        finally:
            for watched in self._watched:  # only an error of ours leaves one alive here
                watched.child.kill()
                watched.child.drain()
        if self._signals.first is not None:
            return Outcome(self._signals.exit_code)
        return outcome

    def _watch(self) -> Outcome:
        while True:
            now_s = time.monotonic()
            if self._signals.first is not None:
                self._merge.note(f"{self._signals.first.name}: stopping; once more kills at once")
                return Outcome(self._signals.exit_code)
            for watched in self._watched:
                outcome = self._look_after(watched, now_s)
                if outcome is not None:
                    return outcome
            if self._finish_by is not None and self._is_finished(now_s):
                return Outcome(EXIT_OK, finished=True)
            self._tick(now_s)

    def _look_after(self, watched: Watched, now_s: float) -> Optional[Outcome]:
        """Act on the end of a child, or on the time of its restart; an outcome ends the watch."""
        if watched.restart_s is not None:
            if now_s >= watched.restart_s and self._finish_by is None:
                watched.restarts += 1
                self._start(watched)
            return None
        exit_code = watched.child.exit_code()
        if watched.verdict is not None or exit_code is None:
            return None
        watched.child.drain()
        return self._ended(watched, exit_code, now_s)

    def _ended(self, watched: Watched, exit_code: int, now_s: float) -> Optional[Outcome]:
        verdict = judge(watched.role, exit_code)
        is_early = verdict is Verdict.DONE and self._finish_by is None and not self._is_training_finished()
        if is_early:
            verdict = Verdict.CRASHED  # somebody stopped it, or code of the user's ended it: the run is not over
        if verdict is Verdict.CRASHED and self._finish_by is None:
            return self._restart(watched, exit_code, now_s, is_early=is_early)
        watched.verdict = verdict
        if verdict is Verdict.USER_ERROR:
            return Outcome(EXIT_USER, f"{watched.name}: {watched.child.last_words()}")
        self._say_end(watched, verdict, exit_code)
        if watched.role == "learner":
            if verdict is Verdict.FENCED:
                return Outcome(EXIT_CRASH, "another learner has taken over this run; only one may train it")
            self._finish_by = now_s + self._finish_s
            self._phase = "finishing"
        return None

    def _say_end(self, watched: Watched, verdict: Verdict, exit_code: int) -> None:
        if verdict is Verdict.FENCED:
            self._merge.note(f"{watched.name} was replaced by another of its name and is not started again", "warning")
        elif verdict is Verdict.CRASHED:
            self._merge.note(f"{watched.name} crashed at the end ({describe(exit_code)})", "warning")
        else:
            self._merge.note(f"{watched.name} is done")

    def _restart(self, watched: Watched, exit_code: int, now_s: float, *, is_early: bool) -> Optional[Outcome]:
        wait_s = watched.policy.crashed(now_s, now_s - watched.started_s)
        if wait_s is None:
            watched.verdict = Verdict.CRASHED
            return Outcome(
                EXIT_CRASH,
                f"{watched.name} crashed more than {watched.policy.max_crashes} times within "
                f"{watched.policy.window_s:g} s, the last time with {describe(exit_code)} after "
                f"{watched.child.last_words()!r}; its log tells more",
            )
        watched.restart_s = now_s + wait_s
        early = " before training was finished" if is_early else ""
        self._merge.note(
            f"{watched.name} ended{early} ({describe(exit_code)}); starting it again in {wait_s:.1f} s", "warning"
        )
        return None

    def _is_finished(self, now_s: float) -> bool:
        late = [w.name for w in self._watched if w.role in {"actor", "evaluator", "helper"} and w.child.is_alive()]
        if late and self._finish_by is not None and now_s >= self._finish_by:
            self._merge.note(f"still running {self._finish_s:g} s after the learner: {', '.join(late)}", "warning")
            return True
        return not late

    def _start(self, watched: Watched) -> None:
        watched.restart_s = None
        watched.started_s = time.monotonic()
        watched.child.start()

    def _tick(self, now_s: float) -> None:
        self._on_tick(self._phase, tuple(watched.state(now_s) for watched in self._watched))
        time.sleep(TICK_S)

    def _stop_all(self) -> None:
        """Ask all to stop, in order; kill what is left."""
        self._phase = "stopping"
        begun_s = time.monotonic()
        for roles, until_s in STOP_STAGES:
            stage = [watched for watched in self._watched if watched.role in roles]
            for watched in stage:
                watched.child.terminate()
            while any(watched.child.is_alive() for watched in stage) and time.monotonic() - begun_s < until_s:
                self._watch_the_stop()
        while self._alive() and time.monotonic() - begun_s < KILL_S:  # those of an earlier stage who take their time
            self._watch_the_stop()
        if self._alive():
            self._kill(f"still there after {KILL_S:g} s")
        self._note_stopped()
        self._tick(time.monotonic())

    def _watch_the_stop(self) -> None:
        if self._signals.count > 1:
            self._kill("asked twice")
        self._note_stopped()
        self._tick(time.monotonic())

    def _note_stopped(self) -> None:
        for watched in self._watched:
            if watched.verdict is None and not watched.child.is_alive():
                watched.restart_s = None
                watched.verdict = Verdict.DONE

    def _kill(self, reason: str) -> None:
        alive = self._alive()
        self._merge.note(f"killing {', '.join(watched.name for watched in alive)}: {reason}", "warning")
        for watched in alive:
            watched.child.kill()
        for watched in alive:
            watched.child.wait()

    def _alive(self) -> List[Watched]:
        return [watched for watched in self._watched if watched.child.is_alive()]

    def pids(self) -> Dict[str, int]:
        """Process numbers by name."""
        return {watched.name: watched.child.pid for watched in self._watched}
