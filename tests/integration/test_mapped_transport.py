"""A learner on the replay's host: keys over gRPC, rows from the mapped ring."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional

import numpy as np
import pytest

from services.common.batch import DrawnKeys
from services.common.errors import UserError
from services.common.lifecycle import Lifecycle
from services.common.peer import Peer
from services.common.ring_layout import RingFormat
from services.common.rpc import Server, Unavailable, call_once, connect
from services.learner import replay_client
from services.learner.replay_client import ReplayClient
from services.learner.ring_rows import RingRows, attach
from services.replay.chunk_log import RingBroken
from services.replay.registration import add_to_server
from services.replay.ring_folder import RingFolder
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import SCHEMA, FakeLog, make_chunk

CAPACITY, N, K = 256, 16, 4
ADD = add_to_server


class MappedReplay:
    """A replay whose ring lies in a folder; it can be ended and started again at one address."""

    def __init__(self, folder: Path, address: str) -> None:
        self._path = folder
        self._address = address
        self._incarnation = 0
        self.server: Optional[Server] = None
        self.table: Any = None

    def start(self) -> None:
        self._incarnation += 1
        nonce = f"{self._incarnation:016x}"
        if self._path.exists():
            folder = RingFolder.open(self._path, nonce)
        else:
            folder = RingFolder.create(self._path, RingFormat("test-run", SCHEMA, CAPACITY, 1, 0.9, "", 1.0), nonce)
        settings = TableSettings(
            CAPACITY, n_step=1, discount=0.9, max_batch_size=N, max_num_batches=K, min_size_to_sample=N
        )
        self.table = Table(settings, SCHEMA, clock=time.monotonic, folder=folder)
        servicer = ReplayServicer(
            run_id="test-run",
            incarnation=self._incarnation,
            make_table=lambda _schema: pytest.fail("there is one"),
            log=FakeLog(),
            fail=pytest.fail,
            table=self.table,
        )
        self.server = Server(self._address, max_workers=8, option_name="x")
        self.server.add(ADD, servicer)
        self.server.start()

    def fill(self, sequence: int = 0) -> None:
        made = make_chunk(16, 4, sequence=sequence, first_step=16 * sequence, version=5, seed=sequence)
        assert self.table.insert("actor-0", 1, made, max_wait_s=0.0).status == 1

    def end(self) -> None:
        assert self.server is not None
        self.server.stop(0)
        self.table.note_state()
        self.table.folder.close()
        self.server = None


@pytest.fixture
def replay(tmp_path: Path, free_address: Callable[[], str]) -> Iterator[MappedReplay]:
    made = MappedReplay(tmp_path / "ring", free_address())
    made.start()
    made.fill()
    yield made
    if made.server is not None:
        made.end()


@pytest.fixture
def make_client(lifecycle: Lifecycle, log: FakeLog, replay: MappedReplay) -> Iterator[Callable[..., ReplayClient]]:
    made: List[ReplayClient] = []

    def make(transport: str = "mapped", address: str = "") -> ReplayClient:
        client = ReplayClient(
            address or replay._address,
            peer=Peer("test-run", experience_pb2.ROLE_LEARNER, "learner"),
            batch_size=N,
            batches_per_sample=K,
            samples_in_flight=2,
            transport=transport,
            rng=np.random.default_rng(0),
            newest=lambda: (1, 1),
            lifecycle=lifecycle,
            log=log,
        )
        made.append(client)
        return client

    yield make
    lifecycle.stop("the test is over")
    lifecycle.join()
    for client in made:
        client.close()


def _compare(table: Table, batch: Any) -> None:
    for at, key in enumerate(batch.keys):
        item: Any = table.inspector.item(int(key))
        assert item.n_step_return == batch.n_step_return[at]
        assert item.discount == batch.discount[at]
        assert batch.policy_version[at] == 5
        np.testing.assert_array_equal(batch.action[at], item.columns["action"])
        for name in batch.observation:
            np.testing.assert_array_equal(batch.observation[name][at], item.columns[f"observation.{name}"])
            np.testing.assert_array_equal(batch.next_observation[name][at], item.columns[f"next_observation.{name}"])


def _draw_until_priorities_arrive(client: ReplayClient, replay: MappedReplay) -> None:
    """Draws carry the priorities of those before them, and several are under way."""
    until = time.monotonic() + 10
    while replay.table.info().sampling.updates["applied"] == 0:
        assert time.monotonic() < until
        client.report(client.next(), np.ones(N, np.float32))


def test_rows_from_the_ring_are_those_of_the_table(make_client: Any, replay: MappedReplay) -> None:
    client = make_client("mapped")
    client.start(SCHEMA)
    for _ in range(3 * K):
        drawn = client.next()
        assert len(drawn.batch) == N
        assert drawn.table_id == replay.table.table_id
        _compare(replay.table, drawn.batch)
        client.report(drawn, np.full(N, 3.0, np.float32))
    assert client.overwritten == 0
    _draw_until_priorities_arrive(client, replay)


def test_large_rows_are_gathered_batch_by_batch_out_of_one_call(
    make_client: Any, replay: MappedReplay, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    row_bytes = sum(2 * spec.num_bytes for spec in SCHEMA.observation)
    monkeypatch.setattr(replay_client, "MAX_ROW_BYTES", N * row_bytes)
    monkeypatch.setattr(replay_client, "MAX_WAITING_BYTES", 2 * N * row_bytes)
    client = make_client("mapped")
    client.start(SCHEMA)
    eventually(lambda: client.depth >= 2)
    sampled = replay.table.info().limiter.sampled_items
    assert sampled % (K * N) == 0  # calls ask for K batches as ever
    assert client.depth <= 2 + 2  # what waited, and what the two threads were gathering
    for _ in range(3 * K):
        drawn = client.next()
        assert len(drawn.batch) == N
        _compare(replay.table, drawn.batch)


def test_a_replay_that_comes_back_is_attached_to_anew_and_keeps_its_keys(
    make_client: Any, replay: MappedReplay, log: FakeLog
) -> None:
    client = make_client("auto")
    client.start(SCHEMA)
    table_id = client.next().table_id
    replay.end()
    replay.start()
    until = time.monotonic() + 20
    attached = 0
    while attached < 2 and time.monotonic() < until:
        drawn = client.next()
        assert drawn.table_id == table_id
        client.report(drawn, np.ones(N, np.float32))
        attached = sum("rows come from the mapped ring" in str(line) for line in log.lines)
    assert attached == 2
    _compare(replay.table, client.next().batch)
    _draw_until_priorities_arrive(client, replay)


def test_without_a_proof_of_the_same_host_no_key_is_given(make_client: Any, replay: MappedReplay) -> None:
    client = make_client()
    for nonce in ("", "0" * 16):
        request = replay_pb2.SampleRequest(
            peer=client._peer.to_proto(SCHEMA.digest),
            num_batches=1,
            batch_size=N,
            transport=replay_pb2.TRANSPORT_MAPPED,
            nonce=nonce,
        )
        answer = client._stub.Sample(request, timeout=5)
        assert answer.status == replay_pb2.SAMPLE_STATUS_UNPROVEN
        assert not answer.HasField("items")
        assert "nonce" in answer.reason


def test_a_ring_of_another_host_has_its_rows_sent_or_is_refused(
    make_client: Any, replay: MappedReplay, tmp_path: Path, log: FakeLog
) -> None:
    nonce = tmp_path / "ring" / "nonce"
    nonce.write_text("another host's")
    client = make_client("auto")
    client.start(SCHEMA)
    _compare(replay.table, client.next().batch)
    assert any("rows come over gRPC" in str(line) for line in log.lines)
    with pytest.raises(UserError, match=r"learner\.transport is mapped, but the ring .* its nonce is another"):
        make_client("mapped").start(SCHEMA)


def test_overwritten_items_are_replaced_and_counted(replay: MappedReplay, tmp_path: Path) -> None:
    rows = RingRows(tmp_path / "ring", f"{1:016x}", np.random.default_rng(0))
    for sequence in range(1, 4):
        replay.fill(sequence)
    drawn = replay.table.sample(1, N, max_wait_s=0.0, with_rows=False).drawn
    oldest = int(np.median(drawn.keys))
    sequence = 4
    while replay.table.store.ring.oldest_key <= oldest:  # overwrite about half of what was drawn
        replay.fill(sequence)
        sequence += 1
    gone = drawn.keys < replay.table.store.ring.oldest_key
    assert 0 < gone.sum() < N
    batch: Any = rows.gather(drawn, num_items=100)
    assert rows.overwritten == gone.sum()
    assert len(batch) == N
    assert set(batch.keys) <= set(drawn.keys[~gone])
    np.testing.assert_array_equal(batch.keys[~gone], drawn.keys[~gone])
    _compare(replay.table, batch)
    everything = DrawnKeys(*(np.tile(getattr(drawn, n)[gone][:1], N) for n in (
        "keys", "probability", "priority", "times_sampled", "bootstrap_keys")))  # fmt: skip
    assert rows.gather(everything, num_items=100) is None


def test_a_replay_in_memory_has_no_ring_to_attach_to() -> None:
    with pytest.raises(UserError, match=r"keeps its ring in memory: set replay\.data_dir"):
        attach(replay_pb2.GetReplayInfoResponse(), np.random.default_rng(0))


def test_rows_from_the_ring_come_with_the_same_stamps_as_over_grpc(make_client: Any, replay: MappedReplay) -> None:
    replay.table.set_newest(1, 1)
    replay.fill(1)
    for transport in ("mapped", "grpc"):
        client = make_client(transport)
        client.start(SCHEMA)
        batch = client.next().batch
        assert batch.stamps is not None
        second = batch.keys >= 64
        assert second.any()
        assert (batch.stamps.arrival_version == np.where(second, 1, 0)).all()
        assert batch.stamps.actor_names == ("actor-0",)
        assert (batch.stamps.ring_s > 0).all()


def test_a_version_that_cannot_be_written_down_ends_the_replay_and_the_learner_asks_again(
    replay: MappedReplay, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: List[UserError] = []
    servicer = ReplayServicer(
        run_id="test-run",
        incarnation=1,
        make_table=lambda _schema: pytest.fail("there is one"),
        log=FakeLog(),
        fail=failed.append,
        table=replay.table,
    )
    monkeypatch.setattr(replay.table.folder.log, "append", _broken)
    peer = Peer("test-run", experience_pb2.ROLE_LEARNER, "learner").to_proto(SCHEMA.digest)
    request = replay_pb2.SampleRequest(peer=peer, num_batches=1, batch_size=4, newest_version=3, updates=30)
    channel = connect(serve(ADD, servicer))
    with pytest.raises(Unavailable, match="the replay ends: the disk is gone"):
        call_once(replay_pb2_grpc.ReplayServiceStub(channel).Sample, request, timeout_s=5.0)
    channel.close()
    assert [str(error) for error in failed] == ["the disk is gone"]
    monkeypatch.undo()


def _broken(_record: bytes) -> None:
    raise RingBroken("the disk is gone")
