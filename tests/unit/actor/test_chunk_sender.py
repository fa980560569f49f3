from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, List, Optional

import grpc
import numpy as np
import pytest

from services.actor import chunk_sender
from services.actor.chunk_sender import ChunkSender
from services.common.codec import decode_chunk
from services.common.errors import EXIT_FENCED, Fenced
from services.common.lifecycle import Lifecycle
from services.common.packing import CODECS
from services.common.peer import Peer
from services.common.rpc import Refused, Server
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.common.waits import Waits
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, SCHEMA, FakeLog, make_chunk, same

ADD = replay_pb2_grpc.add_ReplayServiceServicer_to_server
STEPS = 8  # of a chunk: 4 of 2 lanes


class Replay(ReplayServicer):
    """The real one; keeps the inserts that it got, and loses as many of its first answers as it is told."""

    def __init__(self, incarnation: int = 1, **settings: Any) -> None:
        whole = TableSettings(**{"capacity": 1024, "n_step": 1, "max_batch_size": 64, **settings})
        super().__init__(
            run_id=RUN_ID,
            incarnation=incarnation,
            make_table=lambda schema: Table(whole, schema, clock=time.monotonic),
            log=FakeLog(),
            fail=lambda error: pytest.fail(str(error)),
        )
        self.requests: List[Any] = []
        self.statuses: List[int] = []
        self.answers_to_lose = 0
        self.refusal: Optional[grpc.StatusCode] = None  # of every Insert
        self.refused = 0

    def Insert(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if self.refusal:
            self.refused += 1
            context.abort(self.refusal, "said so")
        response = super().Insert(request, context)
        self.requests.append(request)
        self.statuses.append(response.status)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            deadline = time.monotonic() + 5
            while context.is_active() and time.monotonic() < deadline:
                time.sleep(0.005)
        return response

    def steps(self) -> Any:
        assert self.table is not None
        assert self.table.check_valid() is None
        return self.table.info().steps


@pytest.fixture
def replay() -> Replay:
    return Replay()


@pytest.fixture
def make_sender(lifecycle: Lifecycle, log: FakeLog) -> Any:
    """Makes senders; `run` with the test's life. Those that still run at the end are closed."""
    made: List[ChunkSender] = []

    def make(address: str, **changes: Any) -> ChunkSender:
        arguments: Dict[str, Any] = {
            "peer": Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0"),
            "schema": SCHEMA,
            "buffer_chunks": 4,
            "drop_oldest": False,
            "on_version": lambda _version: None,
            "stopping": lifecycle.stopping,
            "log": log,
            **changes,
        }
        made.append(ChunkSender(address, **arguments))
        return made[-1]

    yield make
    lifecycle.stop("the test is over")
    for one in made:
        one.close()


def _chunk(number: int) -> Any:
    return make_chunk(4, 2, first_step=4 * number, seed=number)


def _finish(sender: ChunkSender, lifecycle: Lifecycle) -> None:
    sender.close()
    for thread in lifecycle._threads:
        thread.join(10)
        assert not thread.is_alive()
    lifecycle.check()


def test_chunks_arrive_in_order_whole_and_numbered(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    versions: List[int] = []
    took_s: List[float] = []
    sender = make_sender(serve(ADD, replay), on_version=versions.append, on_acknowledged=took_s.append)
    sent = [make_chunk(0, 2)] + [_chunk(i) for i in range(5)]
    lifecycle.spawn("sender", sender.run)
    for chunk in sent:
        sender.put(chunk)
    _finish(sender, lifecycle)
    assert [request.chunk.sequence for request in replay.requests] == [0, 1, 2, 3, 4, 5]
    assert all(same(decode_chunk(r.chunk), chunk) for r, chunk in zip(replay.requests, sent))
    assert [request.HasField("schema") for request in replay.requests] == [True] + 5 * [False]
    assert replay.steps().acknowledged == sender.acknowledged_steps == 5 * STEPS
    assert sender.dropped_steps == {}
    assert versions == [0] * 6
    assert all(0 < seconds < 10 for seconds in took_s)
    assert took_s  # those that were sent before the stop


def test_a_chunk_is_packed_when_it_is_put_and_counted_when_it_is_sent(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    sender = make_sender(serve(ADD, replay))
    chunks = [_chunk(0), _chunk(1)]
    for chunk in chunks:
        sender.put(chunk)
        chunk.reward[:] = 7.0  # whoever put it may use its arrays again
    lifecycle.spawn("sender", sender.run)
    _finish(sender, lifecycle)
    applied = [r for r, status in zip(replay.requests, replay.statuses) if status == replay_pb2.INSERT_STATUS_APPLIED]
    assert all(same(decode_chunk(request.chunk), _chunk(i)) for i, request in enumerate(applied))
    assert [request.chunk.sequence for request in applied] == [0, 1]
    counters = [request.chunk.counters for request in applied]
    assert [(c.produced_steps, c.buffered_steps) for c in counters] == [(2 * STEPS, STEPS), (2 * STEPS, 0)]


def test_the_chiefs_version_comes_with_the_answers(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    versions: List[int] = []
    sender = make_sender(serve(ADD, replay), on_version=versions.append)
    lifecycle.spawn("sender", sender.run)
    sender.put(_chunk(0))
    eventually(lambda: versions == [0])
    assert replay.table is not None
    replay.table.set_newest(17, 170)
    sender.put(_chunk(1))
    eventually(lambda: versions == [0, 17])


def test_a_lost_answer_is_asked_for_again_and_applied_once(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_sender, "INSERT_WAIT_S", 0.1)
    monkeypatch.setattr(chunk_sender, "CALL_MARGIN_S", 0.1)
    replay.answers_to_lose = 2
    sender = make_sender(serve(ADD, replay))
    lifecycle.spawn("sender", sender.run)
    for i in range(3):
        sender.put(_chunk(i))
    _finish(sender, lifecycle)
    applied, duplicate = replay_pb2.INSERT_STATUS_APPLIED, replay_pb2.INSERT_STATUS_DUPLICATE
    assert replay.statuses == [applied, duplicate, duplicate, applied, applied]
    assert replay.steps().acknowledged == sender.acknowledged_steps == 3 * STEPS


def test_the_counters_of_every_chunk_add_up(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    sender = make_sender(serve(ADD, replay), buffer_chunks=2, drop_oldest=True)
    for i in range(4):
        sender.put(_chunk(i))  # nobody delivers yet: two are dropped
    lifecycle.spawn("sender", sender.run)
    _finish(sender, lifecycle)
    acknowledged = 0
    for request in replay.requests:
        counters = request.chunk.counters
        acknowledged += STEPS
        dropped = sum(counters.dropped_steps.values())
        assert counters.produced_steps == acknowledged + dropped + counters.buffered_steps
    assert sender.dropped_steps == {"buffer_full": 2 * STEPS}
    assert [r.chunk.first_step for r in replay.requests] == [8, 12]  # the gap is in the steps
    assert [r.chunk.sequence for r in replay.requests] == [0, 1]  # and not in the sequence
    assert replay.steps().acknowledged == 2 * STEPS


def test_the_counters_of_a_stop_add_up_too(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    sender = make_sender(serve(ADD, replay))
    for i in range(3):
        sender.put(_chunk(i))
    lifecycle.stop("test")
    lifecycle.spawn("sender", sender.run)
    _finish(sender, lifecycle)
    buffered = [request.chunk.counters.buffered_steps for request in replay.requests]
    assert buffered == [2 * STEPS, STEPS, 0]
    assert sender.dropped_steps == {}
    assert replay.steps().acknowledged == 3 * STEPS


def test_a_replay_that_restarted_is_told_the_schema_again(
    make_sender: Any, free_address: Callable[[], str], lifecycle: Lifecycle, eventually: Eventually
) -> None:
    address = free_address()

    def start(replay: Replay) -> Server:
        server = Server(address, max_workers=4, option_name="x")
        server.add(ADD, replay)
        server.start()
        return server

    server = start(Replay(1))
    sender = make_sender(address)
    lifecycle.spawn("sender", sender.run)
    sender.put(_chunk(0))
    eventually(lambda: sender.acknowledged_steps == STEPS)
    server.stop(0)
    second = Replay(2)
    server = start(second)
    try:
        for i in (1, 2):
            sender.put(_chunk(i))
        eventually(lambda: sender.acknowledged_steps == 3 * STEPS)
        assert second.statuses == [replay_pb2.INSERT_STATUS_NEED_SCHEMA] + 2 * [replay_pb2.INSERT_STATUS_APPLIED]
        assert second.steps().acknowledged == 2 * STEPS
        _finish(sender, lifecycle)
    finally:
        server.stop(0)


def test_a_held_chunk_says_why_and_is_applied_when_it_may(
    make_sender: Any, serve: Serve, lifecycle: Lifecycle, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_sender, "INSERT_WAIT_S", 0.05)
    replay = Replay(
        samples_per_insert=1.0, error_buffer=64.0, min_size_to_sample=1, max_chunk_steps=STEPS, max_num_batches=1
    )
    sender = make_sender(serve(ADD, replay), buffer_chunks=100)
    lifecycle.spawn("sender", sender.run)
    for i in range(12):
        sender.put(_chunk(i))
    eventually(lambda: "the learner must sample" in sender.waiting_for)
    assert replay_pb2.INSERT_STATUS_BLOCKED in replay.statuses
    held_at = sender.acknowledged_steps
    assert held_at < 12 * STEPS
    assert replay.table is not None
    assert replay.table.sample(1, 64, max_wait_s=0).batches
    eventually(lambda: sender.acknowledged_steps == 12 * STEPS)
    assert sender.waiting_for == ""
    applied = [s for s in replay.statuses if s == replay_pb2.INSERT_STATUS_APPLIED]
    assert len(applied) == 12
    assert replay.steps().acknowledged == 12 * STEPS


def _eventually_acknowledged(sender: ChunkSender, eventually: Eventually) -> None:
    eventually(lambda: sender.acknowledged_steps == STEPS)


def test_an_older_life_of_an_actor_is_fenced(
    make_sender: Any, replay: Replay, serve: Serve, eventually: Eventually
) -> None:
    address, older, newer = serve(ADD, replay), Lifecycle(), Lifecycle()
    senders = [make_sender(address, stopping=life.stopping) for life in (older, newer)]
    for number, (sender, life) in enumerate(zip(senders, (older, newer))):
        life.spawn("sender", sender.run)
        sender.put(_chunk(number))
        _eventually_acknowledged(sender, eventually)
    senders[0].put(_chunk(2))
    eventually(older.stopping.is_set)
    with pytest.raises(Fenced, match="'actor-0' was started anew") as caught:
        older.join()
    assert caught.value.exit_code == EXIT_FENCED
    newer.stop("test")
    senders[1].close()
    newer.join()
    assert replay.steps().acknowledged == 2 * STEPS


def test_another_schema_is_refused_with_the_difference(
    make_sender: Any, replay: Replay, serve: Serve, eventually: Eventually
) -> None:
    address, life = serve(ADD, replay), Lifecycle()
    replay._table = replay._make_table(Schema((TensorSpec("policy", "float32", (3,)),), ActionSpec(num_actions=2)))
    sender = make_sender(address, stopping=life.stopping)
    life.spawn("sender", sender.run)
    sender.put(make_chunk(0, 2))
    eventually(life.stopping.is_set)
    with pytest.raises(Refused, match=r"policy' is float32\[3\] here, float32\[2\] there"):
        life.join()


def test_a_stop_without_a_replay_keeps_its_budget_and_counts_what_is_lost(
    make_sender: Any, lifecycle: Lifecycle, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_sender, "FLUSH_BUDGET_S", 0.3)
    sender = make_sender("127.0.0.1:1")
    thread = lifecycle.spawn("sender", sender.run)
    for i in range(3):
        sender.put(_chunk(i))
    began = time.monotonic()
    lifecycle.stop("test")
    sender.close()
    thread.join(10)
    assert time.monotonic() - began < 0.3 + 2  # a call's last deadline, and a margin for a busy machine
    lifecycle.check()
    assert sender.dropped_steps == {"stopped": 3 * STEPS}
    assert sender.depth == 0
    sender.put(_chunk(3))  # an environment that took long for its last step
    assert sender.dropped_steps == {"stopped": 4 * STEPS}


@pytest.mark.parametrize("is_queued_before", [True, False])
def test_a_stop_while_the_replay_refuses_the_token_drops_what_is_left_and_says_why(
    is_queued_before: bool,
    make_sender: Any,
    replay: Replay,
    serve: Serve,
    lifecycle: Lifecycle,
    log: FakeLog,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunk_sender, "FLUSH_BUDGET_S", 0.3)
    sender = make_sender(serve(ADD, replay))
    lifecycle.spawn("sender", sender.run)
    sender.put(_chunk(0))
    eventually(lambda: sender.acknowledged_steps == STEPS)
    replay.refusal = grpc.StatusCode.UNAUTHENTICATED  # it was withdrawn
    if is_queued_before:
        for number in (1, 2):
            sender.put(_chunk(number))
        eventually(lambda: sender.waiting_for)
    lifecycle.stop("test")
    if not is_queued_before:
        for number in (1, 2):
            sender.put(_chunk(number))
    _finish(sender, lifecycle)
    assert sender.dropped_steps == {"stopped": 2 * STEPS}
    assert sender.depth == 0
    assert log.events("warning") == ["the last chunks wait for the replay"]
    assert [values["reason"] for level, _event, values in log.lines if level == "warning"] == ["said so"]


def test_a_token_that_is_replaced_within_the_stop_saves_what_is_left(
    make_sender: Any,
    replay: Replay,
    serve: Serve,
    lifecycle: Lifecycle,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunk_sender, "FLUSH_BUDGET_S", 20.0)  # on a slow machine too
    replay.refusal = grpc.StatusCode.UNAUTHENTICATED
    sender = make_sender(serve(ADD, replay))
    sender.put(_chunk(0))
    lifecycle.stop("test")
    lifecycle.spawn("sender", sender.run)
    eventually(lambda: replay.refused)
    replay.refusal = None
    _finish(sender, lifecycle)
    assert sender.dropped_steps == {}
    assert replay.steps().acknowledged == STEPS


@pytest.mark.parametrize("how", ["refused", "fenced", "another schema"])
def test_a_stop_in_which_the_replay_takes_nothing_for_good_is_no_mistake(
    how: str, make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle, log: FakeLog, eventually: Eventually
) -> None:
    address, newer = serve(ADD, replay), Lifecycle()
    senders = [make_sender(address, stopping=life.stopping) for life in (lifecycle, newer)]
    for number, (sender, life) in enumerate(zip(senders, (lifecycle, newer))):
        if number == 0 or how == "fenced":
            life.spawn("sender", sender.run)
            sender.put(_chunk(number))
            _eventually_acknowledged(sender, eventually)
    newer.stop("test")
    if how == "refused":
        replay.refusal = grpc.StatusCode.PERMISSION_DENIED
    if how == "another schema":
        replay._table = replay._make_table(Schema((TensorSpec("policy", "float32", (3,)),), ActionSpec(num_actions=2)))
    lifecycle.stop("test")
    began_s = time.monotonic()
    for number in (2, 3):
        senders[0].put(_chunk(number))
    _finish(senders[0], lifecycle)
    assert time.monotonic() - began_s < chunk_sender.FLUSH_BUDGET_S  # at once: no wait would mend it
    assert senders[0].dropped_steps == {"stopped": 2 * STEPS}
    assert log.events("warning") == ["the replay takes none of the last chunks"]


def test_the_chunk_of_a_slow_last_step_is_delivered(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_sender, "FLUSH_BUDGET_S", 0.2)
    sender = make_sender(serve(ADD, replay))
    thread = lifecycle.spawn("sender", sender.run)
    lifecycle.stop("test")
    thread.join(0.5)  # longer than the budget: nothing waits, so none of it is used
    assert thread.is_alive()
    sender.put(_chunk(0))
    _finish(sender, lifecycle)
    assert replay.steps().acknowledged == STEPS
    assert sender.dropped_steps == {}


def test_a_full_buffer_holds_the_caller_until_the_stop_gives_up(
    make_sender: Any, lifecycle: Lifecycle, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_sender, "FLUSH_BUDGET_S", 0.2)
    waits = Waits(("replay_full", "replay_away"))
    sender = make_sender(
        "127.0.0.1:1", buffer_chunks=1, full=partial(waits.on, "replay_full"), away=partial(waits.on, "replay_away")
    )
    lifecycle.spawn("sender", sender.run)
    sender.put(_chunk(0))
    eventually(lambda: sender.depth == 0)  # it is on its way
    eventually(lambda: waits.is_on("replay_away"))
    assert not waits.is_on("replay_full")
    sender.put(_chunk(1))
    putting = threading.Thread(target=lambda: sender.put(_chunk(2)))
    putting.start()
    putting.join(0.25)
    assert putting.is_alive()
    assert sender.depth == 1
    assert waits.is_on("replay_full")
    lifecycle.stop("test")
    putting.join(5)
    assert not putting.is_alive()
    _finish(sender, lifecycle)
    assert sender.dropped_steps == {"stopped": 3 * STEPS}
    assert (sender.acknowledged_steps, sender.acknowledged_bytes) == (0, 0)
    assert not [reason for reason in ("replay_full", "replay_away") if waits.is_on(reason)]


def test_a_full_buffer_in_a_stop_is_delivered_with_the_callers_chunk(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    sender = make_sender(serve(ADD, replay), buffer_chunks=1)
    sender.put(_chunk(0))
    lifecycle.stop("test")
    lifecycle.spawn("sender", sender.run)
    sender.put(_chunk(1))
    _finish(sender, lifecycle)
    assert replay.steps().acknowledged == 2 * STEPS
    assert sender.dropped_steps == {}


def test_a_full_buffer_lets_the_caller_go_on_when_there_is_room(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    sender = make_sender(serve(ADD, replay), buffer_chunks=1)
    lifecycle.spawn("sender", sender.run)
    for i in range(10):
        sender.put(_chunk(i))
        assert sender.depth <= 1
    _finish(sender, lifecycle)
    assert replay.steps().acknowledged == 10 * STEPS


def test_a_replay_that_is_away_is_told(make_sender: Any, lifecycle: Lifecycle, eventually: Eventually) -> None:
    sender = make_sender("127.0.0.1:1")
    lifecycle.spawn("sender", sender.run)
    sender.put(_chunk(0))
    eventually(lambda: sender.waiting_for == "waiting for the replay at 127.0.0.1:1")


def test_half_of_the_shortest_round_trip_counts_as_queued(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: List[Any] = []

    class Trips:
        half_s = 100.0

        def note(self, trip_s: float, held_s: float) -> None:
            noted.append((trip_s, held_s))

    monkeypatch.setattr(chunk_sender, "RoundTrips", Trips)
    sender = make_sender(serve(ADD, replay))
    lifecycle.spawn("sender", sender.run)
    sender.put(_chunk(0))
    _finish(sender, lifecycle)
    assert 100.0 <= replay.requests[-1].chunk.queued_seconds < 110.0
    assert all(0.0 < held_s <= trip_s for trip_s, held_s in noted)
    assert noted


def test_each_lane_group_is_numbered_by_itself_and_the_actor_counts_as_one(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    sender = make_sender(serve(ADD, replay), buffer_chunks=2)
    groups = [[replace(_chunk(i), lane_group=group) for i in range(4)] for group in range(3)]
    lifecycle.spawn("sender", sender.run)
    threads = [threading.Thread(target=lambda mine=mine: [sender.put(chunk) for chunk in mine]) for mine in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    _finish(sender, lifecycle)
    assert set(replay.statuses) == {replay_pb2.INSERT_STATUS_APPLIED}
    for group, sent in enumerate(groups):
        mine = [request.chunk for request in replay.requests if request.chunk.lane_group == group]
        assert [chunk.sequence for chunk in mine] == [0, 1, 2, 3]
        assert all(same(decode_chunk(message), chunk) for message, chunk in zip(mine, sent))
    acknowledged = 0
    for request in replay.requests:  # one is in flight: each chunk's counters hold when it has been applied
        acknowledged += STEPS
        counters = request.chunk.counters
        assert counters.produced_steps == acknowledged + counters.buffered_steps
    assert replay.steps().acknowledged == sender.acknowledged_steps == 12 * STEPS


def test_drops_are_told_by_reason(make_sender: Any, lifecycle: Lifecycle) -> None:
    told: List[Any] = []
    sender = make_sender(
        "127.0.0.1:1", buffer_chunks=2, drop_oldest=True, on_drop=lambda reason, steps: told.append((reason, steps))
    )
    for number in range(5):
        sender.put(_chunk(number))
    assert told == [("buffer_full", STEPS)] * 3
    assert sender.dropped_steps == {"buffer_full": 3 * STEPS}
    assert sender.depth == 2


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_packed_images_arrive_as_they_were(
    codec: str, make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    pytest.importorskip("lz4")
    sender = make_sender(serve(ADD, replay), codec=codec)
    chunk = make_chunk(64, 4)
    chunk.observation["camera"][:] = np.arange(64, dtype=np.uint8)[:, None, None, None]
    lifecycle.spawn("sender", sender.run)
    sender.put(chunk)
    _finish(sender, lifecycle)
    (request,) = replay.requests
    camera = next(tensor for tensor in request.chunk.observation if tensor.name == "camera")
    assert camera.codec == CODECS[codec]
    assert len(camera.data) < chunk.observation["camera"].nbytes
    assert same(decode_chunk(request.chunk), chunk)
    assert replay.steps().acknowledged == 256


def test_what_is_sent_is_counted_and_each_chunk_is_named(
    replay: Replay, serve: Serve, make_sender: Any, lifecycle: Lifecycle, log: FakeLog
) -> None:
    sender = make_sender(serve(ADD, replay))
    lifecycle.spawn("sender", sender.run)
    for number in range(3):
        sender.put(_chunk(number))
    _finish(sender, lifecycle)
    assert sender.acknowledged_steps == 3 * STEPS
    # What is written at the send is not counted: sequence, ages and counters.
    sizes = [request.chunk.ByteSize() for request in replay.requests]
    assert sum(sizes) - 3 * 64 < sender.acknowledged_bytes <= sum(sizes)
    peer = replay.requests[0].peer
    named = [values["chunk"] for level, event, values in log.lines if event == "a chunk is acknowledged"]
    assert named == [f"actor-0/{peer.incarnation:016x}/{number}" for number in range(3)]
