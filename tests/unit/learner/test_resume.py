"""A resume goes on bit for bit, given the same batches: through the loop, the guard and the file of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from services.agent.registry import learner_class
from services.common.batch import Batch
from services.common.config.algorithms import DqnSettings, Td3Settings
from services.common.config.values import PublishPeriod
from services.common.metrics import Metrics
from services.common.moments import Moments
from services.common.run_folder import Progress
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.learner.averaged_parameters import AveragedParameters
from services.learner.batch_dump import BatchDump
from services.learner.checkpoint import Checkpoint, CheckpointFolder
from services.learner.drawn_batch import DrawnBatch
from services.learner.loop import train
from services.learner.nan_guard import NanGuard
from services.learner.observation_statistics import ObservationStatistics
from services.learner.publisher import Publisher
from tests.fakes import FakeLog, FakeStaleness

pytest.importorskip("torch")

OBSERVATION = (TensorSpec("policy", "float32", (3,)), TensorSpec("states", "float32", (2,)))
CASES: Dict[str, Tuple[Schema, Any]] = {
    "td3": (Schema(OBSERVATION, ActionSpec((-1.0, -2.0), (1.0, 2.0))), Td3Settings(hidden_sizes=(16, 16))),
    "dqn": (Schema(OBSERVATION, ActionSpec(num_actions=4)), DqnSettings(hidden_sizes=(16, 16), target_update_period=7)),
}
MOMENTS = {name: Moments(50, np.full(size, 0.3), np.full(size, 70.0)) for name, size in (("policy", 3), ("states", 2))}


def _batch(schema: Schema, number: int) -> Batch:
    rng = np.random.default_rng(number)

    def observation() -> Dict[str, Any]:
        return {spec.name: rng.standard_normal((16, *spec.shape)).astype(np.float32) for spec in schema.observation}

    action: Any = rng.integers(4, size=16)
    if not schema.action.is_discrete:
        action = rng.uniform(-1, 1, (16, 2)).astype(np.float32)
    reward = rng.standard_normal(16).astype(np.float32)
    if number == 13:
        reward[4] = np.inf  # a stopped update is part of what must go on alike
    return Batch(
        keys=np.arange(16),
        probability=rng.uniform(0.1, 1, 16),
        priority=np.ones(16),
        times_sampled=np.ones(16, np.int64),
        observation=observation(),
        action=action,
        n_step_return=reward,
        discount=rng.choice([0.0, 0.9], 16).astype(np.float32),
        next_observation=observation(),
        policy_version=np.zeros(16, np.int64),
        num_items=16,
    )


class Batches:
    """The same batches by number, from `first` on; notes the TD errors that come back."""

    def __init__(self, schema: Schema, first: int) -> None:
        self._schema = schema
        self.number = first
        self.reported: List[Any] = []

    def next(self) -> DrawnBatch:
        self.number += 1
        return DrawnBatch(_batch(self._schema, self.number - 1), 1)

    def report(self, _drawn: DrawnBatch, td_error: Any) -> None:
        self.reported.append(td_error.tobytes())


class Monitor:
    def after_update(self, *_values: Any) -> None: ...


class Life:
    """One life of a chief's loop, without servers."""

    def __init__(self, name: str, folder: Path, *, seed: int, first: int = 0) -> None:
        self.schema, settings = CASES[name]
        self.name = name
        self.learner = learner_class(name)(
            self.schema, settings, seed=seed, normalize_observations=True, reward_scale=0.5
        )
        self.checkpoints = CheckpointFolder(folder, FakeLog(), keep=100)  # type: ignore[arg-type]
        self.batches = Batches(self.schema, first)
        self.published: List[Dict[str, Any]] = []
        loaded = self.checkpoints.load_newest()
        if loaded is not None:
            self.learner.load_state(loaded.state)
        else:
            self.learner.normalizer.take(MOMENTS)
        self.average = AveragedParameters(0.05, loaded.average if loaded else {}, self.learner.updates)
        self.publisher = Publisher(
            self,  # type: ignore[arg-type]
            self.learner,
            period=PublishPeriod(updates=5),
            average=self.average,
            statistics=ObservationStatistics(self.learner.normalizer, enabled=True, warmup_steps=1, log=FakeLog()),
        )

    def publish(self, sets: Dict[Any, Dict[str, Any]], _updates: int) -> None:
        """As the parameter store, which takes what is published."""
        self.published.append(
            {f"{role} {name}": array for role, arrays in sets.items() for name, array in arrays.items()}
        )

    def train(self, max_updates: int) -> None:
        guard = NanGuard(
            self.learner,
            BatchDump(Path("/dev/null/no folder"), FakeLog(), max_files=20),  # type: ignore[arg-type]
            Metrics("learner", "run-a"),
            FakeLog(),  # type: ignore[arg-type]
            max_in_row=3,
            report=self.batches.report,
            on_stopped=lambda _count: None,
        )
        train(
            self.learner,
            self.batches,  # type: ignore[arg-type]
            guard,
            Monitor(),  # type: ignore[arg-type]
            FakeStaleness(),  # type: ignore[arg-type]
            publish_if_due=self.publisher.publish_if_due,
            checkpoint_if_due=lambda: None,
            rest=lambda: None,
            max_updates=max_updates,
            importance_exponent=0.4,
        )

    def save(self) -> None:
        self.checkpoints.save(
            Checkpoint(
                algorithm=self.name,
                schema=self.schema,
                progress=Progress(updates=self.learner.updates),
                history=[],
                acknowledged={},
                state=self.learner.state(),
                average=self.average.state(),
            )
        )


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("cut", [1, 10, 15])
def test_a_resume_goes_on_bit_for_bit(name: str, cut: int, tmp_path: Path) -> None:
    whole = Life(name, tmp_path / "none", seed=1)
    whole.train(25)
    first = Life(name, tmp_path / "checkpoints", seed=1)
    first.train(cut)
    first.save()
    first.train(cut + 2)  # what was saved is a copy, and what came later is lost with the process
    second = Life(name, tmp_path / "checkpoints", seed=9, first=cut)
    assert second.learner.updates == cut
    second.train(25)
    expected = whole.learner.state()
    resumed = second.learner.state()
    assert set(resumed) == set(expected)
    assert {"normalizer.", "adam.", "target."} <= {f"{tensor.split('.')[0]}." for tensor in expected}
    for tensor, array in expected.items():
        assert resumed[tensor].tobytes() == array.tobytes(), tensor
    assert second.batches.reported == whole.batches.reported[-len(second.batches.reported) :]
    assert len(second.published) == 5 - cut // 5
    for published, its in zip(second.published, whole.published[-len(second.published) :]):
        for tensor, array in its.items():
            assert published[tensor].tobytes() == array.tobytes(), tensor
