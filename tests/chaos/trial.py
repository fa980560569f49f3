"""One scenario on its way: the system under it, what is measured of it, and everything that must hold at its end."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Callable, Collection, Dict, List, Mapping, Optional, TypeVar

from services.cli.audit_command import equations
from services.common.errors import EXIT_USER
from shoal.v1 import replay_pb2
from tests.chaos import proc
from tests.chaos.accounting import account
from tests.chaos.journal import read_journals
from tests.chaos.observer import Observer, ReplayInfo, ask_replay
from tests.chaos.pushes import push_faults
from tests.chaos.ring_rows import read_rows
from tests.chaos.scenario import MAX_STRAIN, SMALL_BAR, Measure, Outcome
from tests.chaos.system import ROOT, STOP_S, System, role_of, service_environ
from tests.chaos.work import Mark, Work

WARM_UPDATES = 200  # before anything is done to the system
GO_ON_UPDATES = 150  # after all is over
PATIENCE_S = 90.0  # for what has no limit of its own
BAR_PATIENCE_S = 240.0
AGAIN_LIMIT_S = 20.0  # from the end of a fault until those who lived through it are at work
CLOSING_S = 12.0  # until connections of those who are gone are closed
UNEVEN = 1.5  # times the fastest training that was seen over some seconds
WRITING_S = 3.0  # that a checkpoint may be older than its period, with what it takes to write one
ACTOR_LIMIT_S, OTHER_LIMIT_S = 10.0, 40.0
REPLAY_LIMIT_S = 2.0  # beside the start of Python
# What a service may hold more than before: threads of gRPC's pools come with concurrency, and stay.
SLACK = proc.Footprint(threads=10, files=6, mappings=60)

USUAL_LOAD = 3.0  # of a core, by the system under test alone

Found = TypeVar("Found")


class Broken(Exception):
    """What a scenario counts on cannot come any more."""


class TooLate(Broken):
    """It does not come in time: on a machine that is much too busy that shows nothing."""


class Trial:
    """Runs one scenario; what it finds goes to `outcome`."""

    def __init__(self, outcome: Outcome, system: System, observer: Observer, strain: float = 1.0) -> None:
        """Prepare.

        Args:
            outcome: takes what is found.
            system: not yet started.
            observer: of it.
            strain: how much slower than it should be the machine was just now.
        """
        self.outcome = outcome
        self._strain = strain
        self.system = system
        self.observer = observer
        self.rng = random.Random(outcome.seed)
        self.work = Work(system, observer)
        self._died_wall_s: Dict[str, float] = {}
        self._footprints: Dict[str, proc.Footprint] = {}
        self._slack = SLACK

    @property
    def strain(self) -> float:
        """By how much all limits are wider: the machine may be busy with other things, before or meanwhile."""
        strain = max(self._strain, os.getloadavg()[0] / (os.cpu_count() or 1) / USUAL_LOAD)
        self.outcome.strain = max(self.outcome.strain, strain)
        return min(strain, MAX_STRAIN)

    # --- waiting and measuring -----------------------------------------------------------------------------------

    def until(self, look: Callable[[], Optional[Found]], what: str, timeout_s: float = PATIENCE_S) -> Found:
        """Wait for something.

        Raises:
            TooLate: it does not come in time.
            Broken: a service ended.
        """
        deadline = time.monotonic() + timeout_s * self.strain
        while True:
            found = look()
            if found:
                return found
            ended = self.system.unexpected_ends()
            if ended:
                raise Broken("; ".join(ended))
            if time.monotonic() > deadline:
                raise TooLate(f"{what} does not come within {timeout_s:g} s")
            time.sleep(0.03)

    def hold(self, seconds: float) -> None:
        """Let time pass, in which no service may end."""
        deadline = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= deadline, "the time")

    def measure(self, what: str, since_s: float, look: Callable[[], Optional[Found]], limit_s: float) -> float:
        """How long it takes from `since_s` until `look` finds something; more than the limit is a fault."""
        self.until(look, what, max(PATIENCE_S, 2 * limit_s))
        return self.add_measure(what, time.monotonic() - since_s, limit_s)

    def add_measure(self, what: str, seconds: float, limit_s: float) -> float:
        """Something that was measured elsewhere."""
        self.outcome.measures.append(Measure(what, seconds, limit_s * self.strain))
        return seconds

    def note(self, text: str) -> None:
        """Something for the table."""
        self.outcome.notes.append(text)

    def fault(self, text: str) -> None:
        """Something that must not be."""
        self.outcome.faults.append(text)

    # --- who is at work ------------------------------------------------------------------------------------------

    def is_at_work(self, name: str) -> bool:
        """Whether a life of `name` that was not there at its last end does what it is for."""
        return self.work.has_begun(name)

    def mark(self) -> Mark:
        """Now: what is done from now on is told from what was done before."""
        return Mark(time.monotonic(), self.observer.watch.updates, self.observer.watch.version)

    def works_again(self, mark: Mark, names: Collection[str], limit_s: float = AGAIN_LIMIT_S) -> None:
        """Everybody has done what it is for since `mark`; how long that takes is measured of `names`."""
        pending = list(self.system.names)

        def look() -> bool:
            for name in [name for name in pending if self.work.goes_on(name, mark)]:
                pending.remove(name)
                if name in names:
                    self.add_measure(f"{name} again", time.monotonic() - mark.at_s, limit_s)
            return not pending

        try:
            self.until(look, "their work", limit_s)
        except TooLate:
            raise TooLate(f"{', '.join(pending)} did no work within {limit_s:g} s of the end of the fault") from None

    def start_and_measure(self, name: str, flags: Optional[Mapping[str, str]] = None) -> float:
        """Start a service again, and measure how long it takes to be at work."""
        reference_s = python_start_s() if role_of(name) == "replay" else 0.0
        since_s = self.system.start(name, flags)
        return self.measure_work(name, since_s, reference_s)

    def measure_work(self, name: str, since_s: float, python_s: float = 0.0) -> float:
        """How long it takes from `since_s` until a new life of `name` is at work."""
        limit_s = {"actor": ACTOR_LIMIT_S, "replay": REPLAY_LIMIT_S + python_s}.get(role_of(name), OTHER_LIMIT_S)
        return self.measure(f"{name} at work", since_s, lambda: self.is_at_work(name), limit_s)

    def remember(self, name: str) -> None:
        """Its next life is another one than those that were seen up to now."""
        self.work.remember(name)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.remember(name)
        self.system.kill(name)
        self.note_end(name)

    def stop(self, *names: str) -> None:
        """SIGTERM."""
        for name in names:
            self.remember(name)
        self._stop(*names)
        self._died_wall_s.update({name: time.time() for name in names})

    def kill_and_start(self, name: str) -> None:
        """SIGKILL, and the next life: what supervision does."""
        if role_of(name) == "learner":
            self.kill_and_resume_learner()
            return
        self.kill(name)
        self.start_and_measure(name)

    def kill_and_resume_learner(self) -> None:
        """SIGKILL, and back from the checkpoint, with the updates that it cost."""
        seen = self.observer.watch.updates
        self.kill("learner")
        self.resume_learner(seen)

    def _stop(self, *names: str) -> None:
        self.outcome.faults += self.system.stop(*names, timeout_s=STOP_S * self.strain)

    def note_end(self, name: str) -> None:
        """It ended now, by whatever means."""
        self._died_wall_s[name] = time.time()

    def resume_learner(self, seen: int, *, expected: Optional[Path] = None, periods: int = 1) -> None:
        """Start the learner that died by whatever means: so many periods are lost at most, and it says how much.

        Args:
            seen: updates that it was seen to have done.
            expected: the checkpoint that it must come back from; not given: the newest.
            periods: of checkpoints that may be lost.
        """
        checkpoint = expected or self.work.checkpoints()[-1]
        age_s = self._died_wall_s["learner"] - checkpoint.stat().st_mtime
        pattern = r"resumed updates=(\d+) lost_updates=(\d+)"
        said_before = len(self.system.logged("learner", pattern))
        self.start_and_measure("learner")
        said = self.system.logged("learner", pattern)
        if len(said) != said_before + 1:
            self.fault("the learner does not say from where it resumes")
            return
        updates, lost = map(int, said[-1])
        self.outcome.lost_updates = max(lost, self.outcome.lost_updates or 0)
        if updates + lost < seen:
            self.fault(f"the learner says that it lost {lost} updates behind {updates}, and {seen} were seen")
        if updates != int(checkpoint.stem):
            self.fault(f"the learner resumes from update {updates}, and not from {checkpoint.name}")
        allowed_s = periods * self.system.checkpoint_period_s + WRITING_S * self.strain
        if age_s > allowed_s:
            self.fault(f"the checkpoint was {age_s:.1f} s old when the learner ended: more is lost than may be")
        speed = self.observer.watch.fastest_per_s
        if speed and lost > UNEVEN * speed * allowed_s:
            self.fault(f"{lost} updates are lost, and at {speed:.0f} a second no more than {allowed_s:.1f} s may be")

    def is_refused(self, name: str, *words: str, flags: Optional[Mapping[str, str]] = None) -> None:
        """A start that must end with one sentence that holds `words`, and with exit code 2."""
        before = len(self.system.log(name))
        self.system.start(name, flags)
        code = self.system.wait(name, 60.0 * self.strain)
        self.says_why(name, code, before, *words)

    def says_why(self, name: str, code: int, before: int, *words: str) -> None:
        """Whether a service that ended said so in one sentence behind byte `before` of its log."""
        said = self.system.log(name)[before:]
        if code != EXIT_USER:
            self.fault(f"{name} ends with {code}, not {EXIT_USER}: {self.system.last_words(name)}")
        last = self.system.last_words(name)
        missing = [word for word in words if word not in last]
        if missing or "Traceback" in said:
            self.fault(f"{name} does not say {', '.join(map(repr, missing))} in one sentence: {last[:300]}")

    # --- the course of a scenario --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start everything and let it train."""
        self.system.start_all()
        self.comes_up()

    def comes_up(self) -> None:
        """Wait until everybody is at work, then note what each process holds."""
        for name in self.system.names:
            self.until(partial(self.is_at_work, name), f"{name} at work")
        self.until(lambda: self.observer.watch.updates >= WARM_UPDATES, f"update {WARM_UPDATES}")
        self.until(self.work.checkpoints, "the first checkpoint")
        time.sleep(0.5)
        self.note_footprints()

    def note_footprints(self, slack: proc.Footprint = SLACK) -> None:
        """What each process holds now is what it, and who takes its place, may hold at the end, and `slack` more."""
        self._slack = slack
        for name in self.system.names:
            self._footprints[name] = proc.footprint(self.system.pid(name))

    def goes_on(self) -> None:
        """Training goes on, with the work of everybody, until the task is learned."""
        bar, mark = self.outcome.scenario.bar, self.mark()
        self.until(lambda: self.work.updates >= mark.updates + GO_ON_UPDATES, "further training", PATIENCE_S)
        self.works_again(mark, (), PATIENCE_S)
        self.until(lambda: self.work.best_success(mark) >= bar, f"a success of {bar:.0%}", BAR_PATIENCE_S)
        if bar > SMALL_BAR:
            self.note(f"success {self.work.best_success(mark):.0%}")

    def check_footprints(self) -> None:
        """Nobody holds more than before, in whatever life, after a moment in which connections may close."""

        def grown() -> List[str]:
            found = []
            for name, before in self._footprints.items():
                if self.system.is_alive(name):
                    more = proc.footprint(self.system.pid(name)).beyond(before, self._slack)
                    found += [f"{name} holds {', '.join(more)}"] if more else []
            return found

        deadline = time.monotonic() + CLOSING_S
        while grown() and time.monotonic() < deadline:
            time.sleep(0.25)
        self.outcome.faults += grown()

    def finish(self) -> None:
        """Stop everything in order, and account for every step."""
        if self.strain > 1.2:
            self.note(f"busy machine: limits x {self.strain:.1f}")
        if not self._footprints:
            self.fault("what the services hold was never noted: the scenario shows nothing of it")
        others = [name for name in self.system.names if name not in ("replay", "learner")]
        self._stop(*[name for name in others if self.system.is_alive(name)])
        if self.system.is_alive("learner"):
            self._stop("learner")
        info = ask_replay(self.system.target())
        self.outcome.faults += self.system.unexpected_ends()
        self._stop("replay")
        if info is None:
            self.fault("the replay does not answer at the end")
            return
        self.audit(info)
        self._account_for_steps(info.steps)

    def _account_for_steps(self, steps: replay_pb2.StepCounters) -> None:
        rows = read_rows(self.system.ring)
        self.outcome.account = account(read_journals(self.system.journals), rows)
        # A step whose successor is in a damaged chunk is given up with it, though its own row is still there.
        self.outcome.stranded = min(steps.reset, max(0, rows.without_successor - steps.lost_tail))
        self.outcome.counted_lost = steps.reset - self.outcome.stranded
        counted = steps.acknowledged - self.outcome.counted_lost
        if self.outcome.account.present != counted:
            self.fault(f"the replay counts {counted} steps, and {self.outcome.account.present} are there")

    def audit(self, info: ReplayInfo) -> None:
        """As `shoal audit`."""
        self.outcome.faults += [equation.line() for equation in equations(info) if not equation.holds]

    def check_traces(self) -> None:
        """Nothing is left behind, and nobody was taken by surprise."""
        self.outcome.faults += self.observer.watch.faults
        self.outcome.faults += self.system.tracebacks()
        self.outcome.faults += push_faults(self.work.pushes())
        versions = self.work.judged_versions()
        if versions != sorted(set(versions)):
            self.fault("a version was judged twice, or an older one after a newer")
        left = [file.name for file in self.system.run_folder.glob("checkpoints/.*")]
        if left:
            self.fault(f"unfinished files are left: {', '.join(left)}")


def python_start_s() -> float:
    """How long Python takes now, on this machine under this load, to be where the replay's own work begins."""
    began_s = time.monotonic()
    command = [sys.executable, "-c", "import services.replay.__main__"]
    subprocess.run(command, check=True, cwd=ROOT, env=service_environ())
    return time.monotonic() - began_s
