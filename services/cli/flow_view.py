"""The way of the data as lines: from the actors through the replay to the learner, and back as a version. Pure."""

from __future__ import annotations

from typing import List, Optional, Tuple

from rich.text import Text

from services.cli import figures
from services.cli.snapshot import ActorState, HelperState, ProcessState, ReaderState, Snapshot, TrainingState

SILENT_S = 5.0  # an actor whose last chunk is older, or a service whose last answer is
ASKS_WITHIN_S = 20.0  # a reader that asked for nothing for longer
SORTS = ("staleness", "lag", "rate", "name")
DIM, BAD = "dim", "bold red"


def flow_lines(training: TrainingState) -> List[Text]:
    """The stations with rates and depths, then the lag by part, then what is in the way."""
    lines = [_stations(training), _lag(training)]
    if training.learner is not None and training.learner.drain:
        text = f" {training.learner.drain}; `shoal drain --undo` lets the run go on"
        lines.append(Text(text, style="bold cyan", no_wrap=True, overflow="ellipsis"))
    return lines


def _stations(training: TrainingState) -> Text:
    replay, learner = training.replay, training.learner
    buffered = sum(actor.buffered_steps for actor in training.actors.values())
    actors = f"{figures.rate(replay.steps_per_s)} steps/s +{figures.rate(buffered)} buffered" if replay else "?"
    ring = f"{figures.rate(replay.samples_per_s)} items/s" if replay else "?"
    training_text = version = "?"
    if learner is not None:
        training_text = f"{figures.rate(learner.updates_per_s)} updates/s +{learner.prefetched_batches} batches"
        version = str(learner.version)
    parts = [
        (f"{len(training.actors)} actors ", actors),
        ("replay ", ring),
        ("learner ", training_text),
        ("version ", version),
    ]
    line = Text(" ", no_wrap=True, overflow="ellipsis")
    for place, (name, text) in enumerate(parts):
        line.append(" ─▶ " if place else "", style=DIM)
        line.append(name, style=DIM)
        line.append(text, style="bold")
    return line


def _lag(training: TrainingState) -> Text:
    learner = training.learner
    if learner is None or not learner.lag_parts:
        return Text(" lag by part: not known yet", style=DIM)
    line = Text(" lag p50/p95", style=DIM, no_wrap=True, overflow="ellipsis")
    for part in learner.lag_parts:
        line.append(f" · {part.name.replace('_', ' ')} ", style=DIM)
        line.append(f"{part.p50_updates:.0f}/{part.p95_updates:.0f}", style="bold")
        line.append(f" {part.mean_s:.2g} s", style=DIM)
    return line


def snapshot_of(training: TrainingState, run: str, sort: str) -> Snapshot:
    """The run as it is drawn, of what its services answered; there is no launcher that knows of its processes.

    Args:
        training: the answers.
        run: its name.
        sort: of the actors, one of SORTS.
    """
    learner = training.learner
    processes = [_service("replay", training.replay is not None, training.replay.silent_s if training.replay else 0.0)]
    processes.append(_service("learner", learner is not None, learner.silent_s if learner else 0.0))
    for name, reader in sorted(training.readers.items()):
        if reader.role == "evaluator":
            processes.append(ProcessState(name, "running"))
    for name, helper in sorted(training.helpers.items()):
        processes.append(_helper(name, helper))
    processes += [_actor(name, training) for name in _sorted_actors(training, sort)]
    return Snapshot(run, "training", learner.training_s if learner else 0.0, tuple(processes), training)


def _service(name: str, is_known: bool, silent_s: float) -> ProcessState:
    if not is_known:
        return ProcessState(name, "does not answer", healthy=False)
    if silent_s > SILENT_S:
        return ProcessState(name, f"silent {figures.duration(silent_s)}", healthy=False)
    return ProcessState(name, "running")


def _helper(name: str, helper: HelperState) -> ProcessState:
    if not helper.lease_left_s:
        return ProcessState(name, "gone", healthy=False)
    return ProcessState(name, f"{figures.rate(helper.pushes_per_s)} gradients/s")


def _actor(name: str, training: TrainingState) -> ProcessState:
    reader = training.readers.get(name)
    if reader is not None and reader.drained:
        return ProcessState(name, "at rest")
    silent_s = _silent_s(training.actors.get(name), reader)
    if silent_s:
        return ProcessState(name, f"silent {figures.duration(silent_s)}", healthy=False)
    return ProcessState(name, "running")


def _silent_s(actor: Optional[ActorState], reader: Optional[ReaderState]) -> float:
    """For how long an actor has given no sign where one is due; 0: it has."""
    if actor is not None and actor.silent_s > SILENT_S:
        return actor.silent_s
    if reader is not None and reader.silent_s > ASKS_WITHIN_S:
        return reader.silent_s
    return 0.0


def _sorted_actors(training: TrainingState, sort: str) -> List[str]:
    names = set(training.actors) | {name for name, reader in training.readers.items() if reader.role == "actor"}

    def key(name: str) -> Tuple[float, float]:
        actor, reader = training.actors.get(name), training.readers.get(name)
        lag = float(reader.lag_updates) if reader is not None else 0.0
        if sort == "staleness":
            return -_silent_s(actor, reader), -lag
        if sort == "lag":
            return -lag, 0.0
        return (-actor.steps_per_s if actor is not None else 0.0), 0.0

    ordered = sorted(names, key=_natural)
    return ordered if sort == "name" else sorted(ordered, key=key)


def _natural(name: str) -> Tuple[str, int]:
    """actor-2 before actor-10."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits) if digits else -1
