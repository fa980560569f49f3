"""`shoal drain`: bring a run to rest, so that all of it can be stopped and nothing is lost; `--undo` lets it go on."""

from __future__ import annotations

import argparse
import time
from typing import Callable, List, Optional, Sequence, TextIO

from services.cli.arguments import add_target, split_overrides
from services.cli.audit_command import equations
from services.cli.figures import count
from services.cli.operator import LEARNER, Operator
from services.cli.target import find_target
from services.common.errors import EXIT_OK, UserError
from shoal.v1 import experience_pb2, parameters_pb2, replay_pb2

EXIT_RESTLESS = 1
DEADLINE_S = 60.0  # of each step
MARGIN_S = 2.0  # beyond the actors' time, for the learner to notice that it is over
LOOK_S = 0.25
SAY_PERIOD_S = 2.0  # between two lines about a wait that goes on
ALIVE_S = 10.0  # an actor whose last chunk is older, and that says nothing, is gone
UNDO = "`shoal drain --undo` lets the run go on"
SILENT = "the learner does not answer"


class DrainRun:
    """One drain, step by step; each has its deadline, and says how far it is."""

    def __init__(
        self,
        system: Operator,
        out: TextIO,
        *,
        deadline_s: float,
        snapshot: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare.

        Args:
            system: the run.
            out: takes the lines.
            deadline_s: of each step.
            snapshot: folder of the replay's machine that the ring is copied to; empty: none.
            clock: monotonic seconds.
            sleep: waits.
        """
        self._system = system
        self._out = out
        self._deadline_s = deadline_s
        self._snapshot = snapshot
        self._clock = clock
        self._sleep = sleep
        self._said = ""

    def run(self) -> int:
        """Bring the run to rest; returns the exit code.

        Raises:
            UserError: the learner cannot be asked to, or refuses.
        """
        self._system.drain(undo=False, actors_within_s=self._deadline_s)
        faults: List[str] = []
        state = self._wait_while(parameters_pb2.DRAIN_PHASE_ACTORS, self._deadline_s + MARGIN_S)
        if state is not None:
            self._say("actors are at rest" if not state.held_up else "actors: their time is over")
            state = self._wait_while(parameters_pb2.DRAIN_PHASE_LEARNER, self._deadline_s)
        if state is None:
            faults.append(f"{SILENT}: whether actors and learner are at rest is not known")
        elif state.phase == parameters_pb2.DRAIN_PHASE_DRAINED:
            self._say(f"the learner is at rest: checkpoint of {count(state.checkpoint_updates)} updates")
        elif state.phase == parameters_pb2.DRAIN_PHASE_UNSPECIFIED:
            faults.append("the run goes on: somebody has undone the drain, or the learner was started anew")
        else:
            faults.append(f"not at rest after {self._deadline_s:g} s: {state.waiting_for}")
        faults += list(state.held_up) if state is not None else []
        faults += self._check_replay()
        return self._conclude(faults)

    def _wait_while(
        self, phase: parameters_pb2.DrainPhase.ValueType, within_s: float
    ) -> Optional[parameters_pb2.DrainState]:
        """Follow a phase to its end; None if the learner does not answer any more."""
        until_s, next_line_s = self._clock() + within_s, self._clock()
        while True:
            info = self._system.learner()
            if info is None:
                return None
            if info.drain.phase != phase or self._clock() >= until_s:
                return info.drain
            if self._clock() >= next_line_s:
                next_line_s = self._clock() + SAY_PERIOD_S
                self._say(info.drain.waiting_for)
            self._sleep(LOOK_S)

    def _check_replay(self) -> List[str]:
        """Flush the replay, copy its ring if that is wanted, and see that actors and replay agree."""
        info = self._system.replay()
        if info is None:
            return [
                f"no replay answers at {self._system.addresses.replay}: what it has acknowledged was not flushed",
            ]
        faults = [equation.line() for equation in equations(info) if not equation.holds] if info.actors else []
        faults += [f"{actor.name}: {_restless(actor)}" for actor in info.actors if _restless(actor)]
        try:
            flushed = self._system.flush(self._deadline_s)
            if flushed.folder:
                self._say(f"the replay has flushed {count(flushed.steps)} steps to {flushed.folder}")
            elif flushed.steps:
                faults.append(
                    f"the replay keeps its ring in memory: the {count(flushed.steps)} steps in it end with its process "
                    "(replay.data_dir gives it a folder)"
                )
            if self._snapshot:
                copied = self._system.snapshot(self._snapshot)
                self._say(f"{count(copied.steps)} steps are copied to {self._snapshot}")
        except UserError as error:
            faults.append(str(error))
        return faults

    def _conclude(self, faults: Sequence[str]) -> int:
        for fault in faults:
            self._say(f"NOT SAFE  {fault}")
        if faults:
            self._say(f"the run stays drained as far as it is: `shoal drain` goes on with it, {UNDO}")
            return EXIT_RESTLESS
        self._say(f"it is safe to stop all services, in any order; their next start goes on. Until then {UNDO}")
        return EXIT_OK

    def _say(self, line: str) -> None:
        if line and line != self._said:
            self._said = line
            self._out.write(f"{line}\n")
            self._out.flush()


def _restless(actor: replay_pb2.ActorInfo) -> str:
    """Why an actor is not at rest, as its last chunk has it; empty if it is, or is gone."""
    is_living = actor.seconds_since_insert <= ALIVE_S or bool(actor.waiting_for)
    if not is_living or not actor.counters.buffered_steps:
        return ""
    return f"{count(actor.counters.buffered_steps)} steps that it made are not acknowledged"


def run(words: Sequence[str], out: TextIO) -> int:
    """Drain a run, or undo it; returns the exit code.

    Raises:
        UserError: what the user can mend.
    """
    rest, overrides = split_overrides(words)
    options = parser().parse_args(rest)
    if options.undo and (options.snapshot or options.deadline is not None):
        raise UserError("--undo lets the run go on at once; leave out --snapshot and --deadline")
    target = find_target(options.target, overrides)
    with Operator(target.addresses, target.security) as system:
        info = system.learner()
        if info is None:
            raise UserError(
                f"{system.silence(LEARNER)}. It tells actors to come to rest; without it they park by themselves after "
                "actor.max_policy_age_s, and send what they have"
            )
        if options.undo:
            system.drain(undo=True)
            out.write(f"the run goes on: {_readers(info)} hear of it within seconds\n")
            return EXIT_OK
        deadline_s = DEADLINE_S if options.deadline is None else options.deadline
        return DrainRun(system, out, deadline_s=deadline_s, snapshot=options.snapshot).run()


def _readers(info: parameters_pb2.GetLearnerInfoResponse) -> str:
    actors = sum(reader.role == experience_pb2.ROLE_ACTOR for reader in info.readers)
    return f"{actors} actor{'' if actors == 1 else 's'}"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="shoal drain",
        description="Bring a run to rest: actors send what they have and wait, the learner trains on what it has drawn "
        "and writes a checkpoint, the replay flushes. The processes stay, and an actor that is started meanwhile waits "
        "too, until --undo or a start of the learner. Exit code 0: it is safe to stop all; 1: it is not, and the lines "
        "say why; 2: nothing was done.",
        allow_abbrev=False,
    )
    add_target(made)
    made.add_argument("--undo", action="store_true", help="let the run go on")
    made.add_argument("--deadline", type=_seconds, metavar="SECONDS", help=f"of each step; {DEADLINE_S:g} if not given")
    made.add_argument(
        "--snapshot", default="", metavar="FOLDER", help="copy the ring there too: a new folder of the replay's machine"
    )
    return made
