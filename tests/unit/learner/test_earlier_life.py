from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest

from services.common.errors import UserError
from services.common.run_folder import Progress, RunFolder
from services.common.schema import ActionSpec, Schema
from services.learner.checkpoint import Checkpoint, CheckpointFolder, generator_state
from services.learner.earlier_life import STAND_INS, EarlierLife
from services.learner.version_history import VersionRecord
from tests.fakes import SCHEMA, FakeLog


class CountingLearner:
    """Holds nothing but the number of its updates."""

    def __init__(self) -> None:
        self.updates = 0

    def load_state(self, state: Dict[str, Any]) -> None:
        assert set(state) == {"updates"}
        self.updates = int(state["updates"])


class Run:
    """A run's folder, and lives of a chief in it."""

    def __init__(self, path: Path, log: FakeLog) -> None:
        self.log = log
        self.folder = RunFolder(path)
        self.checkpoints: Any = CheckpointFolder(self.folder.checkpoints, log)
        self.learner: Any = CountingLearner()

    def life(self, algorithm: str = "td3") -> EarlierLife:
        return EarlierLife(self.folder, self.checkpoints, algorithm, self.log)

    def save(self, updates: int) -> np.random.Generator:
        """Write a checkpoint; returns the generator that went into it."""
        generator = np.random.default_rng(9)
        generator.random(updates)
        self.checkpoints.save(
            Checkpoint(
                algorithm="td3",
                schema=SCHEMA,
                progress=Progress(updates=updates, env_steps=77),
                history=[VersionRecord(3, 0, 0.0, 0.0), VersionRecord(8, updates, 0.0, 0.0)],
                acknowledged={"ab": 77},
                state={"updates": np.array(updates)},
                average={"policy.bias": np.ones(2, np.float32)},
                generators={STAND_INS: generator_state(generator)},
            )
        )
        return generator


@pytest.fixture
def run(tmp_path: Path, log: FakeLog) -> Run:
    return Run(tmp_path / "run", log)


def test_a_first_life_begins_with_nothing(run: Run) -> None:
    life = run.life()
    assert (life.history, life.last_version, life.acknowledged, life.progress) == ([], 0, {}, Progress())
    assert life.average == {}
    assert life.stand_ins(4).random() == np.random.default_rng(4).random()
    life.check_fits(SCHEMA)
    life.resume(run.learner, env_steps=0)
    assert run.log.lines == []


def test_a_checkpoint_comes_back_and_says_what_is_lost(run: Run) -> None:
    run.life().note_updates(52)
    generator = run.save(40)
    life = run.life()
    assert (life.last_version, life.acknowledged, life.progress.env_steps) == (8, {"ab": 77}, 77)
    assert [record.version for record in life.history] == [3, 8]
    np.testing.assert_array_equal(life.average["policy.bias"], np.ones(2))
    assert life.stand_ins(4).random() == generator.random()
    life.check_fits(SCHEMA)
    life.resume(run.learner, env_steps=80)
    assert run.learner.updates == 40
    assert ("info", "resumed", {"updates": 40, "lost_updates": 12, "env_steps": 80}) in run.log.lines
    run.life().resume(run.learner, env_steps=80)  # what was lost is told once
    assert run.log.lines[-1][2]["lost_updates"] == 0


def test_a_life_that_ended_before_its_first_checkpoint_is_told(run: Run) -> None:
    run.life().note_updates(7)
    run.life().resume(run.learner, env_steps=0)
    assert run.log.lines == [("warning", run.log.lines[0][1], {"lost_updates": 7})]
    assert "before its first checkpoint" in run.log.lines[0][1]


def test_another_algorithms_run_is_refused(run: Run) -> None:
    run.save(40)
    with pytest.raises(UserError, match=r"was trained by td3, the run file asks for dqn: choose another run\.name"):
        run.life("dqn")


def test_another_environments_run_is_refused(run: Run) -> None:
    run.save(40)
    with pytest.raises(UserError, match=r"does not fit the actors' environment: .*; choose another run\.name"):
        run.life().check_fits(Schema(SCHEMA.observation, ActionSpec(num_actions=3)))


def test_other_networks_are_refused(run: Run) -> None:
    run.save(40)

    def misfit(_state: Dict[str, Any]) -> None:
        raise ValueError("'critic.0.weight' is (8, 3) there, and (16, 3) here")

    run.learner.load_state = misfit
    with pytest.raises(UserError, match=r"does not fit the run file: 'critic.*; choose another run\.name"):
        run.life().resume(run.learner, env_steps=0)
