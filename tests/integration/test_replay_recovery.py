"""A real replay is killed at random instants under load; what it acknowledged is there again, and nothing is twice."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import pytest

from services.common.chunk import TRUNCATED, VALID, Chunk, FinalObservations
from services.common.codec import encode_chunk, encode_schema
from services.common.errors import UserError
from services.common.peer import Peer
from services.common.ring_layout import NONCE_FILE
from services.common.ring_reader import RingReader
from services.common.rpc import Refused, Unavailable, call_once, connect
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.replay.inspect_folder import main as inspect
from services.replay.ring_folder import RingFolder
from services.replay.table import Table, TableSettings
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc
from tests.e2e.launcher import with_flags

NUM_KILLS = 50
CAPACITY = 6000  # the ring wraps several times in a life
STEPS, LANES = 40, 8
SCHEMA = Schema((TensorSpec("policy", "float32", (23,)),), ActionSpec((-1.0,), (1.0,)))


class Replay:
    """One replay process after another, on one folder."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        settings = {"run.name": "r", "replay.capacity": CAPACITY, "replay.data_dir": folder / "rings", **changes}
        settings.update({"replay.addresses": "127.0.0.1:0", "replay.metrics_port": 0, "replay.min_size_to_sample": 1})
        settings.update({"actor.chunk_steps": STEPS, "env.lanes": LANES, "actor.count": 2})
        self.flags = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
        self.log = folder / "log"
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.stub: Any = None
        self.channel: Any = None

    def start(self, *flags: str) -> None:
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.replay", *with_flags(self.flags, flags)],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            )
        until = time.monotonic() + 60.0
        while not (found := re.search(r"replay listens address=(\S+)", self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.01)
        self.channel = connect(found.group(1))
        self.stub = replay_pb2_grpc.ReplayServiceStub(self.channel)

    def end(self, how: signal.Signals, callers: Sequence[Inserter] = ()) -> int:
        """Signal the process, and wait for its end and that of `callers`: then nobody needs the channel."""
        assert self.process is not None
        self.process.send_signal(how)
        status = self.process.wait(30.0)
        for caller in callers:
            caller.join()
        if self.channel is not None:
            self.channel.close()
        return status

    def info(self, peer: Peer) -> replay_pb2.GetReplayInfoResponse:
        request = replay_pb2.GetReplayInfoRequest(peer=peer.to_proto())
        response: replay_pb2.GetReplayInfoResponse = call_once(self.stub.GetInfo, request, timeout_s=10.0)
        return response


@pytest.fixture
def replay(tmp_path: Path) -> Any:
    made = Replay(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.end(signal.SIGKILL)


class Inserter:
    """An actor that sends chunks without a pause and knows what was acknowledged."""

    def __init__(self, name: str) -> None:
        self.peer = Peer("r", experience_pb2.ROLE_ACTOR, name)
        self.acknowledged = 0  # chunks
        self.doubled: List[str] = []
        self._sequence = 0
        self._unsure = False  # whether the last call was cut off
        self._thread: Optional[threading.Thread] = None

    def run(self, stub: Any) -> None:
        self._thread = threading.Thread(target=self._send, args=(stub,))
        self._thread.start()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(30.0)
        assert not self._thread.is_alive()

    def _send(self, stub: Any) -> None:
        """Send until the replay is gone."""
        while True:
            request = replay_pb2.InsertRequest(
                peer=self.peer.to_proto(SCHEMA.digest),
                schema=encode_schema(SCHEMA),
                chunk=encode_chunk(chunk(self._sequence)),
                max_wait_seconds=1.0,
            )
            try:
                answer = call_once(stub.Insert, request, timeout_s=10.0)
            except Unavailable:
                self._unsure = True
                return
            if answer.status == replay_pb2.INSERT_STATUS_DUPLICATE:
                if not self._unsure:
                    self.doubled.append(f"sequence {self._sequence}")
            elif answer.status != replay_pb2.INSERT_STATUS_APPLIED:
                self.doubled.append(f"{answer.status} {answer.reason}")
                return
            self._unsure = False
            self._sequence += 1
            self.acknowledged = self._sequence


def chunk(sequence: int) -> Chunk:
    """A chunk whose rewards and observations hold the number of their step."""
    number = STEPS * sequence + np.arange(STEPS)
    flags = np.full((STEPS, LANES), VALID, np.uint8)
    flags[number % 25 == 24] |= TRUNCATED
    step = np.flatnonzero(flags & TRUNCATED)
    column = np.repeat(number[:, None], LANES, 1).astype(np.float32)
    return Chunk(
        0,
        sequence,
        STEPS * sequence,
        {"policy": np.repeat(column[..., None], 23, 2)},
        np.zeros((STEPS, LANES, 1), np.float32),
        column,
        flags,
        np.zeros(STEPS, np.int64),
        np.zeros((STEPS, LANES), np.float32),
        np.zeros((STEPS, LANES), np.float32),
        FinalObservations(
            step, {"policy": np.full((len(step), 23), -1.0, np.float32)}, np.zeros(len(step), np.float32),
            np.zeros(len(step), np.bool_),
        ),
    )  # fmt: skip


def _look_inside(folder: Path) -> None:
    """Open the dead replay's ring here, and look at every row."""
    copy = RingFolder.open(folder, "test")
    ring_format = copy.format
    settings = TableSettings(capacity=CAPACITY, n_step=ring_format.n_step, discount=ring_format.discount)
    table = Table(settings, SCHEMA, clock=time.monotonic, folder=copy)
    assert table.check_valid() is None
    ring = table.store.ring
    items = np.flatnonzero(ring.status == 2)
    assert (ring.observation["policy"][items] == ring.reward[items][:, None]).all()
    assert ((ring.n_step_return[items] > 0) | (ring.reward[items] == 0)).all()
    copy.close()


@pytest.mark.timeout(600)
def test_killed_at_random_instants_it_loses_and_doubles_nothing(replay: Replay) -> None:
    rng = random.Random(5)
    inserters = [Inserter("a"), Inserter("b")]
    operator = Peer("r", experience_pb2.ROLE_OPERATOR, "test")
    lives_at_work = 0
    slowest_start_s = 0.1  # from the start of the inserters to the first acknowledgement, as seen so far
    for life in range(NUM_KILLS + 1):
        replay.start()
        info = replay.info(operator)
        # A cut-off call may or may not have been carried out; everything else is exactly known.
        known: Dict[str, int] = {actor.name: actor.acknowledged_steps for actor in info.actors}
        for inserter in inserters if life else []:
            steps = known.get(inserter.peer.name, 0)
            assert steps in {STEPS * LANES * (inserter.acknowledged + extra) for extra in (0, 1)}, life
        assert info.steps.acknowledged == sum(known.values())
        steps = info.steps
        assert steps.acknowledged == (
            steps.resident + steps.overwritten + steps.reset + steps.quarantined + steps.lost_tail
        )
        assert steps.reset == 0
        if life == NUM_KILLS:
            break
        before = sum(inserter.acknowledged for inserter in inserters)
        for inserter in inserters:
            inserter.run(replay.stub)
        began = time.monotonic()
        until = began + 10.0
        # Half of the lives end at work for sure, on however slow a machine; the others may end before the first chunk.
        while life % 2 and sum(i.acknowledged for i in inserters) == before and time.monotonic() < until:
            time.sleep(0.001)
        if life % 2:
            slowest_start_s = max(slowest_start_s, time.monotonic() - began)
        time.sleep(rng.uniform(0.0, 3.0 * slowest_start_s))
        replay.end(signal.SIGKILL, inserters)
        for inserter in inserters:
            assert inserter.doubled == []
        lives_at_work += sum(inserter.acknowledged for inserter in inserters) > before
        if life % 5 == 0:
            _look_inside(replay.folder / "rings" / "r")
    assert replay.end(signal.SIGTERM) == 0
    print(f"{NUM_KILLS} kills, {sum(i.acknowledged for i in inserters)} chunks acknowledged")
    assert lives_at_work > NUM_KILLS // 2  # some of those that might have ended before were at work too


def test_a_replay_shows_its_folder_takes_snapshots_and_comes_back_with_other_settings(
    replay: Replay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = Peer("r", experience_pb2.ROLE_OPERATOR, "test")
    replay.start()
    assert replay.info(operator).mapped_folder == ""  # nobody has said yet what a step looks like
    inserter = Inserter("a")
    inserter.run(replay.stub)
    while inserter.acknowledged < 5:
        time.sleep(0.01)
    info = replay.info(operator)
    folder = Path(info.mapped_folder)
    assert folder == tmp_path / "rings" / "r"
    assert Path(info.nonce_file) == folder / NONCE_FILE
    assert RingReader(folder, f"{info.replay_incarnation:016x}").committed > 0
    request = replay_pb2.SnapshotRequest(peer=operator.to_proto(), folder=str(tmp_path / "rings" / "copy"))
    answer = call_once(replay.stub.Snapshot, request, timeout_s=30.0)
    assert answer.steps > 0
    with pytest.raises(Refused, match="exists; a snapshot overwrites nothing"):
        call_once(replay.stub.Snapshot, request, timeout_s=30.0)
    assert inspect([str(folder), "--check"]) == 0
    assert f"by process {replay.process.pid}" in capsys.readouterr().out
    assert inspect([str(tmp_path / "rings" / "copy"), "--check"]) == 0
    assert replay.end(signal.SIGTERM) == 0
    inserter.join()
    with pytest.raises(UserError, match="its nonce is another"):
        RingReader(folder, "0" * 16)
    for flags in (("--replay.n_step", "5"), ("--run.name", "copy")):
        replay.start(*flags)
        operator = Peer("", experience_pb2.ROLE_OPERATOR, "test")
        assert replay.info(operator).steps.acknowledged > 0
        assert replay.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--replay.capacity", "7000"), "has 6000 rows, the run file asks for 7000"),
        (("--replay.data_dir", "/proc/none"), ""),
    ],
)
def test_what_does_not_fit_ends_it_with_a_sentence(replay: Replay, flags: Any, sentence: str) -> None:
    replay.start()
    inserter = Inserter("a")
    inserter.run(replay.stub)
    while inserter.acknowledged < 1:
        time.sleep(0.01)
    replay.end(signal.SIGKILL)
    inserter.join()
    if sentence:
        with pytest.raises(AssertionError, match=sentence):
            replay.start(*flags)
        assert replay.process.wait(10.0) == 2
    else:  # the folder is made when the first actor comes: the replay ends then, and the actor is asked to wait
        replay.start(*flags)
        second = Inserter("b")
        second.run(replay.stub)
        second.join()
        assert second.acknowledged == 0
        assert replay.process.wait(10.0) == 2
        assert "shoal replay: '/proc/none/r' cannot be written" in replay.log.read_text()
