from __future__ import annotations

import dataclasses
import io
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from services.cli.live_view import export_svg, render, status_line
from services.cli.snapshot import (
    ActorState,
    LearnerState,
    ProcessState,
    ReaderState,
    ReplayState,
    Snapshot,
    TrainingState,
)
from services.cli.waits import Wait

LEARNER = LearnerState(
    run_state="training",
    version=171,
    updates=3421,
    max_updates=8000,
    updates_per_s=148.3,
    training_s=23.0,
    lag_p50_updates=12,
    lag_p95_updates=41,
    evaluated_version=168,
    success_rate=0.82,
    mean_return=-3.214,
    best_version=160,
    best_success_rate=0.86,
    best_mean_return=-2.98,
    scores=(0.1, 0.4, 0.82),
)
REPLAY = ReplayState(
    rows=412_345,
    capacity_rows=1_000_000,
    items=411_000,
    acknowledged_steps=405_120,
    steps_per_s=5123.4,
    samples_per_s=37_900,
    insert_blocked=False,
    sample_blocked=True,
    limiter="samples_per_insert 32 x 12345 inserted - 390000 sampled = 5040 samples owed; inserts go below 8192",
)
NAMES = ("replay", "learner", "evaluator", "actor-0", "actor-1")
SNAPSHOT = Snapshot(
    run="reach-20250418-142701",
    phase="training",
    elapsed_s=83.0,
    processes=tuple(ProcessState(name, "running") for name in NAMES),
    training=TrainingState(
        replay=REPLAY,
        learner=LEARNER,
        actors={"actor-0": ActorState(101_000, 1280.0, 170)},
        readers={"actor-0": ReaderState("actor", 170, 11, 0.2)},
        waits=(Wait("learner", 5.0, "too few items", "insert"), Wait("learner", 2.0, "something shorter", "")),
    ),
)


def drawn(snapshot, width=100, height=20):
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None, force_terminal=True)
    console.print(render(snapshot, width, height))
    return console.file.getvalue().rstrip("\n").splitlines()


def with_learner(**values):
    training = dataclasses.replace(SNAPSHOT.training, learner=dataclasses.replace(LEARNER, **values))
    return dataclasses.replace(SNAPSHOT, training=training)


def with_replay(**values):
    training = dataclasses.replace(SNAPSHOT.training, replay=dataclasses.replace(REPLAY, **values))
    return dataclasses.replace(SNAPSHOT, training=training)


def test_what_is_seen_in_100_by_20_characters():
    lines = drawn(SNAPSHOT)
    text = "\n".join(lines)
    assert len(lines) <= 20
    for words in (
        "reach-20250418-142701",
        "training",
        "1:23",
        "43%",
        "3 421 of 8 000",
        "148/s",
        "ETA 0:30",
        "p50 12 p95 41",
        "82%",
        "86% (version 160)",
        "▁▄▇",
        "-3.214",
        "412 345 of 1 000 000",
        "5123 steps/s in",
        "37.9k items/s out",
        "insert ● flows",
        "sample ■ waits",
        "samples_per_insert 32",
        "1280",
        "101 000",
        "too few items",
    ):
        assert words in text, words


@given(st.integers(40, 220), st.integers(5, 60), st.integers(0, 60), st.integers(0, 3))
def test_it_fits_any_terminal(width, height, actors, waiting):
    names = [*NAMES[:3], *(f"actor-{i}" for i in range(actors))]
    waits = tuple(Wait(f"actor-{i}", None, "x" * 300, "") for i in range(waiting))
    snapshot = dataclasses.replace(
        SNAPSHOT,
        processes=tuple(ProcessState(name, "running", 2) for name in names),
        training=dataclasses.replace(SNAPSHOT.training, waits=waits),
    )
    lines = drawn(snapshot, width, height)
    assert len(lines) <= max(height, 9)
    assert max(map(len, lines)) <= width


def test_a_drain_is_told_in_place_of_the_phase():
    assert "draining: actors" in "\n".join(drawn(with_learner(drain="draining: actors")))
    assert status_line(with_learner(drain="drained")).startswith("1:23 drained; ")


def test_processes_that_do_not_fit_are_summed_up_and_trouble_is_kept():
    processes = [*(ProcessState(name, "running") for name in NAMES[:3])]
    processes += [ProcessState(f"actor-{i}", "running") for i in range(40)]
    processes.append(ProcessState("actor-40", "again in 0.4 s", 3, healthy=False))
    text = "\n".join(drawn(dataclasses.replace(SNAPSHOT, processes=tuple(processes))))
    assert "+ 36 more" in text
    assert "▲ actor-40" in text
    assert "again in 0.4 s ↻3" in text


def test_the_picture_is_an_svg_of_the_same_view():
    picture = export_svg(SNAPSHOT, "shoal up reach.toml")
    root = ET.fromstring(picture)  # noqa: S314 (our own)
    assert root.tag.endswith("svg")
    text = "".join(root.itertext()).replace("\xa0", " ")
    assert "reach-20250418-142701" in text
    assert "shoal up reach.toml" in text


def test_before_the_first_answer():
    text = "\n".join(drawn(Snapshot("a", "starting", 0.5, SNAPSHOT.processes)))
    assert "the learner has not answered yet" in text
    assert "the replay has not answered yet" in text


def test_before_the_first_evaluation():
    assert "not evaluated yet" in "\n".join(drawn(with_learner(evaluated_version=0)))


def test_where_there_is_no_success_the_return_has_the_curve():
    text = "\n".join(drawn(with_learner(success_rate=-1.0, scores=(-9.0, -6.0, -2.0))))
    assert "success" not in text
    assert "▁▄█" in text


def test_silence_is_shown():
    assert "no answer for 7 s" in "\n".join(drawn(with_learner(silent_s=7.2)))
    assert "no answer for 4 s" in "\n".join(drawn(with_replay(silent_s=4.1)))


def test_updates_that_were_stopped_are_shown():
    assert "not finite" not in "\n".join(drawn(SNAPSHOT))
    stopped = with_learner(non_finite_updates=4)
    assert "4 updates not finite" in "\n".join(drawn(stopped))
    assert "4 updates stopped: not finite" in status_line(stopped)
    assert "not finite" not in status_line(SNAPSHOT)


def test_steps_that_went_wrong_are_shown():
    text = "\n".join(drawn(with_replay(quarantined_steps=12, lost_tail_steps=3)))
    assert "12 quarantined" in text
    assert "3 lost" in text


def test_markup_in_names_is_text():
    snapshot = dataclasses.replace(SNAPSHOT, run="[red]x[/red]")
    assert "[red]x[/red]" in drawn(snapshot)[0]


def test_the_status_line_is_one_line():
    line = status_line(SNAPSHOT)
    assert "\n" not in line
    assert line.startswith("1:23 training; updates 3421/8000 at 148/s, ETA 0:30; success 82% (best 86%), return -3.214")
    assert "replay 412345/1000000 rows" in line
    assert line.endswith("learner waits: 0:05 too few items")


@pytest.mark.parametrize(
    ("phase", "run_state", "said"),
    [
        ("training", "waiting", "waiting for data"),
        ("training", "finished", "finishing"),
        ("stopping", "waiting", "stopping"),
    ],
)
def test_the_phase_is_what_a_person_would_say(phase, run_state, said):
    snapshot = dataclasses.replace(with_learner(run_state=run_state), phase=phase)
    assert f" {said};" in status_line(snapshot)


def test_trouble_is_in_the_status_line():
    processes = (ProcessState("actor-0", "again in 1.0 s", 1, healthy=False),)
    assert "actor-0: again in 1.0 s" in status_line(Snapshot("a", "training", 1.0, processes))
