"""An actor whose replay, chief or environment fails, with real servers: what it does meanwhile, says, and loses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import grpc
import numpy as np
import pytest
import safetensors.numpy

from services.actor import chunk_sender
from services.actor.actor import Actor
from services.actor.evaluator.__main__ import run as evaluate
from services.agent.networks import initial_parameters
from services.common.chunk import Chunk
from services.common.codec import decode_chunk
from services.common.config.load import load
from services.common.errors import EXIT_USER, UserError
from services.common.lifecycle import Lifecycle
from services.common.rpc import Server
from services.common.run_folder import RunFolder
from services.learner.parameter_service import ParameterServicer, Readers, Status, add_to_server
from services.learner.parameter_store import ACT, ParameterStore
from services.learner.version_reservation import VersionReservation
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import parameters_pb2, parameters_pb2_grpc, replay_pb2_grpc
from tests import failing_envs
from tests.conftest import Eventually
from tests.fakes import RUN_ID, FakeChief, FakeLog

ADD_REPLAY = replay_pb2_grpc.add_ReplayServiceServicer_to_server
ADD_CHIEF = parameters_pb2_grpc.add_ParameterServiceServicer_to_server  # a fake, whose answers are messages
LANES, CHUNK_STEPS = 4, 5


def _parameters() -> Dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        **initial_parameters("policy", (6, 8, 1), rng),
        **initial_parameters("critics", (7, 8, 1), rng, stack=2),
    }


class Replay(ReplayServicer):
    """The real one; keeps the chunks that it applied."""

    def __init__(self) -> None:
        settings = TableSettings(capacity=20_000, n_step=3, max_batch_size=64)
        super().__init__(
            run_id=RUN_ID,
            incarnation=1,
            make_table=lambda schema: Table(settings, schema, clock=time.monotonic),
            log=FakeLog(),
            fail=pytest.fail,
        )
        self.chunks: List[Chunk] = []
        self.knows_tokens = True
        self.num_refused = 0

    def Insert(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not self.knows_tokens:
            self.num_refused += 1
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "this service does not know the caller's token")
        response = super().Insert(request, context)
        if response.status == 1 and request.HasField("chunk"):
            self.chunks.append(decode_chunk(request.chunk))
        return response

    def info(self) -> Any:
        assert self.table is not None
        assert self.table.check_valid() is None
        return self.table.info()


class Peers:
    """A replay and a chief, which can go away and come back at their addresses."""

    def __init__(self, free_address: Callable[[], str]) -> None:
        self.replay, self.chief, self.add_chief = Replay(), FakeChief(), ADD_CHIEF
        self.chief.version, self.chief.data = 1, safetensors.numpy.save(_parameters())
        self.addresses = {"replay": free_address(), "chief": free_address()}
        self._servers: Dict[str, Server] = {}

    def come(self, *names: str) -> None:
        for name in names:
            server = Server(self.addresses[name], max_workers=8, option_name="test.address")
            server.add(*((ADD_REPLAY, self.replay) if name == "replay" else (self.add_chief, self.chief)))
            server.start()
            self._servers[name] = server

    def go(self, *names: str) -> None:
        for name in names:
            self._servers.pop(name).stop(0)


@pytest.fixture
def peers(free_address: Callable[[], str]) -> Iterator[Peers]:
    made = Peers(free_address)
    made.come("replay", "chief")
    yield made
    made.go(*made._servers)


def _flags(peers: Peers, **changes: Any) -> List[str]:
    values: Dict[str, Any] = {
        "run.name": RUN_ID,
        "env.factory": "tests.failing_envs:make_paced",
        "env.lanes": LANES,
        "td3.hidden_sizes": "[8]",
        "replay.addresses": peers.addresses["replay"],
        "learner.address": peers.addresses["chief"],
        "actor.index": 0,
        "actor.count": 1,
        "actor.chunk_steps": CHUNK_STEPS,
        "actor.buffer_chunks": 2,
        "actor.poll_period_s": 0.05,
        "actor.max_policy_age_s": 30,
        **changes,
    }
    return [f"--{key}={value}" for key, value in values.items() if value is not None]


class Acting:
    """An actor on a thread, as its `__main__` runs it."""

    def __init__(self, peers: Peers, **changes: Any) -> None:
        self.life, self.log = Lifecycle(), FakeLog()
        self.actor = Actor(load(None, _flags(peers, **changes)).config, self.life, self.log)
        self.failure: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            try:
                self.actor.run()
            finally:
                self.actor.stop()
        except BaseException as error:  # noqa: BLE001 (the test's thread must not swallow it)
            self.failure = error

    def metric(self, name: str) -> Any:
        return self.actor._metrics.registry.get_sample_value(f"shoal_actor_{name}", {"run": RUN_ID})

    def produced(self) -> int:
        return int(self.metric("produced_steps_total"))

    def finish(self) -> None:
        self.life.stop("the test is over")
        self._thread.join(15)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def make_acting(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Acting]]:
    # What is delivered in a stop and what is dropped does not depend on how busy the machine is.
    monkeypatch.setattr(chunk_sender, "FLUSH_BUDGET_S", 12.0)
    made: List[Acting] = []

    def make(**changes: Any) -> Acting:
        made.append(Acting(peers, **changes))
        return made[-1]

    yield make
    failing_envs.GO_ON.set()
    for acting in made:
        acting.life.stop("the test is over")
        acting._thread.join(15)


def _stands_still(count: Callable[[], int], seconds: float = 0.4) -> bool:
    before = count()
    time.sleep(seconds)
    return count() == before


def _while_alive(process: subprocess.Popen[str], holds: Callable[[], Any]) -> None:
    """Wait until something holds, for as long as the process needs to start on a busy machine."""
    while not holds():
        assert process.poll() is None, "the process has ended"
        time.sleep(0.005)


def test_a_replay_that_is_away_holds_the_actor_and_costs_nothing(
    peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    acting = make_acting()
    eventually(lambda: len(peers.replay.chunks) > 5)
    peers.go("replay")
    eventually(lambda: acting.metric("buffer_depth_chunks") == 2)
    eventually(lambda: _stands_still(acting.produced))
    assert acting.actor.parameters._download._waiting_for().startswith("waiting for the replay at 127.0.0.1:")
    peers.come("replay")
    before = acting.produced()
    eventually(lambda: acting.produced() > before + 100)
    acting.finish()
    info = peers.replay.info()
    assert info.steps.acknowledged == acting.produced()
    assert (acting.metric("dropped_buffer_full_steps_total"), acting.metric("dropped_stopped_steps_total")) == (0, 0)
    assert info.steps.lost_tail == 0


def test_a_replay_that_is_away_costs_the_oldest_chunks_which_are_counted(
    peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    acting = make_acting(**{"actor.on_full": "drop_oldest"})
    eventually(lambda: len(peers.replay.chunks) > 5)
    peers.go("replay")
    eventually(lambda: acting.metric("dropped_buffer_full_steps_total") > 5 * LANES * CHUNK_STEPS)
    before = acting.produced()
    eventually(lambda: acting.produced() > before)
    peers.come("replay")
    known = len(peers.replay.chunks)
    eventually(lambda: len(peers.replay.chunks) > known + 5)
    acting.finish()
    info = peers.replay.info()
    dropped = acting.metric("dropped_buffer_full_steps_total") + acting.metric("dropped_stopped_steps_total")
    assert acting.produced() == info.steps.acknowledged + dropped
    (counters,) = [its.counters for its in info.actors]
    lost = sum(counters.dropped_steps.values())
    assert counters.dropped_steps["buffer_full"] > 0
    assert counters.produced_steps == info.steps.acknowledged + lost + counters.buffered_steps
    assert info.steps.lost_tail % LANES == 0  # in each lane the last step before a gap, unless it ended an episode


def test_a_chief_that_is_away_parks_the_actor_when_its_parameters_are_too_old(
    peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    acting = make_acting(**{"actor.max_policy_age_s": 0.5})
    eventually(lambda: len(peers.replay.chunks) > 5)
    parked = "parked: the parameters are too old"
    peers.go("chief")
    eventually(lambda: acting.actor.parameters.waiting_for)  # no answer of the chief is on its way any more
    eventually(lambda: acting.actor.parameters.parked_for)
    # It may have parked and gone on before, on a machine that stalls: the last word counts.
    eventually(lambda: [e for e in acting.log.events() if e in (parked, "acting goes on")][-1:] == [parked])
    assert _stands_still(acting.produced)
    assert acting.metric("policy_age_seconds") > 0.5
    # The replay, which is there, is told: people ask it while the chief is away.
    eventually(lambda: peers.replay.info().actors[0].waiting_for.startswith("parked: the chief has not confirmed"))
    peers.come("chief")
    before = acting.produced()
    eventually(lambda: acting.produced() > before + 100)
    assert "acting goes on" in acting.log.events("info")
    eventually(lambda: peers.replay.info().actors[0].waiting_for == "")
    acting.finish()
    assert peers.replay.info().steps.acknowledged == acting.produced()


def test_the_actor_outlives_both(peers: Peers, make_acting: Any, eventually: Eventually) -> None:
    acting = make_acting()
    eventually(lambda: len(peers.replay.chunks) > 5)
    peers.go("replay", "chief")
    eventually(lambda: acting.metric("buffer_depth_chunks") == 2)
    eventually(lambda: _stands_still(acting.produced))
    peers.come("chief", "replay")
    before = acting.produced()
    eventually(lambda: acting.produced() > before + 100)
    acting.finish()
    assert peers.replay.info().steps.acknowledged == acting.produced()


def test_lane_groups_fill_one_replay_and_all_adds_up(peers: Peers, make_acting: Any, eventually: Eventually) -> None:
    acting = make_acting(**{"actor.lane_groups": 2})
    eventually(lambda: acting.produced() > 400)
    acting.finish()
    info = peers.replay.info()
    by_group = {group: [c for c in peers.replay.chunks if c.lane_group == group and c.num_steps] for group in (0, 1)}
    for chunks in by_group.values():
        assert all(chunk.num_lanes == LANES // 2 for chunk in chunks)
        firsts = [chunk.first_step for chunk in chunks]
        assert firsts == np.cumsum([0] + [chunk.num_steps for chunk in chunks])[:-1].tolist()
        assert chunks[-1].final.cut.any()  # each group's running episodes are cut at the stop
    produced = sum(chunk.num_valid for chunks in by_group.values() for chunk in chunks)
    assert info.steps.acknowledged == acting.produced() == produced
    assert (info.steps.items, info.steps.lost_tail) == (produced, 0)
    (counters,) = [its.counters for its in info.actors]
    assert (counters.produced_steps, counters.buffered_steps) == (produced, 0)
    assert acting.metric("exploration_min") == pytest.approx(0.05)
    assert acting.metric("exploration_max") == pytest.approx(0.8)


def test_the_same_seed_makes_the_same_steps_in_each_lane_group(
    peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    lives: List[Dict[int, List[Chunk]]] = []
    for name in ("actor-0", "actor-0", "actor-1"):
        peers.replay.chunks.clear()
        acting = make_acting(**{"actor.lane_groups": 2, "actor.name": name})
        eventually(lambda: min(sum(c.lane_group == g for c in peers.replay.chunks) for g in (0, 1)) > 4)
        acting.finish()
        whole = [chunk for chunk in peers.replay.chunks if chunk.num_steps == CHUNK_STEPS]
        lives.append({group: [c for c in whole if c.lane_group == group][:4] for group in (0, 1)})
    first, again, other = lives
    for group in (0, 1):
        for one, same, different in zip(first[group], again[group], other[group]):
            np.testing.assert_array_equal(one.action, same.action)
            np.testing.assert_array_equal(one.q_taken, same.q_taken)
            assert (one.action != different.action).any()
    assert (first[0][0].action != first[1][0].action).any()


def test_a_group_that_fails_ends_the_actor_with_its_error(
    peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    acting = make_acting(
        **{"actor.lane_groups": 2, "env.factory": "tests.failing_envs:make_exploding", "env.kwargs": "{ after = 30 }"}
    )
    eventually(lambda: not acting._thread.is_alive())
    with pytest.raises(ValueError, match="physics exploded"):
        acting.finish()
    assert peers.replay.info().steps.acknowledged == acting.produced()


def test_a_step_that_hangs_is_named_to_whoever_asks_the_chief(
    tmp_path: Path, peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    store = ParameterStore(VersionReservation(tmp_path / "versions.json"))
    store.publish({ACT: _parameters()}, 0)
    readers = Readers(time.monotonic, 1)
    peers.chief = ParameterServicer(  # type: ignore[assignment]
        run_id=RUN_ID,
        incarnation=1,
        store=store,
        readers=readers,
        folder=RunFolder(tmp_path),
        status=Status(run_state=parameters_pb2.RUN_STATE_TRAINING),
        num_actors=1,
        max_updates=10,
        waiting_for=lambda: "",
        fail=pytest.fail,
        log=FakeLog(),
    )
    peers.add_chief = add_to_server  # type: ignore[assignment]
    peers.go("chief")
    peers.come("chief")
    failing_envs.GO_ON.clear()
    acting = make_acting(**{"env.factory": "tests.failing_envs:make_hanging", "actor.max_step_s": 1.0})

    def told() -> str:
        return "".join(reader.waiting_for for reader in readers.living(5.0))

    eventually(lambda: told().startswith("the environment hangs: step has not returned for "))
    eventually(lambda: any("hangs: step has not returned" in event for event in acting.log.events("warning")))
    assert acting.metric("env_hangs_total") == 1
    assert acting.metric("env_call_seconds") > 1.0
    failing_envs.GO_ON.set()
    eventually(lambda: told() == "")
    eventually(lambda: acting.produced() > 0)
    eventually(lambda: "the environment goes on" in acting.log.events("info"))
    acting.finish()


@pytest.mark.parametrize(
    ("hidden_sizes", "difference"),
    [
        ("[9]", r"'policy\.0\.weight' is \(6, 8\) there, and \(6, 9\) here"),
        ("[8, 8]", r"'policy\.1\.weight' is \(8, 1\) there, and \(8, 8\) here"),
    ],
)
@pytest.mark.parametrize(
    ("who", "changes"),
    [
        ("actor", {}),
        ("actor", {"actor.index": None}),  # it asks the chief for one, on another thread than later for parameters
        ("evaluator", {"evaluator.metrics_port": 0, "evaluator.nice": 0}),
    ],
)
def test_a_chief_of_other_networks_is_a_mistake_to_mend(
    who: str, changes: Dict[str, Any], hidden_sizes: str, difference: str, peers: Peers, make_acting: Any
) -> None:
    told = rf"the chief's parameters do not fit this {who}: {difference}; start both with the same run file"
    values = {"td3.hidden_sizes": hidden_sizes, **changes}

    def live() -> None:
        if who == "evaluator":
            evaluate(load(None, _flags(peers, **values)).config, Lifecycle(), FakeLog())
            return
        acting = make_acting(**values)
        acting._thread.join(15)
        acting.finish()

    with pytest.raises(UserError, match=told) as caught:
        live()
    assert caught.value.exit_code == EXIT_USER
    assert [chunk.num_valid for chunk in peers.replay.chunks if chunk.num_valid] == []  # nothing was acted


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("os._exit", 7, ""),
        ("sys.exit", 1, "shoal actor: environment 'tests.failing_envs:make_ending': the environment ended the process"),
        ("raise", 1, "ValueError: physics exploded"),
    ],
)
def test_a_simulator_that_breaks_down_ends_the_process_and_a_new_life_takes_over(
    how: str, code: int, said: str, peers: Peers
) -> None:
    ending = {"env.factory": "tests.failing_envs:make_ending", "env.kwargs": f'{{ how = "{how}", after = 40 }}'}
    command = [sys.executable, "-m", "services.actor", *_flags(peers, **ending, **{"actor.name": "actor-0"})]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    incarnations, acknowledged = [], []
    for _ in range(2):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
        assert ended.returncode == code, ended.stderr
        assert said in ended.stderr
        if how == "sys.exit":
            assert len(ended.stderr.splitlines()) == 1
        info = peers.replay.info()
        incarnations.append(info.actors[0].incarnation)
        acknowledged.append(info.steps.acknowledged)
    assert incarnations[0] != incarnations[1]
    assert 0 < acknowledged[0] < acknowledged[1]


def test_an_actor_whose_token_was_withdrawn_ends_as_asked(peers: Peers) -> None:
    command = [sys.executable, "-m", "services.actor", *_flags(peers, **{"actor.name": "actor-0"})]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            _while_alive(process, lambda: len(peers.replay.chunks) > 2)
            peers.replay.knows_tokens = False
            _while_alive(process, lambda: peers.replay.num_refused)
            process.terminate()
            said, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    assert 'warning the last chunks wait for the replay reason="this service does not know the caller\'s token"' in said
    dropped = int(said.partition("steps are dropped at the stop steps=")[2].split()[0])
    acknowledged = int(said.partition("info    steps acknowledged=")[2].split()[0])
    assert dropped >= LANES
    assert acknowledged == peers.replay.info().steps.acknowledged
    assert said.endswith("stopped reason=SIGTERM\n")
