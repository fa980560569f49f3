"""Several faults, drawn by the seed, one after the other and at once, in a run that must learn its task."""

from __future__ import annotations

from functools import partial
from typing import Dict, List, Mapping

from tests.chaos import faults_disk
from tests.chaos.faults_disk import Fault
from tests.chaos.faults_limits import out_of_descriptors, out_of_descriptors_actor
from tests.chaos.faults_network import ACTORS_PAIRS, OTHERS_PAIRS, PAIRS, cut, half_open, isolate, slow
from tests.chaos.faults_process import freeze, kill, kill_all, replace_frozen_actor
from tests.chaos.faults_security import expired_certificate, wrong_token
from tests.chaos.isolation import NAMESPACE
from tests.chaos.scenario import Scenario
from tests.chaos.system import CABLES, TLS
from tests.chaos.trial import Trial

KIND = "combinations"
NUM_FAULTS = 5
NUM_OVER_TLS = 4
RESENT = 0.03
BAR = 0.9
DISK_MEGABYTES = 96
SHORT_S = 6.0
FULL_NETWORKS = {"td3.hidden_sizes": "[128, 128]", "learner.batch_size": "128", "evaluator.episodes": "50"}
SERVICES = ("replay", "learner", "helper-0", "evaluator", "actor-0", "actor-1")


def kill_two(trial: Trial) -> None:
    """Two at once; the second starts while the first is not back."""
    first, second = trial.rng.sample([name for name in SERVICES if name != "learner"], 2)
    trial.note(f"{first} and {second}")
    trial.kill(first)
    trial.kill(second)
    began = {name: trial.system.start(name) for name in (first, second)}
    for name, since_s in began.items():
        trial.measure(f"{name} at work", since_s, partial(trial.is_at_work, name), 40.0)


def freeze_and_kill(trial: Trial) -> None:
    """The replay is frozen while an actor is replaced."""
    trial.system.freeze("replay")
    trial.kill("actor-1")
    trial.system.start("actor-1")
    trial.hold(SHORT_S)
    trial.system.thaw("replay")
    trial.until(partial(trial.is_at_work, "actor-1"), "actor-1 at work", 30.0)


def _everywhere() -> Dict[str, Fault]:
    """What can be done to any system on disks of its own."""
    found: Dict[str, Fault] = {}
    for name in SERVICES:
        found[f"kill {name}"] = partial(kill, name=name)
        found[f"freeze {name}"] = partial(freeze, name=name, seconds=SHORT_S)
    found["kill all"] = kill_all
    found["kill two"] = kill_two
    found["freeze replay, kill actor-1"] = freeze_and_kill
    found["replace frozen actor"] = replace_frozen_actor
    found["full disk of the replay"] = faults_disk.full_at_the_replays_start
    found["full disk of the checkpoints"] = faults_disk.full_under_the_checkpoints
    found["read-only checkpoints"] = faults_disk.read_only_checkpoints
    found["read-only ring"] = faults_disk.read_only_ring
    found["damaged log"] = faults_disk.damaged_log
    found["damaged column"] = faults_disk.damaged_column
    found["damaged checkpoint"] = faults_disk.damaged_checkpoint
    for name in ("replay", "learner"):
        found[f"no descriptors for the {name}"] = partial(out_of_descriptors, name=name)
    found["no descriptors for an actor"] = out_of_descriptors_actor
    return found


def over_cables() -> Dict[str, Fault]:
    """What is drawn from where each pair has a cable of its own."""
    found = _everywhere()
    for pair in PAIRS:
        found[f"cut {pair[0]} {pair[1]}"] = partial(cut, pair=pair, seconds=SHORT_S)
    for name in ("replay", "learner"):
        found[f"isolate {name}"] = partial(isolate, name=name, seconds=SHORT_S)
    found["slow links"] = partial(slow, pairs=ACTORS_PAIRS, replaced=("actor-0",), seconds=SHORT_S)
    found["slow links of others"] = partial(slow, pairs=OTHERS_PAIRS, replaced=(), seconds=SHORT_S)
    found["half-open connections"] = half_open
    return found


def over_tls() -> Dict[str, Fault]:
    """What is drawn from where services have certificates and tokens."""
    return {**_everywhere(), "wrong token": wrong_token, "expired certificate": expired_certificate}


def combine(trial: Trial, faults: Mapping[str, Fault], count: int) -> None:
    """`count` faults, drawn without repetition, while some messages come more than once."""
    drawn = trial.rng.sample(sorted(faults), count)
    trial.note(" → ".join(drawn))
    for name in drawn:
        faults[name](trial)
        trial.hold(trial.rng.uniform(0.0, 3.0))


def scenarios(*, quick: bool) -> List[Scenario]:
    """All of this kind."""
    count = 2 if quick else NUM_FAULTS
    made = []
    for number in (1, 2, 3, 4):
        over, faults = (TLS, over_tls()) if number == NUM_OVER_TLS else (CABLES, over_cables())
        fault = partial(combine, faults=faults, count=count)
        made.append(
            Scenario(
                f"combination_{number}", KIND, f"{count} faults drawn by the seed, and resends; then {BAR:.0%} success",
                partial(faults_disk.on_small_disks, fault=fault, megabytes=DISK_MEGABYTES), layout=over,
                with_helper=True, needs=(NAMESPACE,), settings=FULL_NETWORKS, resends=RESENT, bar=BAR, begins=False,
                quick=number == 1,
            )
        )  # fmt: skip
    return made
