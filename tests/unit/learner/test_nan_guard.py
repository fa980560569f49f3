from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from services.agent.algorithm import NonFiniteUpdate
from services.agent.registry import learner_class
from services.common.batch import Batch
from services.common.config.algorithms import DqnSettings, Td3Settings
from services.common.errors import EXIT_CRASH
from services.common.metrics import Metrics
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.learner.batch_dump import BatchDump, load_stopped_batch
from services.learner.drawn_batch import DrawnBatch
from services.learner.nan_guard import ABSURD, NanGuard, TooManyNonFiniteUpdates, suspects
from tests.fakes import FakeLog

pytest.importorskip("torch")

OBSERVATION = (TensorSpec("camera", "uint8", (2,)), TensorSpec("policy", "float32", (3,)))
CASES: Dict[str, Tuple[Schema, Any]] = {
    "td3": (Schema(OBSERVATION, ActionSpec((-1.0,), (1.0,))), Td3Settings(hidden_sizes=(8,), policy_period=1)),
    "dqn": (Schema(OBSERVATION, ActionSpec(num_actions=3)), DqnSettings(hidden_sizes=(8,), target_update_period=2)),
}
each_algorithm = pytest.mark.parametrize("name", sorted(CASES))
# dqn's loss takes an error of any finite size: there is a test of that.
POISONS = [*itertools.product(sorted(CASES), (float("nan"), float("inf"), -float("inf"))), ("td3", 1e38)]
ONES = np.ones(4, np.float32)


def _batch(schema: Schema, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    discrete = schema.action.is_discrete

    def observation() -> Dict[str, Any]:
        return {
            "camera": rng.integers(0, 255, (4, 2)).astype(np.uint8),
            "policy": rng.standard_normal((4, 3)).astype(np.float32),
        }

    return Batch(
        keys=10 * seed + np.arange(4),
        probability=np.full(4, 0.25),
        priority=np.ones(4),
        times_sampled=np.ones(4, np.int64),
        observation=observation(),
        action=rng.integers(3, size=4) if discrete else rng.uniform(-1, 1, (4, 1)).astype(np.float32),
        n_step_return=rng.standard_normal(4).astype(np.float32),
        discount=np.full(4, 0.9, np.float32),
        next_observation=observation(),
        policy_version=np.zeros(4, np.int64),
        num_items=4,
    )


class Parts:
    def __init__(self, name: str, tmp_path: Path, **options: Any) -> None:
        self.schema, settings = CASES[name]
        self.learner = learner_class(name)(self.schema, settings, seed=0, **options)
        self.log, self.metrics = FakeLog(), Metrics("learner", "run-a")
        self.reported: List[Tuple[List[int], List[float]]] = []
        self.counts: List[int] = []
        self.folder = tmp_path / "non_finite"
        self.guard = NanGuard(
            self.learner,
            BatchDump(self.folder, self.log, max_files=20),  # type: ignore[arg-type]
            self.metrics,
            self.log,  # type: ignore[arg-type]
            max_in_row=3,
            report=self._note,
            on_stopped=self.counts.append,
            chunks_of=lambda table_id, keys: [f"actor-0/00000000000000ff/{table_id}.{key}" for key in keys],
        )

    def _note(self, drawn: DrawnBatch, td_error: Any) -> None:
        assert np.isfinite(td_error).all()
        assert drawn.table_id == 77
        self.reported.append((drawn.batch.keys.tolist(), td_error.tolist()))

    def update(self, batch: Batch) -> Any:
        return self.guard.update(DrawnBatch(batch, 77), ONES[: len(batch)])


def _poisoned(schema: Schema, where: str, value: float, seed: int = 5) -> Batch:
    batch = _batch(schema, seed)
    column = getattr(batch, where)
    if isinstance(column, dict):
        column["policy"][1, 2] = value
    else:
        column[1] = value
    return batch


@pytest.mark.parametrize(("name", "value"), POISONS)
@pytest.mark.parametrize("where", ["observation", "next_observation", "n_step_return", "discount"])
def test_a_poisoned_batch_changes_no_bit_and_its_sound_items_are_trained_on(
    name: str, where: str, value: float, tmp_path: Path
) -> None:
    parts = Parts(name, tmp_path)
    for seed in range(3):
        assert parts.update(_batch(parts.schema, seed)) is not None
    before = parts.learner.state()
    poisoned = _poisoned(parts.schema, where, value)
    with pytest.raises(NonFiniteUpdate):
        parts.learner.update(poisoned, ONES)
    after = parts.learner.state()
    assert set(after) == set(before)
    for tensor, array in before.items():
        if tensor != "generator":
            assert array.tobytes() == after[tensor].tobytes(), tensor
    update = parts.update(poisoned)
    assert len(update.td_error) == 3
    # The sick item is hardly drawn again.
    assert parts.reported[3:] == [([51], [0.0]), ([50, 52, 53], update.td_error.tolist())]
    assert parts.learner.updates == 4


@each_algorithm
def test_what_is_trained_on_is_the_batch_without_the_sick_items(name: str, tmp_path: Path) -> None:
    parts, plain = (Parts(name, tmp_path / label) for label in ("a", "b"))
    if name == "td3":  # whose noise depends on how many are drawn, and was drawn for the first attempt already
        for each in (parts, plain):
            each.learner._settings = each.learner._settings.model_copy(update={"smoothing_stddev": 0.0})
    parts.update(_poisoned(parts.schema, "n_step_return", float("nan")))
    plain.update(_batch(parts.schema, 5).at(np.array([0, 2, 3])))
    for tensor, array in plain.learner.state().items():
        if tensor != "generator":
            np.testing.assert_array_equal(parts.learner.state()[tensor], array, err_msg=tensor)


@each_algorithm
def test_sound_items_without_weight_are_not_trained_on(name: str, tmp_path: Path) -> None:
    parts = Parts(name, tmp_path)
    weights = np.array([0.0, 1.0, 0.0, 0.0], np.float32)  # the others are too old
    poisoned = _poisoned(parts.schema, "n_step_return", float("nan"))
    assert parts.guard.update(DrawnBatch(poisoned, 77), weights) is None
    assert parts.learner.updates == 0
    assert parts.reported == [([51], [0.0])]


def test_a_robust_loss_takes_an_error_of_any_finite_size(tmp_path: Path) -> None:
    parts = Parts("dqn", tmp_path)
    assert parts.update(_poisoned(parts.schema, "n_step_return", 1e38)) is not None
    assert all(np.isfinite(array).all() for array in parts.learner.state().values())
    assert parts.reported[0][1][1] == pytest.approx(1e38)


@each_algorithm
def test_a_stopped_batch_is_kept_counted_and_told(name: str, tmp_path: Path) -> None:
    parts = Parts(name, tmp_path)
    parts.update(_batch(parts.schema))
    parts.update(_poisoned(parts.schema, "n_step_return", float("inf")))
    (file,) = parts.folder.iterdir()
    stopped = load_stopped_batch(file)
    assert stopped.updates == 1
    assert "not finite" in stopped.reason
    assert stopped.table_id == 77
    assert stopped.suspects.tolist() == [False, True, False, False]
    assert np.isinf(stopped.batch.n_step_return[1])
    assert parts.counts == [1]
    counted = {s.name: s.value for family in parts.metrics.registry.collect() for s in family.samples}
    assert counted["shoal_learner_non_finite_updates_total"] == 1
    (line,) = [values for level, _, values in parts.log.lines if level == "warning"]
    assert (line["keys"], line["suspects"], line["updates"]) == ([51], 1, 1)


@each_algorithm
def test_training_ends_after_too_many_in_a_row(name: str, tmp_path: Path) -> None:
    parts = Parts(name, tmp_path)
    sick = _batch(parts.schema, 5)
    sick.discount[:] = np.nan  # of all items: nothing is left to train on
    for _ in range(2):  # as often as it is not in a row, it goes on
        assert parts.update(sick) is None
        assert parts.update(sick) is None
        assert parts.update(_poisoned(parts.schema, "discount", np.nan)) is not None
    parts.update(sick)
    parts.update(sick)
    with pytest.raises(TooManyNonFiniteUpdates, match=r"3 updates in a row were not finite") as caught:
        parts.update(sick)
    assert caught.value.exit_code == EXIT_CRASH  # supervision starts it again, from its last checkpoint
    assert "\n" not in str(caught.value)
    assert parts.guard.stopped == 9


def test_what_a_computation_of_gradients_stopped_counts_too(tmp_path: Path) -> None:
    parts = Parts("dqn", tmp_path)
    drawn = DrawnBatch(_poisoned(parts.schema, "n_step_return", np.inf), 77)
    for _ in range(2):
        parts.guard.note_stopped(drawn, ONES, "a helper said so", 3)
    assert parts.reported == [([51], [0.0])] * 2
    with pytest.raises(TooManyNonFiniteUpdates, match="the last because a helper said so"):
        parts.guard.note_stopped(drawn, ONES, "a helper said so", 3)
    assert len(list(parts.folder.iterdir())) == 3


def test_parameters_that_have_diverged_blame_no_item(tmp_path: Path) -> None:
    parts = Parts("td3", tmp_path)
    parts.learner._critics.flat.fill_(1e30)
    assert parts.update(_batch(parts.schema)) is None
    assert parts.reported == []
    (line,) = [values for level, _, values in parts.log.lines if level == "warning"]
    assert line["keys"] == []


def test_td_errors_that_are_not_finite_never_leave(tmp_path: Path) -> None:
    """Even of a learner that does not look at them itself."""
    parts = Parts("td3", tmp_path)
    real = parts.learner.update

    def blind(batch: Batch, weights: Any) -> Any:
        update = real(batch, weights)
        update.td_error[2] = np.inf
        return update

    parts.learner.update = blind
    assert parts.update(_batch(parts.schema)) is None
    assert parts.reported == []
    assert parts.counts == [1]


def test_suspects_are_items_with_values_that_nothing_physical_has() -> None:
    schema = CASES["td3"][0]
    batch = _batch(schema)
    batch.observation["camera"][:] = 255
    assert not suspects(batch).any()
    batch.action[0] = np.nan
    batch.next_observation["policy"][3, 0] = -2 * ABSURD
    batch.n_step_return[2] = ABSURD
    assert suspects(batch).tolist() == [True, False, False, True]


@each_algorithm
def test_the_chunks_of_sick_items_are_named_in_the_log_and_in_the_file(name: str, tmp_path: Path) -> None:
    parts = Parts(name, tmp_path)
    parts.update(_poisoned(parts.schema, "n_step_return", float("nan")))
    (line,) = (values for level, _, values in parts.log.lines if level == "warning")
    assert (line["keys"], line["chunk"]) == ([51], "actor-0/00000000000000ff/77.51")
    (file,) = parts.folder.glob("*.safetensors")
    assert load_stopped_batch(file).chunks == ("actor-0/00000000000000ff/77.51",)
