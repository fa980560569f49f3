"""Actor, replay and chief in one process, over real connections."""

from __future__ import annotations

import threading
from typing import Any, List

import numpy as np
import pytest

from services.actor.__main__ import run as run_actor
from services.actor.chunk_sender import ChunkSender
from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.contract import AutoReset
from services.actor.loop import act
from services.actor.parameter_client import ParameterSet
from services.common.chunk import Chunk
from services.common.lifecycle import Lifecycle
from services.common.peer import Peer
from services.replay.inspection import InspectOrder
from services.replay.table import Table, TableSettings
from shoal.v1 import experience_pb2
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, SCHEMA, FakeClock, FakeEnv, FakeLog, FakePolicy
from tests.training_run import ADD, Run, replay_servicer, table_of


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
    servicer = replay_servicer(TableSettings(capacity=256, n_step=2, discount=0.5, max_batch_size=64))
    parameters: Any = OneSet()

    def on_step(number: int) -> None:
        if number == drained_at:
            parameters.is_draining = True
        if number == steps:
            lifecycle.stop("test")

    def rest() -> None:
        """All that was made before is there, and each step of it starts an item."""
        eventually(lambda: sender.is_empty)
        steps = table_of(servicer).info().steps
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
    table = table_of(servicer)
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


def test_an_actor_and_a_chief_train_together_and_end_together(
    run: Run, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.learner.replay_client import ReplayClient

    take = ReplayClient.next
    drawn: List[Any] = []

    def next_batch(client: ReplayClient) -> Any:
        if len(drawn) == 40:  # of 50: the others wait for a chunk of a version that came on the way
            eventually(lambda: table_of(run.servicer).info().actors[0].last_policy_version > 1)
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
    table = table_of(run.servicer)
    assert table.check_valid() is None
    info = table.info()
    (values,) = [values for _, event, values in log.lines if event == "steps"]
    assert values == {"acknowledged": info.steps.acknowledged, "dropped": 0}
    (counters,) = [its.counters for its in info.actors]
    assert counters.produced_steps == info.steps.acknowledged
    assert info.actors[0].last_policy_version > 1  # the actor took newer versions on the way
