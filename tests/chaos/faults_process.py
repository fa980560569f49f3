"""Processes that die, freeze, come back in another order, or not at all."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import List

from services.common.errors import EXIT_FENCED
from tests.chaos import proc
from tests.chaos.scenario import Scenario
from tests.chaos.system import CHECKPOINT_PERIOD, role_of
from tests.chaos.trial import ACTOR_LIMIT_S, Trial

KIND = "processes"
FREEZE_S, QUICK_FREEZE_S = 30.0, 10.0  # both longer than the deadline of any call
MANY_LIVES, WARM_LIVES = 30, 10
# For twenty lives: a thread, a file or a mapping that each of them leaves is more.
SLACK_OF_LIVES = proc.Footprint(threads=10, files=6, mappings=15)
ROUNDS, QUICK_ROUNDS = 50, 3
LATE_PERIOD_S, LATE_SHARE = 15.0, 0.8  # of checkpoints; and how much of it has passed when the learner is killed


def kill(trial: Trial, name: str) -> None:
    """SIGKILL and a new life."""
    trial.kill_and_start(name)


def kill_late(trial: Trial) -> None:
    """SIGKILL of the learner when most of a long period has passed since its checkpoint."""

    def is_old() -> bool:
        age_s = time.time() - trial.work.checkpoints()[-1].stat().st_mtime
        return age_s > LATE_SHARE * trial.system.checkpoint_period_s

    trial.until(is_old, "a checkpoint that is old")
    trial.kill_and_start("learner")


def freeze(trial: Trial, name: str, seconds: float = FREEZE_S) -> None:
    """SIGSTOP for a while: connections stay, nobody answers."""
    trial.system.freeze(name)
    trial.hold(seconds)
    mark = trial.mark()  # what was seen before is no sign of life
    trial.system.thaw(name)
    trial.works_again(mark, sorted({name, "learner"}))


def replace_frozen_actor(trial: Trial) -> None:
    """Its place is taken while it is frozen; when it wakes up it learns so, and ends."""
    trial.system.freeze("actor-0")
    trial.remember("actor-0")
    trial.start_and_measure("actor-0")
    trial.hold(2.0)
    old = trial.system.replaced[-1]
    old.send_signal(signal.SIGCONT)
    code = trial.until(lambda: None if old.poll() is None else old.poll() or -1, "the end of the fenced actor", 30.0)
    if code != EXIT_FENCED:
        trial.fault(f"the actor whose place was taken ends with {code}, not {EXIT_FENCED}")


def kill_many_times(trial: Trial) -> None:
    """The same actor again and again: whoever served its dead lives must not keep anything of them."""
    slowest = 0.0
    for life in range(MANY_LIVES):
        trial.kill("actor-0")
        since_s = trial.system.start("actor-0")
        trial.until(lambda: trial.is_at_work("actor-0"), "actor-0 at work")
        slowest = max(slowest, time.monotonic() - since_s)
        if life == WARM_LIVES - 1:  # what the first lives leave warm is no leak
            trial.note_footprints(SLACK_OF_LIVES)
    trial.add_measure(f"slowest of {MANY_LIVES} actors at work", slowest, ACTOR_LIMIT_S)


def kill_all(trial: Trial) -> None:
    """Power is lost to the processes, not to the machine: all die at once, and start in any order."""
    names = list(trial.system.names)
    seen = trial.observer.watch.updates
    trial.rng.shuffle(names)
    for name in names:
        trial.kill(name)
    trial.rng.shuffle(names)
    trial.note(f"started: {', '.join(names)}")
    _start_again(trial, names, seen)


def restart_all(trial: Trial) -> None:
    """Everything is stopped as it should be, and resumes in any order."""
    names = list(trial.system.names)
    trial.stop(*[name for name in names if role_of(name) not in ("replay", "learner")])
    trial.stop("learner")
    trial.stop("replay")
    trial.rng.shuffle(names)
    trial.note(f"started: {', '.join(names)}")
    _start_again(trial, names, trial.observer.watch.updates)
    if trial.outcome.lost_updates:
        trial.fault(f"{trial.outcome.lost_updates} updates are lost though the learner was asked to stop")


def _start_again(trial: Trial, names: List[str], seen: int) -> None:
    since_s = time.monotonic()
    for name in names:
        if name != "learner":
            trial.system.start(name)
    trial.resume_learner(seen)
    trial.measure("all at work", since_s, lambda: all(trial.is_at_work(name) for name in names), 60.0)


def random_order(trial: Trial, rounds: int) -> None:
    """All services start in any order, with pauses between them or none; each time they must come up."""
    slowest = 0.0
    for number in range(rounds):
        if number:
            for name in trial.system.names:
                trial.kill(name)
        names = list(trial.system.names)
        trial.rng.shuffle(names)
        for name in names:
            trial.system.start(name)
            time.sleep(trial.rng.choice((0.0, 0.0, 0.3, 1.0)))
        since_s = time.monotonic()
        order = ", ".join(names)
        trial.until(lambda: all(map(trial.is_at_work, trial.system.names)), f"all at work, started as {order},", 60.0)
        slowest = max(slowest, time.monotonic() - since_s)
        if not number:
            trial.note_footprints()
    trial.note(f"{rounds} orders")
    trial.add_measure("slowest start, from its last process on", slowest, 40.0)


def scenarios(*, quick: bool) -> List[Scenario]:
    """All of this kind."""
    freeze_s = QUICK_FREEZE_S if quick else FREEZE_S
    rounds = QUICK_ROUNDS if quick else ROUNDS
    made = [
        Scenario(
            f"kill_{role_of(name)}", KIND, f"kill -9 of the {role_of(name)}", partial(kill, name=name),
            with_helper=name == "helper-0", quick=name == "replay",
        )
        for name in ("replay", "learner", "helper-0", "evaluator", "actor-0")
    ]  # fmt: skip
    made += [
        Scenario(
            f"freeze_{role_of(name)}", KIND, f"SIGSTOP of the {role_of(name)} for {freeze_s:g} s",
            partial(freeze, name=name, seconds=freeze_s), with_helper=name == "helper-0", quick=name == "replay",
        )
        for name in ("replay", "learner", "helper-0", "evaluator", "actor-0")
    ]  # fmt: skip
    return [
        *made,
        Scenario(
            "kill_learner_late", KIND,
            f"kill -9 of a learner {LATE_SHARE * LATE_PERIOD_S:g} s after its checkpoint, of a period of "
            f"{LATE_PERIOD_S:g} s", kill_late, settings={CHECKPOINT_PERIOD: str(LATE_PERIOD_S)},
        ),
        Scenario(
            "replace_frozen_actor", KIND, "an actor freezes, and another takes its place", replace_frozen_actor,
            quick=True,
        ),
        Scenario("many_lives", KIND, f"the same actor is killed {MANY_LIVES} times", kill_many_times),
        Scenario("kill_all", KIND, "kill -9 of all at once, started in any order", kill_all, quick=True),
        Scenario("restart_all", KIND, "all are stopped, and resume in any order", restart_all),
        Scenario(
            "random_order", KIND, f"{rounds} starts of all in any order", partial(random_order, rounds=rounds),
            begins=False, quick=True, settings={"replay.min_size_to_sample": "200"},
        ),
    ]  # fmt: skip
