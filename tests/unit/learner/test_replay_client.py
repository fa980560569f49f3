from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any, Callable, Dict, List

import grpc
import numpy as np
import pytest

from services.common.lifecycle import Lifecycle
from services.common.peer import Peer
from services.common.rpc import Refused, Server, Stopped
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.common.waits import Waits
from services.learner import replay_client
from services.learner.replay_client import WAIT_REASONS, Paused, ReplayClient
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import experience_pb2, replay_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, SCHEMA, FakeLog, make_chunk

N, K = 4, 2


class Replay(ReplayServicer):
    """The real one; keeps the Sample and UpdatePriorities requests it got."""

    def __init__(self, incarnation: int = 1) -> None:
        settings = TableSettings(
            capacity=256, n_step=1, max_batch_size=N, max_num_batches=K, min_size_to_sample=N, seed=incarnation
        )
        super().__init__(
            run_id=RUN_ID,
            incarnation=incarnation,
            make_table=lambda schema: Table(settings, schema, clock=time.monotonic),
            log=FakeLog(),
            fail=pytest.fail,
        )
        self.samples: List[Any] = []
        self.tails: List[Any] = []

    def introduce(self, schema: Schema = SCHEMA) -> Table:
        self._table = self._make_table(schema)
        return self._table

    def fill(self, steps: int = 16) -> Table:
        table = self.introduce()
        table.insert("actor-0", 1, make_chunk(steps, 2, version=5), max_wait_s=0)
        return table

    def Sample(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.samples.append(request)
        return super().Sample(request, context)

    def UpdatePriorities(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.tails.append(request)
        return super().UpdatePriorities(request, context)


ADD = replay_pb2_grpc.add_ReplayServiceServicer_to_server


@pytest.fixture
def replay() -> Replay:
    return Replay()


@pytest.fixture
def client(replay: Replay, serve: Serve, make_client: Callable[..., ReplayClient]) -> ReplayClient:
    return make_client(serve(ADD, replay))


@pytest.fixture
def make_client(lifecycle: Lifecycle, log: FakeLog, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(replay_client, "SAMPLE_WAIT_S", 0.2)
    made: List[ReplayClient] = []

    def make(address: str, **changes: Any) -> ReplayClient:
        arguments: Dict[str, Any] = {
            "peer": Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "learner"),
            "batch_size": N,
            "batches_per_sample": K,
            "samples_in_flight": 2,
            "transport": "auto",
            "rng": np.random.default_rng(0),
            "newest": lambda: (7, 70),
            "lifecycle": lifecycle,
            "log": log,
            **changes,
        }
        made.append(ReplayClient(address, **arguments))
        return made[-1]

    yield make
    lifecycle.stop("the test is over")
    for thread in lifecycle._threads:
        thread.join(10)
    for one in made:
        one.close()


def _error(drawn: Any, size: float) -> Any:
    return np.full(len(drawn.batch), size, np.float32)


def test_it_waits_for_the_first_actor_and_says_so(
    client: ReplayClient, replay: Replay, log: FakeLog, eventually: Eventually
) -> None:
    schemas: List[Schema] = []
    waiting = threading.Thread(target=lambda: schemas.append(client.wait_for_schema()))
    waiting.start()
    eventually(lambda: client.waiting_for)
    assert client.waiting_for == "waiting for the first actor to introduce itself to the replay"
    replay.introduce()
    waiting.join(5)
    assert schemas == [SCHEMA]
    assert client.waiting_for == ""
    assert len(log.events("info")) == 1


def test_a_replay_of_another_run_is_refused(make_client: Any, replay: Replay, serve: Serve) -> None:
    client = make_client(serve(ADD, replay), peer=Peer("other", experience_pb2.ROLE_LEARNER, "learner"))
    with pytest.raises(Refused, match="belongs to run 'other', this service to run 'test-run'"):
        client.wait_for_schema()


def test_batches_are_those_of_the_table(client: ReplayClient, replay: Replay) -> None:
    table = replay.fill()
    client.start(SCHEMA)
    for _ in range(4 * K):
        drawn = client.next()
        assert len(drawn.batch) == N
        assert drawn.table_id == table.table_id
        assert drawn.batch.num_items == table.info().num_items
        for at, key in enumerate(drawn.batch.keys):
            item: Any = table.inspector.item(int(key))
            assert item.n_step_return == drawn.batch.n_step_return[at]
            for name, column in drawn.batch.observation.items():
                np.testing.assert_array_equal(column[at], item.columns[f"observation.{name}"])
        assert (drawn.batch.policy_version == 5).all()
    request = replay.samples[0]
    assert (request.num_batches, request.batch_size) == (K, N)
    assert (request.newest_version, request.updates) == (7, 70)
    assert request.peer.schema_digest == SCHEMA.digest
    assert table.newest_version == 7


def test_draws_run_ahead_by_a_bounded_number(client: ReplayClient, replay: Replay, eventually: Eventually) -> None:
    replay.fill()
    client.start(SCHEMA)
    eventually(lambda: client.depth == 2 * K)
    for _ in range(20):
        time.sleep(0.01)  # nothing must come: there is nothing to wait for
        assert client.depth == 2 * K
    assert len(replay.samples) == 2  # no call is made whose batches would wait in vain
    for taken in range(1, 2 * K + 1):
        client.next()
        eventually(lambda calls=2 + taken // K: len(replay.samples) == calls)  # type: ignore[misc]


def test_priorities_go_back_with_the_next_draw(client: ReplayClient, replay: Replay, eventually: Eventually) -> None:
    table = replay.fill()
    client.start(SCHEMA)
    drawn = client.next()
    client.report(drawn, _error(drawn, 9.0))
    for _ in range(6 * K):
        client.next()
    key = int(drawn.batch.keys[0])
    eventually(lambda: [s for s in replay.samples if len(s.priorities.keys)])
    request = next(s for s in replay.samples if len(s.priorities.keys))
    np.testing.assert_array_equal(np.frombuffer(request.priorities.keys, np.int64), drawn.batch.keys)
    eventually(lambda: table.inspector.item(key).priority == pytest.approx(9.0 + 1e-6))  # type: ignore[union-attr]


def test_the_tail_is_delivered_at_the_end(client: ReplayClient, replay: Replay, lifecycle: Lifecycle) -> None:
    table = replay.fill()
    client.start(SCHEMA)
    drawn = [client.next() for _ in range(2)]
    client._ended.set()  # no draw will carry them
    for thread in lifecycle._threads:
        thread.join(10)
    for one in drawn:
        client.report(one, _error(one, 9.0))
    client.finish()
    assert len(replay.tails) == 1
    keys = np.concatenate([one.batch.keys for one in drawn])
    np.testing.assert_array_equal(np.frombuffer(replay.tails[0].priorities.keys, np.int64), keys)
    item: Any = table.inspector.item(int(keys[0]))
    assert item.priority == pytest.approx(9.0 + 1e-6)


def test_nothing_to_deliver_is_no_call(client: ReplayClient, replay: Replay) -> None:
    client.finish()
    assert replay.tails == []


def test_a_replay_that_is_gone_or_new_does_not_harm_the_end(
    make_client: Any, replay: Replay, log: FakeLog, free_address: Callable[[], str]
) -> None:
    address = free_address()
    client = make_client(address)
    table = replay.fill()
    batch = table.sample(1, N, max_wait_s=0).batches[0]
    drawn = replay_client.DrawnBatch(batch, 1)
    client.report(drawn, _error(drawn, 1.0))
    client.finish()
    server = Server(address, max_workers=2, option_name="x")
    server.add(ADD, Replay(incarnation=2))  # it has no table yet, and refuses
    server.start()
    try:
        client.info()  # connected again
        client.report(drawn, _error(drawn, 1.0))
        client.finish()
    finally:
        server.stop(0)
    told = [values["reason"] for _, event, values in log.lines if event == "the last priorities were not delivered"]
    assert len(told) == 2
    assert "no actor has introduced itself yet" in told[1]


def test_a_replay_that_restarts_is_drawn_from_again(
    make_client: Any, free_address: Callable[[], str], eventually: Eventually
) -> None:
    address = free_address()

    def start(incarnation: int) -> Server:
        replay = Replay(incarnation)
        replay.fill()
        server = Server(address, max_workers=4, option_name="x")
        server.add(ADD, replay)
        server.start()
        return server

    server = start(1)
    client = make_client(address)
    client.start(SCHEMA)
    first = client.next().table_id
    server.stop(0)
    server = start(2)
    try:
        tables = {client.next().table_id for _ in range(4 * K)}
        assert tables - {first}
    finally:
        server.stop(0)


def test_what_it_waits_for_is_the_replays_reason(client: ReplayClient, replay: Replay, eventually: Eventually) -> None:
    replay.introduce()  # a table without items
    client.start(SCHEMA)
    eventually(lambda: client.waiting_for)
    assert "min_size_to_sample" in client.waiting_for


def test_another_schema_stops_the_process(client: ReplayClient, replay: Replay, eventually: Eventually) -> None:
    replay.fill()
    other = Schema((TensorSpec("policy", "float32", (9,)),), ActionSpec(num_actions=2))
    client.start(other)
    life = client._lifecycle
    eventually(life.stopping.is_set)
    with pytest.raises(Refused, match=r"the learner's schema .* differs from the actors'"):
        life.check()
    with pytest.raises(Stopped):
        client.next()


@pytest.mark.parametrize(("batch_size", "fits"), [(512, 1), (100, 5), (64, 9), (4096, 1)])
def test_large_rows_make_few_batches(batch_size: int, fits: int) -> None:
    images = Schema((TensorSpec("camera", "uint8", (84, 84, 4)),), ActionSpec((-1.0,), (1.0,)))
    assert replay_client.batches_in(32 << 20, batch_size, images) == fits
    assert replay_client.batches_in(32 << 20, batch_size, SCHEMA) > 64


def test_a_call_that_brings_rows_asks_for_fewer_batches_of_large_ones(
    make_client: Any, replay: Replay, serve: Serve, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    replay.fill()
    row_bytes = sum(2 * spec.num_bytes for spec in SCHEMA.observation)
    monkeypatch.setattr(replay_client, "MAX_ROW_BYTES", 2 * N * row_bytes - 1)
    monkeypatch.setattr(replay_client, "MAX_WAITING_BYTES", 3 * N * row_bytes)
    client = make_client(serve(ADD, replay), batches_per_sample=K, samples_in_flight=4)
    client.start(SCHEMA)
    eventually(lambda: client.depth >= 3)
    most = len(replay.samples)
    for _ in range(20):
        time.sleep(0.01)  # nothing must come: there is no memory for more
        assert client.depth <= 3 + 4  # what waited, and the calls that were under way
    assert len(replay.samples) <= most + 4
    assert {request.num_batches for request in replay.samples} == {1}
    assert len(client.next().batch) == N


def test_batches_carry_stamps_and_their_own_way(
    make_client: Callable[..., ReplayClient], serve: Serve, replay: Replay
) -> None:
    table = replay.introduce()
    for number, actor in enumerate(["actor-0", "actor-1"]):
        chunk = dataclasses.replace(make_chunk(8, 2, version=5), newest_version=6 + number, queued_seconds=0.5)
        table.insert(actor, 1, chunk, max_wait_s=0)
    client = make_client(serve(ADD, replay), newest=lambda: (9, 70))
    client.start(SCHEMA)
    before_s, seen = time.monotonic(), set()
    for _ in range(7):
        drawn = client.next()
        stamps = drawn.batch.stamps
        assert stamps is not None
        assert stamps.actor_names == ("actor-0", "actor-1")
        assert stamps.sampling_version == 9
        assert (stamps.known_version == 6 + stamps.actor_index).all()
        assert (stamps.arrival_version == 0).all()
        assert (stamps.transit_s >= 0.5).all()
        assert before_s - 5.0 < drawn.arrived_s <= time.monotonic()
        assert 0.0 <= drawn.half_trip_s < 1.0
        seen |= set(stamps.actor_index.tolist())
    assert seen == {0, 1}
    table.insert("actor-2", 1, make_chunk(0, 2), max_wait_s=0)  # names are sent again when there are more
    while stamps.actor_names != ("actor-0", "actor-1", "actor-2"):
        stamps = client.next().batch.stamps
        assert stamps is not None
        assert time.monotonic() - before_s < 10


def test_names_travel_once(make_client: Callable[..., ReplayClient], serve: Serve, replay: Replay) -> None:
    replay.fill()
    client = make_client(serve(ADD, replay), samples_in_flight=1)
    client.start(SCHEMA)
    for _ in range(3 * K):
        client.next()
    known = [(request.known_table_id, request.known_actors) for request in replay.samples]
    assert known[0] == (0, 0)
    assert set(known[1:]) == {(replay.table.table_id, 1)}  # type: ignore[union-attr]


def test_waits_for_batches_and_for_the_schema_are_told_apart(
    replay: Replay, serve: Serve, make_client: Callable[..., ReplayClient], eventually: Eventually
) -> None:
    waits = Waits(WAIT_REASONS)
    client = make_client(serve(ADD, replay), waits=waits)
    waiting = threading.Thread(target=client.wait_for_schema)
    waiting.start()
    eventually(lambda: waits.is_on("schema"))
    table = replay.introduce()
    waiting.join(10)
    assert not waits.is_on("schema")
    client.start(SCHEMA)
    assert client.next_within(0.05) is None
    assert client.next_within(0.05) is None
    found: List[Any] = []
    reader = threading.Thread(target=lambda: found.append(client.next()))
    reader.start()
    eventually(lambda: waits.seconds()["batches"].now_s > 0.1)  # it goes on with what was in vain before
    table.insert("actor-0", 1, make_chunk(16, 2, version=5), max_wait_s=0)
    reader.join(10)
    assert len(found) == 1
    assert not waits.is_on("batches")
    assert waits.seconds()["batches"].total_s > 0.1
    eventually(lambda: client.depth)
    before = waits.seconds()["batches"].total_s
    client.next()
    assert waits.seconds()["batches"].total_s == before


def test_chunks_of_items_are_named_once_each(replay: Replay, client: ReplayClient) -> None:
    table = replay.fill()
    client.start(SCHEMA)
    drawn = client.next()
    table.insert("actor-0", 1, make_chunk(16, 2, sequence=1, first_step=16, version=5), max_wait_s=0)
    first, second = (f"actor-0/0000000000000001/{sequence}" for sequence in (0, 1))
    assert client.chunks_of(drawn.table_id, [0, 1, 2]) == [first]
    assert client.chunks_of(drawn.table_id, [40, 1, 10**6]) == [second, first]  # the last was never written
    assert client.chunks_of(drawn.table_id + 1, [0]) == []


def test_chunks_of_a_replay_that_is_gone_are_not_named(make_client: Callable[..., ReplayClient], log: FakeLog) -> None:
    assert make_client("127.0.0.1:9").chunks_of(0, [0, 1, 2]) == []
    assert [event for _, event, _ in log.lines].count("the chunks of items are not to be found") == 1


def test_a_paused_client_hands_out_what_it_has_drawn_and_draws_no_more(
    replay: Replay, serve: Serve, make_client: Callable[..., ReplayClient], eventually: Eventually
) -> None:
    replay.fill()
    paused = threading.Event()
    client = make_client(serve(ADD, replay), is_paused=paused.is_set, is_draining=lambda: True)
    client.start(SCHEMA)
    eventually(lambda: client.depth >= K)
    paused.set()
    handed_out: List[Any] = []
    with pytest.raises(Paused):
        handed_out.extend(iter(client.next, None))
    drawn = sum(request.num_batches for request in replay.samples)
    assert len(handed_out) == drawn >= K
    assert all(request.draining for request in replay.samples)
    with pytest.raises(Paused):
        client.next()
    assert sum(request.num_batches for request in replay.samples) == drawn
    assert client.waited_s == 0.0
    paused.clear()
    assert len(client.next().batch) == N


def test_a_replay_that_is_away_holds_no_pause_up(
    replay: Replay, serve: Serve, make_client: Callable[..., ReplayClient], eventually: Eventually
) -> None:
    paused = threading.Event()
    client = make_client("127.0.0.1:1", is_paused=paused.is_set, transport="grpc")
    client.start(SCHEMA)
    eventually(lambda: client.waiting_for)
    paused.set()
    with pytest.raises(Paused):
        client.next()


def test_for_how_long_the_learner_waits_is_known(client: ReplayClient, replay: Replay, eventually: Eventually) -> None:
    assert client.waited_s == 0.0
    waiting = threading.Thread(target=client.wait_for_schema)
    waiting.start()
    eventually(lambda: client.waited_s > 0.1)
    replay.introduce()
    waiting.join(5)
    assert client.waited_s == 0.0
