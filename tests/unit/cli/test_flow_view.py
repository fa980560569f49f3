from __future__ import annotations

import dataclasses
from typing import Any, List

import pytest

from services.cli.flow_view import SORTS, flow_lines, snapshot_of
from services.cli.snapshot import (
    ActorState,
    HelperState,
    LagPart,
    LearnerState,
    ProcessState,
    ReaderState,
    ReplayState,
    TrainingState,
)
from tests.unit.cli.test_live_view import LEARNER, REPLAY

KNOWN = TrainingState(
    replay=REPLAY,
    learner=dataclasses.replace(
        LEARNER,
        prefetched_batches=12,
        lag_parts=(LagPart("in_flight", 3.0, 9.0, 0.25), LagPart("ring", 30.0, 90.0, 2.5)),
    ),
    actors={
        "actor-10": ActorState(100, 30.0, 5, buffered_steps=20, silent_s=0.1),
        "actor-2": ActorState(100, 10.0, 5, buffered_steps=4, silent_s=9.0),
        "actor-1": ActorState(100, 20.0, 5, silent_s=0.1),
    },
    readers={
        "actor-1": ReaderState("actor", 5, 70, 0.3),
        "actor-10": ReaderState("actor", 5, 7, 0.3),
        "actor-3": ReaderState("actor", 5, 0, 0.3, drained=True),
        "evaluator": ReaderState("evaluator", 4, 30, 20.0),
    },
    helpers={"helper-0": HelperState(9, 12.5, 4.0, False), "helper-1": HelperState(9, 0.0, 0.0, False)},
)


def texts(training: TrainingState) -> List[str]:
    return [line.plain for line in flow_lines(training)]


def processes(training: TrainingState, sort: str = "name") -> List[ProcessState]:
    return list(snapshot_of(training, "a", sort).processes)


def test_the_way_of_the_data_with_rates_depths_and_lags() -> None:
    stations, lag = texts(KNOWN)
    assert stations == (
        " 3 actors 5123 steps/s +24.0 buffered ─▶ replay 37.9k items/s ─▶ learner 148 updates/s +12 batches"
        " ─▶ version 171"
    )
    assert lag == " lag p50/p95 · in flight 3/9 0.25 s · ring 30/90 2.5 s"


def test_what_is_not_known_is_said() -> None:
    stations, lag = texts(TrainingState())
    assert stations == " 0 actors ? ─▶ replay ? ─▶ learner ? ─▶ version ?"
    assert lag == " lag by part: not known yet"


def test_a_drain_is_said() -> None:
    drained = dataclasses.replace(KNOWN, learner=dataclasses.replace(LEARNER, drain="drained"))
    assert texts(drained)[-1] == " drained; `shoal drain --undo` lets the run go on"


def test_each_process_with_how_it_is() -> None:
    states = {each.name: (each.state, each.healthy) for each in processes(KNOWN)}
    assert states == {
        "replay": ("running", True),
        "learner": ("running", True),
        "evaluator": ("running", True),
        "helper-0": ("12.5 gradients/s", True),
        "helper-1": ("gone", False),
        "actor-1": ("running", True),
        "actor-2": ("silent 0:09", False),
        "actor-3": ("at rest", True),
        "actor-10": ("running", True),
    }


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("name", ["actor-1", "actor-2", "actor-3", "actor-10"]),
        ("staleness", ["actor-2", "actor-1", "actor-10", "actor-3"]),  # the silent one, then by lag
        ("lag", ["actor-1", "actor-10", "actor-2", "actor-3"]),
        ("rate", ["actor-10", "actor-1", "actor-2", "actor-3"]),
    ],
)
def test_actors_are_sorted(sort: str, names: List[str]) -> None:
    assert sort in SORTS
    assert [each.name for each in processes(KNOWN, sort) if each.name.startswith("actor")] == names


def test_a_service_that_never_answered_and_one_that_does_not_answer_any_more() -> None:
    away: Any = dataclasses.replace(KNOWN, replay=dataclasses.replace(REPLAY, silent_s=75.0), learner=None)
    replay, learner = processes(away)[:2]
    assert (replay.state, replay.healthy) == ("silent 1:15", False)
    assert (learner.state, learner.healthy) == ("does not answer", False)
    assert isinstance(away.replay, ReplayState)
    assert not isinstance(away.learner, LearnerState)
