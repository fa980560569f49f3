"""Runs scenarios one after the other, each in a folder of its own, and tells what came of them."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
import traceback
import zlib
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Sequence

from tests.chaos import proc
from tests.chaos.observer import Observer
from tests.chaos.scenario import Outcome, Scenario
from tests.chaos.system import System
from tests.chaos.trial import Broken, TooLate, Trial, python_start_s

USUAL_START_S = 1.5  # of Python with the replay's imports, on a machine that is not overloaded

Say = Callable[[str], None]


def seed_of(seed: int, name: str) -> int:
    """A scenario's own seed: the same whichever others run."""
    return (seed * 1_000_003 + zlib.crc32(name.encode())) % 2**31


def run_all(
    scenarios: Sequence[Scenario], *, seed: int, folder: Path, lacking: Dict[str, str], keep: bool, say: Say
) -> List[Outcome]:
    """Run them in their order.

    Args:
        scenarios: what to run.
        seed: of all; a failure is repeated with it.
        folder: for the runs; those that passed are removed unless `keep`.
        lacking: what the machine does not give, with the reason.
        keep: whether all folders stay.
        say: takes lines for people.
    """
    outcomes = []
    for number, scenario in enumerate(scenarios, 1):
        outcome = Outcome(scenario, seed_of(seed, scenario.name))
        missing = [f"{need}: {lacking[need]}" for need in scenario.needs if need in lacking]
        say(f"[{number}/{len(scenarios)}] {scenario.name} (seed {outcome.seed}): {scenario.text}")
        if missing:
            outcome.not_tested = "; ".join(missing)
        else:
            _run_one(outcome, folder / scenario.name)
        _tell(outcome, say)
        if outcome.verdict == "passed" and not keep:
            shutil.rmtree(folder / scenario.name, ignore_errors=True)
        outcomes.append(outcome)
    return outcomes


def _run_one(outcome: Outcome, folder: Path) -> None:
    scenario = outcome.scenario
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark = f"c{secrets.token_hex(3)}"
    began_s, mounts = time.monotonic(), set(proc.mounts())
    try:
        system = System(
            folder,
            mark,
            layout=scenario.layout,
            with_helper=scenario.with_helper,
            settings=scenario.settings,
            resends=scenario.resends,
        )
        with contextlib.closing(system):
            _watch_over(outcome, system)
    except Exception as error:  # noqa: BLE001 (whatever it is: the other scenarios run, and the last line counts this one)
        outcome.faults.append(_last_line(error))
        with (folder / "harness.log").open("a", encoding="utf-8") as log:
            traceback.print_exc(file=log)
    left = {**proc.marked_processes(mark)}
    outcome.faults += [f"process {pid} is left behind: {command[:80]}" for pid, command in left.items()]
    new = set(proc.mounts()) - mounts  # others' may go meanwhile, with the folders that they lie on
    if new:
        outcome.faults.append(f"left mounted: {', '.join(sorted(new))}")
    outcome.judge()
    outcome.seconds = time.monotonic() - began_s


def _watch_over(outcome: Outcome, system: System) -> None:
    try:
        with Observer(system.target(), partial(system.busy_s, "learner"), system.excused) as observer:
            strain = max(1.0, python_start_s() / USUAL_START_S)
            _course(Trial(outcome, system, observer, strain))
    except TooLate as error:
        outcome.late.append(str(error))
    except Broken as error:
        outcome.faults.append(str(error))
    else:
        return
    outcome.faults += [*observer.watch.faults, *system.tracebacks()]


def _last_line(error: BaseException) -> str:
    """What an error says last, and where in the harness it came from."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    said = traceback.format_exception_only(type(error), error)[-1].strip()
    return f"the scenario broke off: {said} ({Path(place.filename).name}, line {place.lineno})"


def _course(trial: Trial) -> None:
    scenario = trial.outcome.scenario
    if scenario.begins:
        trial.begin()
    scenario.inject(trial)
    trial.goes_on()
    trial.check_footprints()
    trial.finish()
    trial.check_traces()


def _tell(outcome: Outcome, say: Say) -> None:
    parts = [f"{measure.what} {measure.seconds:.1f} s" for measure in outcome.measures]
    if outcome.lost_updates is not None:
        parts.append(f"{outcome.lost_updates} updates lost")
    if outcome.account is not None:
        its = outcome.account
        parts.append(f"{its.acknowledged} steps acknowledged, {its.lost} lost, {its.doubled} doubled")
    say(f"    {outcome.verdict} in {outcome.seconds:.0f} s: {'; '.join([*parts, *outcome.notes]) or '-'}")
    if outcome.not_tested:
        say(f"    NOT TESTED: {outcome.not_tested}")
    for fault in outcome.faults:
        say(f"    FAULT: {fault}")
