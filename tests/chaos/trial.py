"""One scenario on its way: the system under it, what is measured of it, and everything that must hold at its end."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Set, Tuple, TypeVar

from services.cli.audit_command import equations
from services.common.errors import EXIT_USER
from services.common.run_folder import RunFolder
from tests.chaos import proc
from tests.chaos.accounting import account
from tests.chaos.journal import Answer, read_journals
from tests.chaos.observer import Observer, ReplayInfo, ask_replay
from tests.chaos.ring_rows import read_rows
from tests.chaos.scenario import Measure, Outcome
from tests.chaos.system import CHECKPOINT_PERIOD_S, ROOT, STOP_S, System, role_of, service_environ

WARM_UPDATES = 200  # before anything is done to the system
GO_ON_UPDATES = 150  # after all is over
PATIENCE_S = 90.0  # for what has no limit of its own
BAR, BAR_PATIENCE_S = 0.9, 240.0
ACTOR_LIMIT_S, OTHER_LIMIT_S = 10.0, 40.0
REPLAY_LIMIT_S = 2.0  # beside the start of Python
# What a survivor may hold more than before: threads of gRPC's pools come with concurrency, and stay.
SLACK = proc.Footprint(threads=10, files=6, mappings=60)

USUAL_LOAD = 3.0  # of a core, by the system under test alone

Found = TypeVar("Found")


class Broken(Exception):
    """What a scenario counts on does not come."""


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
        self.run_folder = RunFolder(system.run_folder)
        self._known: Dict[str, FrozenSet[object]] = {}  # lives of each service that were seen before its last end
        self._died_wall_s: Dict[str, float] = {}
        self._footprints: Dict[str, Tuple[int, proc.Footprint]] = {}
        self.tolerated: Set[str] = set()  # services whose traceback is no fault

    @property
    def strain(self) -> float:
        """By how much all limits are wider: the machine may be busy with other things, before or meanwhile."""
        return max(self._strain, os.getloadavg()[0] / (os.cpu_count() or 1) / USUAL_LOAD)

    # --- waiting and measuring -----------------------------------------------------------------------------------

    def until(self, look: Callable[[], Optional[Found]], what: str, timeout_s: float = PATIENCE_S) -> Found:
        """Wait for something.

        Raises:
            Broken: it does not come in time, or a service ended.
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
                raise Broken(f"{what} does not come within {timeout_s:g} s")
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

    def lives(self, name: str) -> FrozenSet[object]:
        """What tells the lives of a service apart, of those that were seen so far."""
        role = role_of(name)
        learner, replay = self.observer.learner, self.observer.replay
        if role == "actor":
            return frozenset(file.name for file in self.system.journals.glob(f"{name}-*.jsonl"))
        if role == "replay":
            return frozenset({replay.replay_incarnation} if replay else ())
        if role == "learner":
            return frozenset({learner.chief_incarnation} if learner else ())
        return frozenset(reader.incarnation for reader in (learner.readers if learner else ()) if reader.name == name)

    def is_at_work(self, name: str) -> bool:
        """Whether a life of `name` that was not there at its last end does what it is for."""
        role, known = role_of(name), self._known.get(name, frozenset())
        if role == "replay":
            answer = ask_replay(self.system.target())
            return answer is not None and answer.replay_incarnation not in known and answer.num_items > 0
        if role == "actor":
            return any(answer.acknowledged and answer.num_steps for answer in self._answers_of(name, known))
        learner = self.observer.learner
        if learner is None:
            return False
        if role == "learner":
            return learner.chief_incarnation not in known and self.observer.watch.trains(learner)
        return any(
            reader.name == name and reader.incarnation not in known and reader.version > 0 for reader in learner.readers
        )

    def _answers_of(self, name: str, known: FrozenSet[object]) -> List[Answer]:
        files = [f for f in self.system.journals.glob(f"{name}-*.jsonl") if f.name not in known]
        return [answer for file in files for answer in read_journals(file.parent, file.name)]

    def was_acknowledged(self, name: str, since_s: float) -> bool:
        """Whether a chunk of an actor was acknowledged after `since_s`."""
        answers = self._answers_of(name, frozenset())
        return any(answer.acknowledged and answer.num_steps and answer.at_s > since_s for answer in answers)

    def count_resends(self) -> int:
        """Chunks that were sent though nobody needed it."""
        return sum(answer.resent for answer in read_journals(self.system.journals))

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
        self._known[name] = self.lives(name)

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

    def checkpoints(self) -> List[Path]:
        """Those that are whole, the oldest first."""
        return sorted(self.system.run_folder.glob("checkpoints/[!.]*.safetensors"))

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
        checkpoint = expected or self.checkpoints()[-1]
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
        if age_s > periods * CHECKPOINT_PERIOD_S + 3.0 * self.strain:  # with what it takes to write one
            self.fault(f"the checkpoint was {age_s:.1f} s old when the learner ended: more is lost than may be")

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
        self.until(self.checkpoints, "the first checkpoint")
        time.sleep(0.5)
        self.note_footprints()

    def note_footprints(self) -> None:
        """What each process holds now is what it may hold at the end."""
        for name in self.system.names:
            pid = self.system.pid(name)
            self._footprints[name] = (pid, proc.footprint(pid))

    def goes_on(self) -> None:
        """Training goes on, with the experience of every actor."""
        since_s, updates = time.monotonic(), self._current_updates()
        self.until(lambda: self._current_updates() >= updates + GO_ON_UPDATES, "further training")

        for name in self.system.names:
            if role_of(name) == "actor":
                look = partial(self.was_acknowledged, name, since_s)
                self.until(look, f"a chunk of {name} that is acknowledged")

    def _current_updates(self) -> int:
        learner = self.observer.learner
        return learner.updates if learner else 0

    def reaches_the_bar(self) -> None:
        """Go on until the task is learned."""

        def best() -> float:
            return max((evaluation.success_rate for evaluation in self.run_folder.evaluations()), default=-1.0)

        self.until(lambda: best() >= BAR, f"a success of {BAR:.0%}", BAR_PATIENCE_S)
        self.note(f"success {best():.0%}")

    def check_footprints(self) -> None:
        """Who lived through it holds no more than before, after a moment in which connections may close."""

        def grown() -> List[str]:
            found = []
            for name, (pid, before) in self._footprints.items():
                if self.system.pid(name) == pid and self.system.is_alive(name):
                    more = proc.footprint(pid).beyond(before, SLACK)
                    found += [f"{name} holds {', '.join(more)}"] if more else []
            return found

        deadline = time.monotonic() + 12.0
        while grown() and time.monotonic() < deadline:
            time.sleep(0.25)
        self.outcome.faults += grown()

    def finish(self) -> None:
        """Stop everything in order, and account for every step."""
        if self.strain > 1.2:
            self.note(f"busy machine: limits x {self.strain:.1f}")
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
        self.outcome.account = account(read_journals(self.system.journals), read_rows(self.system.ring))
        counted = info.steps.acknowledged - info.steps.reset
        if self.outcome.account.present != counted:
            self.fault(f"the replay counts {counted} steps, and {self.outcome.account.present} are there")
        self.outcome.counted_lost = info.steps.reset

    def audit(self, info: ReplayInfo) -> None:
        """As `shoal audit`."""
        self.outcome.faults += [equation.line() for equation in equations(info) if not equation.holds]

    def check_traces(self) -> None:
        """Nothing is left behind, and nobody was taken by surprise."""
        self.outcome.faults += self.observer.watch.faults
        self.outcome.faults += [
            text for text in self.system.tracebacks() if text.partition(" ")[0] not in self.tolerated
        ]
        versions = [evaluation.version for evaluation in self.run_folder.evaluations()]
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
