"""Actor, replay and chief in one process, over real connections."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
import safetensors.numpy

from services.actor.__main__ import run as run_actor
from services.actor.chunk_sender import ChunkSender
from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.contract import AutoReset
from services.actor.loop import act
from services.actor.parameter_client import ParameterSet
from services.common.chunk import Chunk
from services.common.config.load import load
from services.common.config.run import RunConfig
from services.common.errors import UserError
from services.common.lifecycle import Lifecycle
from services.common.peer import Peer
from services.learner.done_updates import DoneUpdates
from services.learner.version_reservation import RESERVED_BLOCK
from services.replay.__main__ import table_settings
from services.replay.inspection import InspectOrder
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import experience_pb2, replay_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, SCHEMA, FakeClock, FakeEnv, FakeLog, FakePolicy, make_chunk

ADD = replay_pb2_grpc.add_ReplayServiceServicer_to_server


def _replay(settings: TableSettings, incarnation: int = 1) -> ReplayServicer:
    def make_table(schema: Any) -> Table:
        return Table(settings, schema, clock=time.monotonic)

    return ReplayServicer(
        run_id=RUN_ID, incarnation=incarnation, make_table=make_table, log=FakeLog(), fail=pytest.fail
    )


def _table(servicer: ReplayServicer) -> Table:
    assert servicer.table is not None
    return servicer.table


class OneSet:
    """One set of parameters, always at hand."""

    newest = ParameterSet(1, 0, "digest", {"policy.bias": np.full(1, 0.5, np.float32)})
    newest_known_version = 1
    is_draining = False

    def wait_for_newest(self, max_age_s: float) -> ParameterSet:
        return self.newest


@pytest.mark.parametrize("autoreset", [AutoReset.SAME_STEP, AutoReset.NEXT_STEP])
@pytest.mark.parametrize("steps", [11, 12, 13])
@pytest.mark.parametrize("drained_at", [0, 6, 7, 8])
def test_what_an_actor_does_arrives_as_exact_items(
    autoreset: AutoReset,
    steps: int,
    drained_at: int,
    serve: Serve,
    lifecycle: Lifecycle,
    log: FakeLog,
    clock: FakeClock,
    eventually: Eventually,
) -> None:
    servicer = _replay(TableSettings(capacity=256, n_step=2, discount=0.5, max_batch_size=64))
    parameters: Any = OneSet()

    def on_step(number: int) -> None:
        if number == drained_at:
            parameters.is_draining = True
        if number == steps:
            lifecycle.stop("test")

    def rest() -> None:
        """All that was made before is there, and each step of it starts an item."""
        eventually(lambda: sender.is_empty)
        steps = _table(servicer).info().steps
        assert (steps.acknowledged, steps.items, steps.unripe) == (produced, produced, 0)
        parameters.is_draining = False
        rests.append(produced)

    rests: List[int] = []
    env = FakeEnv(2, episode_steps=3, autoreset=autoreset, on_step=on_step)
    sender = ChunkSender(
        serve(ADD, servicer),
        peer=Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0"),
        schema=SCHEMA,
        buffer_chunks=4,
        drop_oldest=False,
        on_version=lambda _version: None,
        stopping=lifecycle.stopping,
        log=log,
    )
    thread = lifecycle.spawn("sender", sender.run)
    produced = 0

    def send(chunk: Chunk) -> None:
        nonlocal produced
        produced += chunk.num_valid
        sender.put(chunk)

    act(
        env,
        FakePolicy(),
        parameters,
        ChunkWriter(SCHEMA, num_lanes=2, chunk_steps=4, autoreset=autoreset, clock=clock),
        send=send,
        rest=rest,
        rng=np.random.default_rng(0),
        seed=1,
        max_policy_age_s=1.0,
        lifecycle=lifecycle,
    )
    sender.close()
    thread.join(10)
    lifecycle.check()
    table = _table(servicer)
    assert table.check_valid() is None
    counters = table.info().steps
    assert counters.acknowledged == sender.acknowledged_steps == produced
    # The running episodes were cut at the stop, with their last observation: no step is lost, each starts an item.
    assert (counters.items, counters.lost_tail, counters.unripe) == (produced, 0, 0)
    cut_short = _check_items(table)
    assert len(rests) == bool(drained_at)
    assert cut_short <= 2 + 2 * len(rests)  # one a lane and cut


def _check_items(table: Table) -> int:
    """Every item is what FakeEnv did; returns how many were cut short: their window ended with the life or a rest."""
    cut_short = 0
    for found in table.inspector.find(InspectOrder.OLDEST, 1000):
        item: Any = table.inspector.item(found.key)
        age = int(item.columns["observation.policy"][0])
        lane = int(item.columns["observation.policy"][1])
        to_come = [age + 1.0, age + 2.0][: 3 - age]  # FakeEnv rewards the age that a step leads to
        if item.discount == 0.5 and len(to_come) == 2:  # the last step before the cut
            to_come = to_come[:1]
            cut_short += 1
        n_step_return = sum(0.5**k * reward for k, reward in enumerate(to_come))
        assert item.n_step_return == n_step_return
        ends_in_termination = lane == 1 and age + len(to_come) == 3
        assert item.discount == (0.0 if ends_in_termination else 0.5 ** len(to_come))
        if item.discount:
            assert item.columns["next_observation.policy"].tolist() == [age + len(to_come), lane]
    return cut_short


# The chief


class Run:
    """A run's folder, its replay behind a server, and lives of its chief and of an actor."""

    def __init__(self, tmp_path: Path, serve: Serve, log: FakeLog, free_address: Callable[[], str]) -> None:
        self.tmp_path = tmp_path
        self.log = log
        self._free_address = free_address
        self.config = self._load()
        self.servicer = _replay(table_settings(self.config, self.config.replay.capacity_rows or 0))
        self.replay_address = serve(ADD, self.servicer)

    def _load(self, **changes: Any) -> RunConfig:
        values: Dict[str, Any] = {
            "run.name": RUN_ID,
            "run.folder": str(self.tmp_path),
            "env.factory": "tests.fakes:make_env",
            "env.lanes": 2,
            "td3.hidden_sizes": "[8]",
            "replay.capacity": 2000,
            "replay.min_size_to_sample": 16,
            "replay.addresses": getattr(self, "replay_address", "127.0.0.1:1"),
            "learner.address": self._free_address(),
            "learner.metrics_port": 0,
            "learner.batch_size": 8,
            "learner.max_updates": 50,
            "learner.publish_period": 10,
            "learner.checkpoint_period_s": 0.05,
            "actor.count": 1,
            "actor.index": 0,
            "actor.chunk_steps": 4,
            "actor.poll_period_s": 0.1,
            **changes,
        }
        return load(None, [f"--{key}={value}" for key, value in values.items()]).config

    def fill(self) -> None:
        """Experience without an actor."""
        self.servicer._table = self.servicer._make_table(SCHEMA)
        _table(self.servicer).insert("actor-0", 1, make_chunk(64, 2), max_wait_s=0)

    def train(self, life: Any = None, **changes: Any) -> Any:
        """One life of the chief, to its end; returns its newest checkpoint."""
        from services.learner.checkpoint import CheckpointFolder
        from services.learner.chief import Chief

        self.config = self._load(**changes)
        with Chief(self.config, life or Lifecycle(), self.log) as chief:
            chief.train()
            chief.say_farewell()
        return CheckpointFolder(self.tmp_path / RUN_ID / "checkpoints", self.log).load_newest()


@pytest.fixture
def run(tmp_path: Path, serve: Serve, log: FakeLog, free_address: Callable[[], str]) -> Run:
    pytest.importorskip("torch")
    return Run(tmp_path, serve, log, free_address)


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
    table = _table(run.servicer)
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
    _table(run.servicer).insert("actor-0", 1, make_chunk(64, 2, sequence=1, first_step=64, seed=3), max_wait_s=0)
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
    _table(run.servicer).insert("actor-0", 1, chunk, max_wait_s=0)
    checkpoint = run.train()
    assert checkpoint.progress.updates == 50
    assert all(np.isfinite(array).all() for array in checkpoint.state.values())
    files = sorted((run.tmp_path / RUN_ID / "non_finite").iterdir())
    stopped = load_stopped_batch(files[0])
    assert np.abs(stopped.batch.n_step_return[stopped.suspects]).min() > 1e37
    warned = [values for level, event, values in run.log.lines if level == "warning" and "not finite" in event]
    assert warned
    keys = {key for values in warned for key in values["keys"]}
    table = _table(run.servicer)
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


def test_an_actor_and_a_chief_train_together_and_end_together(
    run: Run, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.learner.replay_client import ReplayClient

    take = ReplayClient.next
    drawn: List[Any] = []

    def next_batch(client: ReplayClient) -> Any:
        if len(drawn) == 40:  # of 50: the others wait for a chunk of a version that came on the way
            eventually(lambda: _table(run.servicer).info().actors[0].last_policy_version > 1)
        drawn.append(take(client))
        return drawn[-1]

    monkeypatch.setattr(ReplayClient, "next", next_batch)
    life = Lifecycle()
    log = FakeLog()
    failures: Any = []
    run.config = run._load()

    def act_until_told() -> None:
        try:
            run_actor(run.config, life, log)
        except BaseException as error:  # noqa: BLE001 (the test's thread must not swallow it)
            failures.append(error)

    actor = threading.Thread(target=act_until_told)
    actor.start()
    try:
        checkpoint = run.train(**{"learner.address": run.config.learner.address})
        actor.join(10)
    finally:
        life.stop("the test is over")
        actor.join(10)
    assert failures == []
    assert not actor.is_alive()
    assert life.reason == "training is finished"
    assert checkpoint.progress.updates == 50
    table = _table(run.servicer)
    assert table.check_valid() is None
    info = table.info()
    (values,) = [values for _, event, values in log.lines if event == "steps"]
    assert values == {"acknowledged": info.steps.acknowledged, "dropped": 0}
    (counters,) = [its.counters for its in info.actors]
    assert counters.produced_steps == info.steps.acknowledged
    assert info.actors[0].last_policy_version > 1  # the actor took newer versions on the way
