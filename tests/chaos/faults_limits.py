"""Memory and file descriptors that run out."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import List

from tests.chaos import proc
from tests.chaos.isolation import CGROUP, MemoryGroup
from tests.chaos.scenario import Scenario
from tests.chaos.system import role_of
from tests.chaos.trial import ACTOR_LIMIT_S, Trial

KIND = "limits"
ROOM_BYTES = 48 << 20
HOG = """
import time
held = []
for _ in range(40):
    held.append(bytearray(8 << 20))
    time.sleep(0.05)
time.sleep(60)
"""
JOIN = 'echo $$ > "$0" && exec "$@"'


def out_of_memory(trial: Trial, name: str) -> None:
    """Something beside a service takes the memory of their cgroup, and the kernel kills the service for it."""
    group = trial.system.resources.enter_context(MemoryGroup(f"shoal-chaos-{trial.system.mark}"))
    into_group = ["sh", "-c", JOIN, str(group.members)]
    trial.system.run_behind(name, into_group)
    trial.begin()
    trial.remember(name)
    Path(f"/proc/{trial.system.pid(name)}/oom_score_adj").write_text("1000")
    seen = trial.observer.watch.updates
    group.limit(group.used_bytes() + ROOM_BYTES)
    hog = subprocess.Popen([*into_group, sys.executable, "-c", HOG])
    try:
        code = trial.system.wait(name, 60.0 * trial.strain)
        trial.note_end(name)
    finally:
        group.limit(-1)
        hog.kill()
        hog.wait(10.0)
    if code != -signal.SIGKILL:
        trial.fault(f"{name} ended with {code}, and not by the kernel's hand")
    if role_of(name) == "learner":
        trial.resume_learner(max(seen, trial.observer.watch.updates))
    else:
        trial.start_and_measure(name)


def out_of_descriptors(trial: Trial, name: str) -> None:
    """A service can open nothing more, and an actor is replaced meanwhile; then it can again."""
    pid = trial.system.pid(name)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    trial.kill("actor-0")
    trial.hold(2.0)  # until the descriptor of its connection is free, which the new one would get
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (proc.lowest_free_descriptor(pid), before[1]))
    with trial.system.disturbed("actor-0"):
        trial.system.start("actor-0")
        trial.hold(6.0)
        if trial.is_at_work("actor-0"):
            trial.fault("the new actor got through: the limit did not bind, and the scenario shows nothing")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    trial.measure("actor-0 at work", time.monotonic(), lambda: trial.is_at_work("actor-0"), ACTOR_LIMIT_S)


def out_of_descriptors_actor(trial: Trial) -> None:
    """An actor can open nothing more, and the replay is replaced meanwhile; then it can again."""
    pid = trial.system.pid("actor-0")
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    trial.kill("replay")
    trial.hold(2.0)  # until the descriptor of its connection is free, which the new one would get
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (proc.lowest_free_descriptor(pid), before[1]))
    with trial.system.disturbed("actor-0"):
        trial.start_and_measure("replay")
        mark = trial.mark()
        trial.hold(6.0)
        if trial.work.goes_on("actor-0", mark):
            trial.fault("the actor got through: the limit did not bind, and the scenario shows nothing")
        mark = trial.mark()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    trial.works_again(mark, ("actor-0",))


def scenarios() -> List[Scenario]:
    """All of this kind."""
    return [
        *(
            Scenario(
                f"out_of_memory_{role_of(name)}", KIND, f"the {role_of(name)}'s cgroup runs out of memory",
                partial(out_of_memory, name=name), with_helper=name == "helper-0", needs=(CGROUP,), begins=False,
            )
            for name in ("replay", "learner", "actor-0", "evaluator", "helper-0")
        ),
        *(
            Scenario(
                f"out_of_descriptors_{name}", KIND, f"the {name} can open no file and no connection for 6 s",
                partial(out_of_descriptors, name=name), quick=name == "replay",
            )
            for name in ("replay", "learner")
        ),
        Scenario(
            "out_of_descriptors_actor", KIND, "an actor can open no file and no connection for 6 s",
            out_of_descriptors_actor,
        ),
    ]  # fmt: skip
