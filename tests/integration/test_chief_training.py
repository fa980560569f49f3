"""Lives of a chief with a real replay: what it ends with, resumes from, survives and refuses."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any, Callable, List

import numpy as np
import pytest
import safetensors.numpy

from services.common.errors import UserError
from services.common.lifecycle import Lifecycle
from services.learner.done_updates import DoneUpdates
from services.learner.version_reservation import RESERVED_BLOCK
from services.replay.__main__ import table_settings
from services.replay.inspection import InspectOrder
from services.replay.table import Table
from tests.conftest import Eventually
from tests.fakes import RUN_ID, SCHEMA, make_chunk
from tests.training_run import Run, table_of


def test_training_ends_with_a_checkpoint_and_a_last_version(run: Run) -> None:
    run.fill()
    checkpoint = run.train()
    assert checkpoint.progress.updates == 50
    assert checkpoint.progress.is_finished
    assert checkpoint.progress.env_steps == 128
    assert checkpoint.algorithm == "td3"
    assert checkpoint.schema == SCHEMA
    # A version before the first update, one each period, and the last.
    history = [record[:2] for record in checkpoint.history]
    assert history == [(1, 0), (2, 10), (3, 20), (4, 30), (5, 40), (6, 50), (7, 50)]
    ages = [record.age_s for record in checkpoint.history]
    assert ages == sorted(ages, reverse=True)
    table = table_of(run.servicer)
    assert table.newest_version > 0
    assert any(item.priority != 1.0 for item in table.inspector.find(InspectOrder.HIGHEST_PRIORITY, 5))


def test_a_resumed_chief_goes_on_where_it_was_with_versions_of_its_own(run: Run) -> None:
    run.fill()
    first = run.train()
    second = run.train(**{"learner.max_updates": 70})
    assert second.progress.updates == 70
    assert second.progress.training_seconds > first.progress.training_seconds
    for before, after in zip(first.history, second.history):
        assert (after.version, after.updates) == (before.version, before.updates)
        assert after.published_at_s == pytest.approx(before.published_at_s, abs=0.01)
        assert after.age_s > before.age_s
    mine = second.history[len(first.history) :]
    assert mine[0][:2] == (RESERVED_BLOCK + 1, 50)
    assert mine[-1].updates == 70
    assert "resumed" in run.log.events("info")
    assert set(second.state) == set(first.state)
    assert any((second.state[name] != first.state[name]).any() for name in first.state)


def test_a_chief_that_was_killed_says_how_many_updates_are_lost(run: Run) -> None:
    def lost() -> List[int]:
        return [values["lost_updates"] for _, event, values in run.log.lines if event == "resumed"]

    run.fill()
    run.train()
    done = DoneUpdates(run.tmp_path / RUN_ID / "updates_done")
    assert done.updates == 50
    done.note(57)  # of a life that was killed before its next checkpoint
    run.train(**{"learner.max_updates": 60})
    run.train(**{"learner.max_updates": 70})
    assert lost() == [7, 0]
    assert done.updates == 70
    for file in (run.tmp_path / RUN_ID / "checkpoints").iterdir():
        file.unlink()
    run.train(**{"learner.max_updates": 10})
    (values,) = [values for level, _, values in run.log.lines if level == "warning" and "lost_updates" in values]
    assert values["lost_updates"] == 70


def test_a_finished_run_trains_no_further(run: Run) -> None:
    run.fill()
    first = run.train()
    again = run.train()
    assert again.progress.updates == 50
    for name, tensor in first.state.items():
        np.testing.assert_array_equal(again.state[name], tensor, err_msg=name)


def _train_until_stopped(
    run: Run,
    life: Lifecycle,
    eventually: Eventually,
    before_stop: Callable[[], None] = lambda: None,
    **changes: Any,
) -> Any:
    """Train without end, and stop when there is a first checkpoint; returns the newest."""
    checkpoints = run.tmp_path / RUN_ID / "checkpoints"

    def stop_soon() -> None:
        eventually(lambda: list(checkpoints.glob("*.safetensors")))
        before_stop()
        life.stop("SIGTERM")

    stopper = threading.Thread(target=stop_soon)
    stopper.start()
    checkpoint = run.train(life, **{"learner.max_updates": 10**6, **changes})
    stopper.join(10)
    return checkpoint


def test_a_stop_in_the_middle_keeps_what_was_learned(run: Run, eventually: Eventually) -> None:
    run.fill()
    checkpoint = _train_until_stopped(run, Lifecycle(), eventually)
    updates = checkpoint.progress.updates
    assert 0 < updates < 10**6
    assert not checkpoint.progress.is_finished
    assert checkpoint.history[-1][1] == updates
    assert "training is finished" not in run.log.events()
    resumed = run.train(**{"learner.max_updates": updates + 5})
    assert resumed.progress.updates == updates + 5


def test_a_stop_in_which_the_replay_refuses_all_keeps_what_was_learned(
    run: Run, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.learner.replay_client import ReplayClient

    clients: List[ReplayClient] = []
    start = ReplayClient.start

    def keep(client: ReplayClient, schema: Any) -> None:
        clients.append(client)
        start(client, schema)

    def end_draws() -> None:
        (client,) = clients
        client._ended.set()  # no draw will carry the last priorities
        for thread in life._threads:
            if thread.name.startswith("sampler-"):
                thread.join(10)
                assert not thread.is_alive()
        eventually(lambda: len(client._priorities))  # of what the last draw brought

    monkeypatch.setattr(ReplayClient, "start", keep)
    run.fill()
    life = Lifecycle()
    life.on_stop(lambda: setattr(run.servicer, "_run_id", "another"))
    checkpoint = _train_until_stopped(run, life, eventually, end_draws, **{"learner.checkpoint_period_s": 1})
    # The question for the steps may be under way.
    warnings = [event for event in run.log.events("warning") if "refused the last call" not in event]
    assert warnings[-1] == "the last priorities were not delivered"
    (updates,) = [values["updates"] for _, event, values in run.log.lines if event == "training stops early"]
    assert checkpoint.progress.updates == updates  # it is the one of the end


def test_a_chief_whose_checkpointer_fails_ends_with_its_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from services.learner.checkpoint import CheckpointFolder

    def fail(_self: Any, _checkpoint: Any) -> None:
        raise UserError("the disk is full")

    run.fill()
    monkeypatch.setattr(CheckpointFolder, "save", fail)
    with pytest.raises(UserError, match="the disk is full"):
        run.train(**{"learner.max_updates": 10**6})


def test_statistics_of_observations_are_frozen_into_each_version_and_stay_so(run: Run) -> None:
    settings = replace(table_settings(run.config, 2000), with_moments=True)
    run.servicer._make_table = lambda schema: Table(settings, schema, clock=time.monotonic)
    run.fill()
    changes = {"normalization.observations": True, "normalization.warmup_steps": 100}
    first = run.train(**changes)
    rows = make_chunk(64, 2).observation["policy"].reshape(-1, 2)
    np.testing.assert_allclose(first.state["normalizer.policy.mean"], rows.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(first.state["normalizer.policy.std"], rows.std(axis=0), rtol=1e-6)
    assert first.state["normalizer.steps"] == 128
    assert "normalizer.camera.mean" not in first.state
    # A version that changes nothing before there are any, one with them before the first update, one each period.
    assert [(r.version, r.updates) for r in first.history[:3]] == [(1, 0), (2, 0), (3, 10)]
    assert "statistics of observations are frozen" in run.log.events("info")
    table_of(run.servicer).insert("actor-0", 1, make_chunk(64, 2, sequence=1, first_step=64, seed=3), max_wait_s=0)
    second = run.train(**changes, **{"learner.max_updates": 70})
    for name in ("normalizer.policy.mean", "normalizer.policy.std", "normalizer.steps"):
        assert second.state[name].tobytes() == first.state[name].tobytes()


def test_a_replay_without_moments_is_told(run: Run) -> None:
    run.fill()
    with pytest.raises(UserError, match="the replay keeps no moments of observations"):
        run.train(**{"normalization.observations": True})


def test_a_value_that_is_too_large_is_kept_out_and_training_goes_on(run: Run) -> None:
    from services.learner.batch_dump import load_stopped_batch

    run.servicer._table = run.servicer._make_table(SCHEMA)
    chunk = make_chunk(64, 2)
    chunk.reward[10, 1] = 1e38  # finite, so that it is no case for the quarantine; its square is not
    table_of(run.servicer).insert("actor-0", 1, chunk, max_wait_s=0)
    checkpoint = run.train()
    assert checkpoint.progress.updates == 50
    assert all(np.isfinite(array).all() for array in checkpoint.state.values())
    files = sorted((run.tmp_path / RUN_ID / "non_finite").iterdir())
    stopped = load_stopped_batch(files[0])
    assert np.abs(stopped.batch.n_step_return[stopped.suspects]).min() > 1e37
    warned = [values for level, event, values in run.log.lines if level == "warning" and "not finite" in event]
    assert warned
    keys = {key for values in warned for key in values["keys"]}
    table = table_of(run.servicer)
    assert keys <= {2 * t + 1 for t in (8, 9, 10)}  # the three steps whose window holds it
    for key in keys:
        item = table.inspector.item(key)
        assert item is not None
        assert item.priority < 1e-5


def test_a_run_of_an_earlier_shoal_is_resumed(run: Run) -> None:
    """Its checkpoint has no generators of numpy, no statistics and no average."""
    from services.common.sealed import seal, unseal

    run.fill()
    run.train()
    newest = sorted((run.tmp_path / RUN_ID / "checkpoints").iterdir())[-1]
    state, facts = unseal(newest)
    assert set(facts) == {"algorithm", "schema", "progress", "history", "acknowledged", "generators"}
    del facts["generators"]
    newest.write_bytes(seal(state, facts))
    resumed = run.train(**{"learner.max_updates": 60})
    assert resumed.progress.updates == 60
    assert set(resumed.state) == set(state)


def test_the_checkpoint_of_the_best_version_is_kept(run: Run) -> None:
    from services.common.run_folder import Evaluation, RunFolder

    run.fill()
    run.train()
    folder = RunFolder(run.tmp_path / RUN_ID)
    folder.save_best(safetensors.numpy.save({"a": np.zeros(1)}), Evaluation(6, 50, 10, 1.0, 1.0, 5.0))
    for updates in (55, 60, 65, 70):
        run.train(**{"learner.max_updates": updates, "learner.checkpoints_kept": 2})
    kept = [int(file.stem) for file in sorted(folder.checkpoints.iterdir())]
    assert kept[0] == 50
    assert kept[-1] == 70
    assert len(kept) == 3


def test_another_algorithm_or_environment_is_refused(run: Run) -> None:
    run.fill()
    run.train()
    with pytest.raises(UserError, match="was trained by td3, the run file asks for dqn"):
        run.train(**{"algorithm.name": "dqn"})
    with pytest.raises(UserError, match=r"does not fit the run file: .*hidden_sizes.*; choose another run\.name"):
        run.train(**{"td3.hidden_sizes": "[9]", "learner.max_updates": 60})
    other = replace(SCHEMA, observation=SCHEMA.observation[:1])
    run.servicer._table = run.servicer._make_table(other)
    with pytest.raises(UserError, match="does not fit the actors' environment: observation 'policy' is missing there"):
        run.train(**{"learner.max_updates": 60})
