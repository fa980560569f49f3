"""Several faults, drawn by the seed, one after the other and at once, in a run that must learn its task."""

from __future__ import annotations

from functools import partial
from typing import Callable, Dict, List

from tests.chaos.faults_network import PAIRS, cut, isolate, slow
from tests.chaos.faults_process import freeze, kill, kill_all
from tests.chaos.isolation import NAMESPACE
from tests.chaos.scenario import Scenario
from tests.chaos.system import CABLES
from tests.chaos.trial import Trial

KIND = "combinations"
NUM_FAULTS = 5
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


def single_faults() -> Dict[str, Callable[[Trial], None]]:
    """What is drawn from."""
    found: Dict[str, Callable[[Trial], None]] = {}
    for name in SERVICES:
        found[f"kill {name}"] = partial(kill, name=name)
        found[f"freeze {name}"] = partial(freeze, name=name, seconds=SHORT_S)
    for pair in PAIRS:
        found[f"cut {pair[0]} {pair[1]}"] = partial(cut, pair=pair, seconds=SHORT_S)
    for name in ("replay", "learner"):
        found[f"isolate {name}"] = partial(isolate, name=name, seconds=SHORT_S)
    found["slow links"] = partial(slow, seconds=SHORT_S)
    found["kill all"] = kill_all
    found["kill two"] = kill_two
    found["freeze replay, kill actor-1"] = freeze_and_kill
    return found


def combine(trial: Trial, count: int) -> None:
    """`count` faults, drawn without repetition."""
    faults = single_faults()
    drawn = trial.rng.sample(sorted(faults), count)
    trial.note(" → ".join(drawn))
    for name in drawn:
        faults[name](trial)
        trial.hold(trial.rng.uniform(0.0, 3.0))


def scenarios(*, quick: bool) -> List[Scenario]:
    """All of this kind."""
    return [
        Scenario(
            f"combination_{number}", KIND, f"{2 if quick else NUM_FAULTS} faults drawn by the seed, then the bar",
            partial(combine, count=2 if quick else NUM_FAULTS), layout=CABLES, with_helper=True, needs=(NAMESPACE,),
            settings=FULL_NETWORKS, to_the_bar=not quick, quick=number == 1,
        )
        for number in (1, 2, 3)
    ]  # fmt: skip
