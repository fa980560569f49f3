"""The replay behind a real server: what goes in over the wire comes out as items, and odd callers get a sentence."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any, Dict, List

import numpy as np
import pytest

from services.common.batch import Batch
from services.common.chunk import TERMINATED, TRUNCATED, VALID, Chunk
from services.common.codec import decode_schema, decode_tensor, encode_chunk, encode_schema
from services.common.moments import decode_moments
from services.common.peer import Peer
from services.common.rpc import Refused, Unavailable, call_once, connect
from services.common.sample_codec import decode_batch
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.common.stamps_codec import StampSource
from services.replay.registration import add_to_server
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, SCHEMA, FakeLog, make_chunk

DISCOUNT = 0.5


class Replay:
    """A served replay and a stub that asks it over a real connection."""

    def __init__(self, **settings: Any) -> None:
        values: Dict[str, Any] = {
            "capacity": 256,
            "n_step": 2,
            "discount": DISCOUNT,
            "max_batch_size": 64,
            "max_num_batches": 4,
        }
        whole = TableSettings(**{**values, **settings})
        self.log = FakeLog()
        self.servicer = ReplayServicer(
            run_id=RUN_ID,
            incarnation=99,
            make_table=lambda schema: Table(whole, schema, clock=time.monotonic),
            log=self.log,
            fail=pytest.fail,
            on_damaged=lambda: self.damaged.append(1),
        )
        self.damaged: List[int] = []
        self.stub: Any = None
        self.actor = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0")
        self.learner = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "learner")

    @property
    def table(self) -> Table:
        assert self.servicer.table is not None
        return self.servicer.table

    def insert(self, chunk: Chunk, schema: Any = SCHEMA, max_wait_s: float = 0.0, **changes: Any) -> Any:
        request = replay_pb2.InsertRequest(
            peer=self.actor.to_proto(SCHEMA.digest),
            schema=encode_schema(schema) if schema else None,
            chunk=encode_chunk(chunk),
            max_wait_seconds=max_wait_s,
        )
        for name, value in changes.items():
            setattr(request.chunk, name, value)
        return call_once(self.stub.Insert, request, timeout_s=10)

    def sample(self, batches: int = 1, size: int = 8, max_wait_s: float = 0.0, **changes: Any) -> Any:
        request = replay_pb2.SampleRequest(
            peer=self.learner.to_proto(SCHEMA.digest),
            num_batches=batches,
            batch_size=size,
            max_wait_seconds=max_wait_s,
            **changes,
        )
        return call_once(self.stub.Sample, request, timeout_s=10)

    def info(self) -> Any:
        return call_once(self.stub.GetInfo, replay_pb2.GetReplayInfoRequest(peer=self.learner.to_proto()), timeout_s=10)

    def inspect(self, **values: Any) -> Any:
        request = replay_pb2.InspectRequest(peer=self.learner.to_proto(), **values)
        return call_once(self.stub.Inspect, request, timeout_s=10)


@pytest.fixture
def start(serve: Serve) -> Any:
    channels: List[Any] = []

    def make(**settings: Any) -> Replay:
        replay = Replay(**settings)
        address = serve(add_to_server, replay.servicer)
        channels.append(connect(address))
        replay.stub = replay_pb2_grpc.ReplayServiceStub(channels[-1])
        return replay

    yield make
    for channel in channels:
        channel.close()


@pytest.fixture
def replay(start: Any) -> Replay:
    made: Replay = start()
    return made


APPLIED = replay_pb2.INSERT_STATUS_APPLIED


def _batch_of(response: Any) -> Batch:
    return decode_batch(response.items.SerializeToString(), response.num_items)


def test_items_are_exact(replay: Replay) -> None:
    # Lane 0 is truncated at its second step, lane 1 terminates at its third.
    flags = np.full((4, 2), VALID)
    flags[1, 0] |= TRUNCATED
    flags[2, 1] |= TERMINATED
    chunk = make_chunk(4, 2, flags=flags, version=3)
    assert replay.insert(chunk).status == APPLIED
    r, o = chunk.reward, chunk.observation["policy"]
    final = dict(zip(chunk.final.step.tolist(), chunk.final.observation["policy"]))
    want = {  # by first observation: (return, discount, next observation or None behind a termination)
        (0, 0): (r[0, 0] + DISCOUNT * r[1, 0], DISCOUNT**2, final[2]),
        (1, 0): (r[1, 0], DISCOUNT, final[2]),
        (0, 1): (r[0, 1] + DISCOUNT * r[1, 1], DISCOUNT**2, o[2, 1]),
        (1, 1): (r[1, 1] + DISCOUNT * r[2, 1], 0.0, None),
        (2, 1): (r[2, 1], 0.0, None),
    }
    response = replay.sample(4, 64)
    assert response.status == replay_pb2.SAMPLE_STATUS_OK
    assert response.num_items == len(want)
    seen = set()
    for batch in _batch_of(response).split(64):
        for i in range(len(batch)):
            (at,) = [at for at in want if (o[at] == batch.observation["policy"][i]).all()]
            n_step_return, discount, following = want[at]
            assert batch.n_step_return[i] == pytest.approx(n_step_return)
            assert batch.discount[i] == pytest.approx(discount)
            if following is not None:
                np.testing.assert_array_equal(batch.next_observation["policy"][i], following)
            np.testing.assert_array_equal(batch.action[i], chunk.action[at])
            np.testing.assert_array_equal(batch.observation["camera"][i], chunk.observation["camera"][at])
            assert batch.policy_version[i] == 3
            seen.add(at)
    assert seen == set(want)


def test_the_schema_is_asked_for_once(replay: Replay) -> None:
    assert not replay.info().HasField("schema")
    first = replay.insert(make_chunk(), schema=None)
    assert first.status == replay_pb2.INSERT_STATUS_NEED_SCHEMA
    assert replay.insert(make_chunk()).status == APPLIED
    assert replay.insert(make_chunk(sequence=1, first_step=4), schema=None).status == APPLIED
    assert decode_schema(replay.info().schema) == SCHEMA


def test_a_resend_is_a_duplicate_and_a_jump_is_out_of_order(replay: Replay) -> None:
    assert replay.insert(make_chunk()).status == APPLIED
    again = replay.insert(make_chunk())
    assert again.status == replay_pb2.INSERT_STATUS_DUPLICATE
    assert again.next_sequence == 1
    assert replay.insert(make_chunk(sequence=5, first_step=4)).status == replay_pb2.INSERT_STATUS_OUT_OF_ORDER
    assert replay.info().steps.acknowledged == 8


def test_priorities_travel_with_the_next_sample(replay: Replay) -> None:
    replay.insert(make_chunk(8, 2))
    drawn = _batch_of(replay.sample(1, 4))
    keys = np.unique(drawn.keys)[:2]
    errors = np.array([4.0, np.nan])
    updates = replay_pb2.PriorityUpdates(table_id=replay.table.table_id, keys=keys.tobytes(), td_error=errors.tobytes())
    result = replay.sample(1, 4, priorities=updates, newest_version=12, updates=120).priority_result
    assert (result.applied, result.rejected, result.stale) == (1, 1, 0)
    item = replay.inspect(one=True, key=int(keys[0])).items[0]
    assert item.priority == pytest.approx(4.0 + 1e-6)
    assert replay.info().newest_version == 12
    assert replay.insert(make_chunk(sequence=1, first_step=8)).newest_version == 12


def test_priorities_of_another_life_of_the_replay_are_stale(replay: Replay) -> None:
    replay.insert(make_chunk(8, 2))
    drawn = _batch_of(replay.sample(1, 4))
    before = replay.inspect(one=True, key=int(drawn.keys[0])).items[0].priority
    updates = replay_pb2.PriorityUpdates(table_id=98, keys=drawn.keys.tobytes(), td_error=np.full(4, 9.0).tobytes())
    request = replay_pb2.UpdatePrioritiesRequest(peer=replay.learner.to_proto(SCHEMA.digest), priorities=updates)
    result = call_once(replay.stub.UpdatePriorities, request, timeout_s=5).result
    assert (result.applied, result.stale) == (0, 4)
    assert replay.inspect(one=True, key=int(drawn.keys[0])).items[0].priority == before


def test_an_item_in_full_shows_its_columns(replay: Replay) -> None:
    chunk = make_chunk(4, 1)
    replay.insert(chunk)
    oldest = replay.inspect(order=replay_pb2.INSPECT_ORDER_OLDEST, max_items=1)
    assert {histogram.name for histogram in oldest.histograms} >= {"priority", "age_seconds"}
    item = replay.inspect(one=True, key=oldest.items[0].key).items[0]
    columns = {tensor.name: decode_tensor(tensor) for tensor in item.columns}
    np.testing.assert_array_equal(columns["observation.policy"], chunk.observation["policy"][0, 0])
    np.testing.assert_array_equal(columns["next_observation.policy"], chunk.observation["policy"][2, 0])
    assert item.actor == "actor-0"
    assert not replay.inspect(one=True, key=10**6).items


def test_quarantined_lanes_are_told(replay: Replay) -> None:
    chunk = make_chunk(4, 2)
    chunk.reward[2, 1] = np.nan
    response = replay.insert(chunk)
    assert response.status == APPLIED
    assert list(response.quarantined_lanes) == [1]
    steps = replay.info().steps
    assert (steps.acknowledged, steps.quarantined) == (8, 4)
    assert any("quarantined" in event for event in replay.log.events("warning"))


def test_an_actor_whose_lanes_are_all_sick_does_not_flood_the_log(replay: Replay) -> None:
    for sequence in range(5):
        chunk = make_chunk(4, 2, sequence=sequence, first_step=4 * sequence)
        chunk.reward[2] = np.nan
        assert replay.insert(chunk).status == APPLIED
    assert sum("lanes are quarantined" in event for event in replay.log.events("warning")) == 1
    assert sum("every lane of an actor is quarantined" in event for event in replay.log.events("error")) == 1


def test_a_sample_before_the_first_actor_waits_and_says_why(replay: Replay) -> None:
    response = replay.sample()
    assert response.status == replay_pb2.SAMPLE_STATUS_WAITING
    assert "no actor has introduced itself yet" in response.reason
    answers: List[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(replay.sample(max_wait_s=8.0)))
    waiting.start()
    assert replay.insert(make_chunk()).status == APPLIED  # wakes it
    waiting.join(8)
    assert [answer.status for answer in answers] == [replay_pb2.SAMPLE_STATUS_OK]


def test_waits_are_seen_and_end_with_the_stop(start: Any, eventually: Eventually) -> None:
    replay = start(min_size_to_sample=100)
    replay.insert(make_chunk())
    answers: List[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(replay.sample(max_wait_s=9.0)))
    waiting.start()
    eventually(lambda: len(replay.info().waiters) == 1)
    (waiter,) = replay.info().waiters
    assert (waiter.peer_name, waiter.call) == ("learner", "Sample")
    assert "min_size_to_sample" in waiter.reason
    assert replay.info().limiter.sample_blocked
    replay.servicer.interrupt("the replay is stopping")
    waiting.join(5)
    assert [answer.reason for answer in answers] == ["the replay is stopping"]


def test_conservation_holds_over_the_wire(replay: Replay) -> None:
    for i in range(60):
        replay.insert(make_chunk(sequence=i, first_step=4 * i, seed=i))
    steps = replay.info().steps
    assert steps.acknowledged == 60 * 8
    assert steps.overwritten > 0
    lost = steps.overwritten + steps.reset + steps.quarantined + steps.lost_tail
    assert steps.acknowledged == steps.resident + lost
    assert replay.table.check_valid() is None
    (actor,) = replay.info().actors
    assert (actor.name, actor.incarnation) == ("actor-0", replay.actor.incarnation)
    assert actor.acknowledged_steps == 480


def test_damaged_and_odd_chunks_are_turned_away(replay: Replay) -> None:
    replay.insert(make_chunk())
    chunk = make_chunk(sequence=1, first_step=4)
    with pytest.raises(Unavailable, match="CRC32C"):  # may be sent again
        replay.insert(chunk, crc32c=1)
    assert len(replay.damaged) == 1
    with pytest.raises(Refused, match="the chunk is refused: column 'reward' has 32 bytes"):
        replay.insert(chunk, num_steps=5, crc32c=0)
    with pytest.raises(Refused, match="the chunk claims 4294967295 x 2 steps"):
        replay.insert(chunk, num_steps=2**32 - 1, crc32c=0)
    chunk.action = chunk.action.astype(np.float64)
    with pytest.raises(Refused, match="column 'action' is float64"):
        replay.insert(chunk)
    assert replay.insert(make_chunk(sequence=1, first_step=4)).status == APPLIED
    assert len(replay.damaged) == 1
    name = f"actor-0/{replay.actor.incarnation:016x}"
    named = [(level, event, values["chunk"]) for level, event, values in replay.log.lines if "chunk" in values]
    assert named == [
        ("debug", "a chunk is applied", f"{name}/0"),
        ("warning", "a chunk was damaged on its way", f"{name}/1"),
        *[("warning", "a chunk is refused", f"{name}/1")] * 3,
        ("debug", "a chunk is applied", f"{name}/1"),
    ]


def test_an_item_tells_the_chunk_that_brought_it(replay: Replay) -> None:
    for sequence in range(3):
        replay.insert(make_chunk(sequence=sequence, first_step=4 * sequence))
    names = {item.key: item.chunk for item in replay.inspect(max_items=100).items}
    assert names[0] == f"actor-0/{replay.actor.incarnation:016x}/0"
    assert names[9] == f"actor-0/{replay.actor.incarnation:016x}/1"
    assert replay.inspect(one=True, key=9).items[0].chunk == names[9]


def test_a_hostile_tensor_is_refused_in_a_sentence(replay: Replay) -> None:
    message = encode_chunk(make_chunk())
    message.crc32c = 0
    message.action.shape[:] = [0, 2**31, 2**31, 2**31]
    message.action.data = b""
    request = replay_pb2.InsertRequest(
        peer=replay.actor.to_proto(SCHEMA.digest), schema=encode_schema(SCHEMA), chunk=message
    )
    with pytest.raises(Refused, match="the chunk is refused: tensor 'action' has the impossible shape"):
        call_once(replay.stub.Insert, request, timeout_s=5)


def test_another_schema_is_refused_with_the_difference(replay: Replay) -> None:
    replay.insert(make_chunk())
    other = Schema((TensorSpec("policy", "float32", (3,)),), ActionSpec((-2.0,), (3.0,)))
    replay.actor = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-1")
    request = replay_pb2.InsertRequest(
        peer=replay.actor.to_proto(other.digest),
        schema=encode_schema(other),
        chunk=encode_chunk(make_chunk(schema=other)),
    )
    with pytest.raises(Refused, match="actor-1 has another schema: observation 'camera' is missing there"):
        call_once(replay.stub.Insert, request, timeout_s=5)
    peer = replay.learner.to_proto(other.digest)
    with pytest.raises(Refused, match="differs from the actors'"):
        call_once(replay.stub.Sample, replay_pb2.SampleRequest(peer=peer, num_batches=1, batch_size=1), timeout_s=5)


def test_impossible_draws_are_refused(replay: Replay) -> None:
    replay.insert(make_chunk())
    with pytest.raises(Refused, match="batches of 65 items were asked for"):
        replay.sample(1, 65)
    answer = replay.sample(transport=replay_pb2.TRANSPORT_MAPPED)
    assert answer.status == replay_pb2.SAMPLE_STATUS_UNPROVEN
    assert "keeps its ring in memory" in answer.reason
    assert not answer.HasField("items")
    updates = replay_pb2.PriorityUpdates(table_id=1, keys=bytes(16), td_error=bytes(8))
    with pytest.raises(Refused, match=r"column 'priorities\.td_error' has 8 bytes"):
        replay.sample(priorities=updates)


def test_peers_of_another_run_are_refused_by_every_call(replay: Replay) -> None:
    replay.insert(make_chunk())
    peer = Peer("other", experience_pb2.ROLE_ACTOR, "actor-0").to_proto()
    calls = {
        "Insert": replay_pb2.InsertRequest(peer=peer),
        "Sample": replay_pb2.SampleRequest(peer=peer),
        "UpdatePriorities": replay_pb2.UpdatePrioritiesRequest(peer=peer),
        "GetInfo": replay_pb2.GetReplayInfoRequest(peer=peer),
        "Inspect": replay_pb2.InspectRequest(peer=peer),
        "Snapshot": replay_pb2.SnapshotRequest(peer=peer),
    }
    for name, request in calls.items():
        with pytest.raises(Refused, match="belongs to run 'other', this service to run 'test-run'"):
            call_once(getattr(replay.stub, name), request, timeout_s=5)


def test_a_snapshot_is_refused_with_the_reason(replay: Replay) -> None:
    request = replay_pb2.SnapshotRequest(peer=replay.learner.to_proto(), folder="x")
    with pytest.raises(Refused, match="no actor has introduced itself"):
        call_once(replay.stub.Snapshot, request, timeout_s=5)
    replay.insert(make_chunk())
    with pytest.raises(Refused, match=r"takes no snapshots: set replay\.data_dir"):
        call_once(replay.stub.Snapshot, request, timeout_s=5)


def test_the_answer_says_where_an_items_age_comes_from(replay: Replay) -> None:
    chunk = dataclasses.replace(make_chunk(4, 2, version=3), newest_version=4, acting_seconds=2.0, queued_seconds=1.0)
    replay.insert(chunk)
    response = replay.sample(2, 8)
    assert response.held_seconds > 0.0
    assert response.actor_names == ["actor-0"]
    source = StampSource(response.sampling_version, tuple(response.actor_names))
    stamps = decode_batch(response.items.SerializeToString(), response.num_items, source).stamps
    assert stamps is not None
    assert set(stamps.acting_s.tolist()) <= {2.0, 1.5, 1.0, 0.5}
    assert (stamps.transit_s >= 1.0).all()
    assert (stamps.ring_s > 0.0).all()
    assert (stamps.known_version == 0).all()  # no newer than what the replay knew at the draw


def test_an_insert_says_how_long_it_was_held(replay: Replay) -> None:
    began_s = time.monotonic()
    response = replay.insert(make_chunk(4, 2))
    assert 0.0 < response.held_seconds < time.monotonic() - began_s


def test_moments_come_if_they_are_asked_for(start: Any) -> None:
    replay = start(with_moments=True)
    chunk = make_chunk()
    replay.insert(chunk)
    request = replay_pb2.GetReplayInfoRequest(peer=replay.learner.to_proto())
    assert not call_once(replay.stub.GetInfo, request, timeout_s=10).moments
    request.with_moments = True
    moments = decode_moments(call_once(replay.stub.GetInfo, request, timeout_s=10).moments)
    assert set(moments) == {"policy"}  # no camera
    rows = chunk.observation["policy"].reshape(-1, 2)
    assert moments["policy"].count == len(rows)
    np.testing.assert_allclose(moments["policy"].mean, rows.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(moments["policy"].deviation(), rows.std(axis=0), rtol=1e-6)
