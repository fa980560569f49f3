from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Callable, List

import numpy as np
import pytest

from services.actor import chunk_sender
from services.common.codec import decode_chunk
from services.common.errors import EXIT_FENCED, Fenced
from services.common.lifecycle import Lifecycle
from services.common.packing import CODECS
from services.common.rpc import Refused, Server
from services.common.schema import ActionSpec, Schema, TensorSpec
from shoal.v1 import replay_pb2
from tests.conftest import Eventually, Serve
from tests.fakes import FakeLog, make_chunk, same
from tests.unit.actor.sending import ADD, STEPS, Replay, eventually_acknowledged, finish, numbered_chunk


def test_chunks_arrive_in_order_whole_and_numbered(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    versions: List[int] = []
    took_s: List[float] = []
    sender = make_sender(serve(ADD, replay), on_version=versions.append, on_acknowledged=took_s.append)
    sent = [make_chunk(0, 2)] + [numbered_chunk(i) for i in range(5)]
    lifecycle.spawn("sender", sender.run)
    for chunk in sent:
        sender.put(chunk)
    finish(sender, lifecycle)
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
    chunks = [numbered_chunk(0), numbered_chunk(1)]
    for chunk in chunks:
        sender.put(chunk)
        chunk.reward[:] = 7.0  # whoever put it may use its arrays again
    lifecycle.spawn("sender", sender.run)
    finish(sender, lifecycle)
    applied = [r for r, status in zip(replay.requests, replay.statuses) if status == replay_pb2.INSERT_STATUS_APPLIED]
    assert all(same(decode_chunk(request.chunk), numbered_chunk(i)) for i, request in enumerate(applied))
    assert [request.chunk.sequence for request in applied] == [0, 1]
    counters = [request.chunk.counters for request in applied]
    assert [(c.produced_steps, c.buffered_steps) for c in counters] == [(2 * STEPS, STEPS), (2 * STEPS, 0)]


def test_the_chiefs_version_comes_with_the_answers(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    versions: List[int] = []
    sender = make_sender(serve(ADD, replay), on_version=versions.append)
    lifecycle.spawn("sender", sender.run)
    sender.put(numbered_chunk(0))
    eventually(lambda: versions == [0])
    assert replay.table is not None
    replay.table.set_newest(17, 170)
    sender.put(numbered_chunk(1))
    eventually(lambda: versions == [0, 17])


def test_a_lost_answer_is_asked_for_again_and_applied_once(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    replay.answers_to_lose = 2
    sender = make_sender(serve(ADD, replay))
    lifecycle.spawn("sender", sender.run)
    for i in range(3):
        sender.put(numbered_chunk(i))
    finish(sender, lifecycle)
    applied, duplicate = replay_pb2.INSERT_STATUS_APPLIED, replay_pb2.INSERT_STATUS_DUPLICATE
    assert replay.statuses == [applied, duplicate, duplicate, applied, applied]
    assert replay.steps().acknowledged == sender.acknowledged_steps == 3 * STEPS


def test_the_counters_of_every_chunk_add_up(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    sender = make_sender(serve(ADD, replay), buffer_chunks=2, drop_oldest=True)
    for i in range(4):
        sender.put(numbered_chunk(i))  # nobody delivers yet: two are dropped
    lifecycle.spawn("sender", sender.run)
    finish(sender, lifecycle)
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


@pytest.mark.usefixtures("patient_stop")
def test_the_counters_of_a_stop_add_up_too(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    sender = make_sender(serve(ADD, replay))
    for i in range(3):
        sender.put(numbered_chunk(i))
    lifecycle.stop("test")
    lifecycle.spawn("sender", sender.run)
    finish(sender, lifecycle)
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
    sender.put(numbered_chunk(0))
    eventually(lambda: sender.acknowledged_steps == STEPS)
    server.stop(0)
    second = Replay(2)
    server = start(second)
    try:
        for i in (1, 2):
            sender.put(numbered_chunk(i))
        eventually(lambda: sender.acknowledged_steps == 3 * STEPS)
        assert second.statuses == [replay_pb2.INSERT_STATUS_NEED_SCHEMA] + 2 * [replay_pb2.INSERT_STATUS_APPLIED]
        assert second.steps().acknowledged == 2 * STEPS
        finish(sender, lifecycle)
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
        sender.put(numbered_chunk(i))
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


def test_an_older_life_of_an_actor_is_fenced(
    make_sender: Any, replay: Replay, serve: Serve, eventually: Eventually
) -> None:
    address, older, newer = serve(ADD, replay), Lifecycle(), Lifecycle()
    senders = [make_sender(address, stopping=life.stopping) for life in (older, newer)]
    for number, (sender, life) in enumerate(zip(senders, (older, newer))):
        life.spawn("sender", sender.run)
        sender.put(numbered_chunk(number))
        eventually_acknowledged(sender, eventually)
    senders[0].put(numbered_chunk(2))
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


def test_a_replay_that_is_away_is_told(make_sender: Any, lifecycle: Lifecycle, eventually: Eventually) -> None:
    sender = make_sender("127.0.0.1:1")
    lifecycle.spawn("sender", sender.run)
    sender.put(numbered_chunk(0))
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
    sender.put(numbered_chunk(0))
    finish(sender, lifecycle)
    assert 100.0 <= replay.requests[-1].chunk.queued_seconds < 110.0
    assert all(0.0 < held_s <= trip_s for trip_s, held_s in noted)
    assert noted


def test_each_lane_group_is_numbered_by_itself_and_the_actor_counts_as_one(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    sender = make_sender(serve(ADD, replay), buffer_chunks=2)
    groups = [[replace(numbered_chunk(i), lane_group=group) for i in range(4)] for group in range(3)]
    lifecycle.spawn("sender", sender.run)
    threads = [threading.Thread(target=lambda mine=mine: [sender.put(chunk) for chunk in mine]) for mine in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    finish(sender, lifecycle)
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
        sender.put(numbered_chunk(number))
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
    finish(sender, lifecycle)
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
        sender.put(numbered_chunk(number))
    finish(sender, lifecycle)
    assert sender.acknowledged_steps == 3 * STEPS
    # What is written at the send is not counted: sequence, ages and counters.
    sizes = [request.chunk.ByteSize() for request in replay.requests]
    assert sum(sizes) - 3 * 64 < sender.acknowledged_bytes <= sum(sizes)
    peer = replay.requests[0].peer
    named = [values["chunk"] for level, event, values in log.lines if event == "a chunk is acknowledged"]
    assert named == [f"actor-0/{peer.incarnation:016x}/{number}" for number in range(3)]
