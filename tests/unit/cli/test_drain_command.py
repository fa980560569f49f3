from __future__ import annotations

import io
from typing import Any, List, Optional, Tuple

import pytest

from services.cli import __main__ as command
from services.cli.drain_command import DrainRun
from services.cli.target import Addresses
from services.common.errors import UserError
from shoal.v1 import experience_pb2, parameters_pb2, replay_pb2
from tests.fakes import FakeClock

ACTORS, LEARNER = parameters_pb2.DRAIN_PHASE_ACTORS, parameters_pb2.DRAIN_PHASE_LEARNER
DRAINED, NONE = parameters_pb2.DRAIN_PHASE_DRAINED, parameters_pb2.DRAIN_PHASE_UNSPECIFIED
WAITS = {ACTORS: "waiting for actors", LEARNER: "waiting for the learner"}


class System:
    """Answers as a run that comes to rest phase by phase; a phase of None: the learner does not answer."""

    def __init__(self, *phases: Optional[int], folder: str = "/data/ring") -> None:
        self.addresses = Addresses("127.0.0.1:1", "127.0.0.1:2")
        self.asked: List[Tuple[bool, float]] = []
        self.held_up: Tuple[str, ...] = ()
        self.snapshots: List[str] = []
        self.flush_fault = ""
        self.info: Optional[replay_pb2.GetReplayInfoResponse] = replay_pb2.GetReplayInfoResponse()
        self._phases = list(phases)
        self._folder = folder

    def drain(self, *, undo: bool, actors_within_s: float = 0.0) -> None:
        self.asked.append((undo, actors_within_s))

    def learner(self) -> Any:
        phase = self._phases.pop(0) if len(self._phases) > 1 else self._phases[0]
        if phase is None:
            return None
        state = parameters_pb2.DrainState(
            phase=phase,
            waiting_for=WAITS.get(phase, ""),
            held_up=self.held_up if phase != ACTORS else (),
            checkpoint_updates=1234 if phase == DRAINED else 0,
        )
        return parameters_pb2.GetLearnerInfoResponse(drain=state)

    def replay(self) -> Any:
        return self.info

    def flush(self, timeout_s: float) -> replay_pb2.FlushResponse:
        if self.flush_fault:
            raise UserError(self.flush_fault)
        return replay_pb2.FlushResponse(steps=5000, folder=self._folder)

    def snapshot(self, folder: str) -> replay_pb2.SnapshotResponse:
        self.snapshots.append(folder)
        return replay_pb2.SnapshotResponse(steps=5000)


def drain(system: Any, snapshot: str = "", deadline_s: float = 20.0) -> Tuple[int, List[str], float]:
    """Exit code, lines, and how many seconds it took."""
    out, clock = io.StringIO(), FakeClock()

    def sleep(seconds: float) -> None:
        clock.now_s += seconds

    began_s = clock.now_s
    code = DrainRun(system, out, deadline_s=deadline_s, snapshot=snapshot, clock=clock, sleep=sleep).run()
    return code, out.getvalue().splitlines(), clock.now_s - began_s


def test_each_step_is_told_once_and_the_end_says_that_all_may_be_stopped() -> None:
    system = System(ACTORS, ACTORS, LEARNER, LEARNER, DRAINED)
    code, lines, _ = drain(system)
    assert code == 0
    assert system.asked == [(False, 20.0)]
    assert lines[:5] == [
        "waiting for actors",
        "actors are at rest",
        "waiting for the learner",
        "the learner is at rest: checkpoint of 1 234 updates",
        "the replay has flushed 5 000 steps to /data/ring",
    ]
    assert lines[5].startswith("it is safe to stop all services")
    assert len(lines) == 6
    assert system.snapshots == []


def test_a_copy_of_the_ring_comes_last() -> None:
    system = System(DRAINED)
    code, lines, _ = drain(system, snapshot="/backup/a")
    assert (code, system.snapshots) == (0, ["/backup/a"])
    assert "5 000 steps are copied to /backup/a" in lines


@pytest.mark.parametrize("phase", [ACTORS, LEARNER])
def test_a_step_that_takes_too_long_is_not_safe(phase: int) -> None:
    code, lines, took_s = drain(System(phase))
    assert code == 1
    assert f"NOT SAFE  not at rest after 20 s: {WAITS[phase]}" in lines
    assert not any("it is safe" in line for line in lines)
    assert took_s < 2 * 20 + 5


def test_actors_that_do_not_come_to_rest_are_named_and_the_others_drained() -> None:
    system = System(ACTORS, LEARNER, DRAINED)
    system.held_up = ("actor-1: the environment hangs",)
    code, lines, _ = drain(system)
    assert code == 1
    assert "NOT SAFE  actor-1: the environment hangs" in lines
    assert "the replay has flushed 5 000 steps to /data/ring" in lines


def test_a_drain_that_somebody_undoes_or_whose_learner_goes_away_is_not_safe() -> None:
    assert "NOT SAFE  the run goes on" in drain(System(ACTORS, NONE))[1][-2]
    code, lines, _ = drain(System(ACTORS, LEARNER, None))
    assert code == 1
    assert any(line.startswith("NOT SAFE  the learner does not answer") for line in lines)


def test_a_ring_in_memory_and_a_replay_that_is_away_are_not_safe() -> None:
    code, lines, _ = drain(System(DRAINED, folder=""))
    assert code == 1
    assert any("keeps its ring in memory: the 5 000 steps in it end with its process" in line for line in lines)
    system = System(DRAINED)
    system.info = None
    code, lines, _ = drain(system)
    assert (code, "NOT SAFE  no replay answers at 127.0.0.1:1" in lines[-2]) == (1, True)
    system = System(DRAINED)
    system.flush_fault = "no space is left"
    assert drain(system)[0] == 1


def test_steps_that_are_not_accounted_for_and_steps_that_an_actor_holds_are_not_safe() -> None:
    system = System(DRAINED)
    assert system.info is not None
    counters = experience_pb2.ActorCounters(produced_steps=10, buffered_steps=4)
    actor = system.info.actors.add(name="actor-0", life_acknowledged_steps=6, seconds_since_insert=1.0)
    actor.counters.CopyFrom(counters)
    code, lines, _ = drain(system)
    assert code == 1
    assert "NOT SAFE  actor-0: 4 steps that it made are not acknowledged" in lines
    actor.seconds_since_insert = 3600.0  # it is gone, and held nothing of anybody's
    assert drain(system)[0] == 0
    system.info.steps.acknowledged = 3
    code, lines, _ = drain(system)
    assert code == 1
    assert any("BROKEN" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--undo", "--deadline", "5"], "--undo lets the run go on at once"),
        (["--undo", "--snapshot", "x"], "--undo lets the run go on at once"),
        (["--learner.address", "127.0.0.1:1"], "no answer from a learner at 127.0.0.1:1"),
    ],
)
def test_what_a_user_can_mend_is_a_sentence(
    words: List[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["drain", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_a_deadline_is_a_number_of_seconds(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["drain", "--deadline", text])
    assert "is no number of seconds above 0" in capsys.readouterr().err
