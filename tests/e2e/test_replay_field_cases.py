"""Field cases of real processes; docs/field-cases.md says which case is which test."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np
import pytest
import safetensors.numpy

from services.common.chunk import TERMINATED, TRUNCATED, VALID
from services.common.rpc import Refused, Unavailable, connect
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.common.sick_lane import load_dump
from services.replay.footprint import rows_for
from services.replay.items import StepOutcome
from services.replay.ring_folder import RingFolder
from services.replay.table import Table, TableSettings
from shoal.v1 import replay_pb2, replay_pb2_grpc
from tests.conftest import Eventually
from tests.e2e.envs import MAD_LANE, SICK_LANE
from tests.e2e.launcher import wait_for
from tests.e2e.test_services import Services
from tests.fakes import RUN_ID, SCHEMA, ReplayPeers, make_chunk
from tests.integration.test_replay_recovery import Replay as ReplayProcess

TURNS = 40  # of the ring
APPLIED = replay_pb2.INSERT_STATUS_APPLIED
BLOCKED = replay_pb2.INSERT_STATUS_BLOCKED
DUPLICATE = replay_pb2.INSERT_STATUS_DUPLICATE
OK = replay_pb2.SAMPLE_STATUS_OK


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., ReplayProcess]]:
    """A replay process of the run; not yet started."""
    made: List[ReplayProcess] = []

    def make(name: str = "one", **changes: Any) -> ReplayProcess:
        (tmp_path / name).mkdir()
        settings = {"run.name": RUN_ID, "replay.data_dir": tmp_path / "rings", "learner.batch_size": 64, **changes}
        made.append(ReplayProcess(tmp_path / name, **settings))
        return made[-1]

    yield make
    for replay in made:
        if replay.process is not None and replay.process.poll() is None:
            replay.end(signal.SIGKILL)


def _facts(items: Dict[int, Any]) -> Dict[int, Tuple[Any, ...]]:
    """All of each item but what time and draws change."""
    names = ("priority", "actor", "n_step_return", "discount", "bootstrap_key", "policy_version")
    return {key: tuple(getattr(item, name) for name in names) for key, item in items.items()}


def _refused_start(replay: ReplayProcess) -> str:
    """What a process that does not come up says."""
    with pytest.raises(AssertionError):
        replay.start()
    assert replay.process is not None
    assert replay.process.wait(10.0) == 2
    said = replay.log.read_text()
    assert "Traceback" not in said
    return said


def test_a_killed_replay_is_as_it_was_and_draws_at_once(process: Any) -> None:
    replay = process(**{"replay.capacity": 1000, "replay.samples_per_insert": 4.0})
    replay.start()
    before = ReplayPeers(replay.stub)
    for sequence in range(8):
        flags = np.full((20, 8), VALID)
        flags[11, :4] |= TERMINATED
        flags[13, 4:] |= TRUNCATED
        chunk = make_chunk(20, 8, sequence=sequence, first_step=20 * sequence, flags=flags, seed=sequence)
        assert before.insert(chunk).status == APPLIED
        for batch in before.draw(4, 64) + before.draw(4, 64):
            before.update(batch.keys, np.arange(64) / 7.0 + sequence)
    last = make_chunk(20, 8, sequence=8, first_step=160, seed=8)
    assert before.insert(last).status == APPLIED  # its record holds the limiter's counts
    info, items = before.info(), before.items()
    assert info.steps.overwritten > 0
    replay.end(signal.SIGKILL)
    began = time.monotonic()
    replay.start()
    after = ReplayPeers(replay.stub)
    batches = after.draw(4, 64)
    assert time.monotonic() - began < 10.0  # with the start of the process
    found = after.info()
    assert "0 inserted - 256 sampled = -256 samples owed" in found.limiter.explanation  # neither side owed anything
    for name in ("capacity_rows", "rows", "num_items", "n_step", "discount", "steps", "schema", "table_id"):
        assert getattr(found, name) == getattr(info, name), name
    assert found.limiter.inserted_items == info.limiter.inserted_items == 9 * 160
    assert found.limiter.sampled_items == info.limiter.sampled_items + 256 == 8 * 512 + 256
    drawn = np.concatenate([batch.keys for batch in batches])
    again = after.items()
    assert _facts(again) == _facts(items)
    assert all(again[key].times_sampled == items[key].times_sampled + (drawn == key).sum() for key in items)
    assert after.insert(last).status == DUPLICATE  # it knows whom it heard
    leaf = {key: item.priority**0.6 for key, item in items.items()}
    for batch in batches:
        want = np.array([leaf[key] for key in batch.keys.tolist()]) / sum(leaf.values())
        np.testing.assert_allclose(batch.probability, want, rtol=1e-9)


def test_a_folder_that_is_used_damaged_or_of_another_schema_is_refused_by_name(process: Any, tmp_path: Path) -> None:
    first = process("first")
    first.start()
    client = ReplayPeers(first.stub)
    client.insert(make_chunk(16, 2))
    kept = client.items()
    used = _refused_start(process("second"))
    assert f"belongs to the process {first.process.pid}, which runs: stop it, or choose another run.name" in used
    assert _facts(client.items()) == _facts(kept)
    first.end(signal.SIGKILL)
    ring = tmp_path / "rings" / RUN_ID
    whole = shutil.copytree(ring, tmp_path / "whole")
    damages: Dict[str, Callable[[bytes], bytes]] = {
        "columns/observation.policy": lambda data: data[:-8],
        "chunks/00000000.log": lambda data: b"x" * 64 + data[64:],
    }
    for number, (name, damage) in enumerate(damages.items()):
        (ring / name).write_bytes(damage((ring / name).read_bytes()))
        said = _refused_start(process(f"damaged-{number}"))
        assert f"{ring / name}' is damaged" in said
        shutil.copyfile(whole / name, ring / name)
    last = process("last")
    last.start()
    client = ReplayPeers(last.stub)
    other = Schema((TensorSpec("policy", "float32", (3,)),), ActionSpec((-2.0,), (3.0,)))
    with pytest.raises(Refused, match="actor-1 has another schema: observation 'camera' is missing there"):
        client.insert(make_chunk(schema=other), "actor-1", schema=other)
    assert _facts(client.items()) == _facts(kept)


def _heap_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


@pytest.mark.parametrize("data_dir", ["", "rings"])
def test_a_byte_budget_sizes_the_table_whose_memory_and_speed_stay_flat(
    process: Any, tmp_path: Path, data_dir: str
) -> None:
    budget = 3 << 20
    replay = process(**{"replay.data_dir": tmp_path / data_dir if data_dir else "", "actor.buffer_chunks": 1})
    at = replay.flags.index("--replay.capacity")
    replay.flags[at : at + 2] = ["--replay.memory", f"{budget}B"]
    replay.start()
    client, rows = ReplayPeers(replay.stub), rows_for(budget, SCHEMA)
    client.insert(make_chunk(0, 8))
    assert client.info().capacity_rows == rows
    assert re.search(rf"the table rows={rows} takes='3\.0 MiB'", replay.log.read_text())
    chunks = [make_chunk(40, 8, seed=seed) for seed in range(8)]
    turns = -(-rows // 320)
    heap: List[int] = []
    seconds: List[List[float]] = []
    for turn in range(TURNS):
        seconds.append([])
        for number in range(turns):
            chunk = chunks[number % 8]
            chunk.sequence = 1 + turn * turns + number
            chunk.first_step = 40 * (chunk.sequence - 1)
            began = time.perf_counter()
            assert client.insert(chunk).status == APPLIED
            seconds[-1].append(time.perf_counter() - began)
            if number % 16 == 0:
                (batch,) = client.draw(1, 64)
                client.update(batch.keys, np.arange(64.0))
        heap.append(_heap_bytes(replay.process.pid))
    assert client.info().steps.acknowledged == TURNS * turns * 320
    print(f"rows {rows}, heap {[size >> 10 for size in heap[::7]]} KiB")
    assert max(heap[-10:]) - max(heap[2:12]) < 1 << 20
    early, late = np.array(seconds[1:11]), np.array(seconds[-10:])
    print(f"p50 {np.median(early):.6f} {np.median(late):.6f} s")
    assert np.median(late) < 2.0 * np.median(early) + 0.002  # coarse: the benchmark compares the tails
    slow = [np.median(np.quantile(part, 0.95, axis=1)) for part in (early, late)]
    print(f"p95 {slow[0]:.6f} {slow[1]:.6f} s")
    assert slow[1] < 3.0 * slow[0] + 0.01


def test_samples_are_answered_in_time_while_a_hundred_writers_push(process: Any, eventually: Eventually) -> None:
    replay = process(**{"replay.samples_per_insert": 1.0, "replay.capacity": 20_000})
    replay.start()
    client, stop = ReplayPeers(replay.stub), threading.Event()
    applied, failures = [0] * 128, []

    def write(number: int) -> None:
        sequence = 0
        try:
            while not stop.is_set():
                chunk = make_chunk(16, 2, sequence=sequence, first_step=16 * sequence)
                answer = client.insert(chunk, f"actor-{number}", 1, wait_s=1.0)
                if answer.status == APPLIED:
                    sequence += 1
                    applied[number] = sequence
                else:
                    assert answer.status == BLOCKED, answer
                    stop.wait(answer.retry_after_seconds)
        except Exception as error:
            failures.append(error)
            raise

    writers = [threading.Thread(target=write, args=(number,)) for number in range(len(applied))]
    for writer in writers:
        writer.start()
    try:
        eventually(lambda: client.info().num_items > 256)
        took: List[float] = []
        begun = time.monotonic()
        # A slow machine takes its time, which p99 judges: the number of calls only makes sure that there is one.
        while time.monotonic() < begun + (3.0 if min(applied) > 0 and len(took) > 20 else 20.0):
            began = time.perf_counter()
            answer = client.sample(4, 64, wait_s=0.3)
            took.append(time.perf_counter() - began)
            assert answer.status == OK or answer.reason
    finally:
        stop.set()
        for writer in writers:
            writer.join(20.0)
    assert not failures
    assert not any(writer.is_alive() for writer in writers)
    p50, p99 = np.quantile(took, [0.5, 0.99])
    print(f"{len(took)} samples, p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms, {sum(applied)} chunks applied")
    assert len(took) > 20
    assert p99 < 1.0
    assert min(applied) > 0  # nobody starves
    steps = client.info().steps
    assert steps.acknowledged == 32 * sum(applied)


# A whole run

SMALL = """
    --env.factory tests.e2e.envs:make_paced --env.kwargs {} --env.lanes 4 --td3.hidden_sizes [8]
    --learner.batch_size 32 --learner.max_updates 1000000
    --replay.samples_per_insert 8 --replay.min_size_to_sample 100 --replay.capacity 20000
"""


class Run(Services):
    """Services of a small run, whose replay can be asked."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._flags += SMALL.split()
        self.address = self._flags[self._flags.index("--replay.addresses") + 1]
        self.channel = connect(self.address)
        self.peers = ReplayPeers(replay_pb2_grpc.ReplayServiceStub(self.channel))
        self.older: List[subprocess.Popen[bytes]] = []

    def start(self, name: str, *flags: str, **how: Any) -> None:
        if name in self.processes:
            self.older.append(self.processes[name])
        super().start(name, *flags, **how)

    def wait_for_training(self) -> None:
        """Until actors act and the learner draws."""

        def look() -> Any:
            for name, process in self.processes.items():
                assert process.poll() is None, self.log(name)
            with contextlib.suppress(Unavailable):
                return self.peers.info().limiter.sampled_items > 2000 or None
            return None

        wait_for(look, "training", 40)

    def end(self, *names: str) -> None:
        """Ask all at once, and see that they obey in time."""
        began = time.monotonic()
        for name in names:
            self.processes[name].send_signal(signal.SIGTERM)
        for name in names:
            assert self.wait(name, 12) == 0, self.log(name)
        assert time.monotonic() - began < 10.0

    def stop(self) -> None:
        self.channel.close()
        for process in self.older:
            if process.poll() is None:
                process.kill()
            process.wait(5)
        super().stop()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.stop()


def _farewell(log: str) -> Tuple[int, int]:
    """Steps that an actor saw acknowledged and dropped, as its last words are."""
    (found,) = re.findall(r"steps acknowledged=(\d+) dropped=(\d+)", log)
    return int(found[0]), int(found[1])


def test_a_frozen_replay_is_said_and_holds_nobodys_stop_up(run: Run) -> None:
    for name in ("replay", "learner", "actor-0", "actor-1"):
        run.start(name)
    run.wait_for_training()
    run.processes["replay"].send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    run.end("actor-1")  # its call is under way
    words = f"waiting for the replay at {run.address}"
    wait_for(lambda: (words in run.log("learner") and words in run.log("actor-0")) or None, words, 12)
    run.end("learner", "actor-0")
    run.processes["replay"].send_signal(signal.SIGCONT)
    info = run.peers.info()
    run.end("replay")
    known = {actor.name: actor for actor in info.actors}
    for name in ("actor-0", "actor-1"):
        acknowledged, dropped = _farewell(run.log(name))
        assert dropped > 0
        assert "steps are dropped at the stop" in run.log(name)
        # A call that was cut off may have been carried out: the actor counts it as dropped.
        assert acknowledged <= known[name].acknowledged_steps <= acknowledged + dropped
        assert "Traceback" not in run.log(name)


def test_a_replay_that_is_gone_for_seconds_holds_actors_or_costs_steps_that_are_counted(
    run: Run, tmp_path: Path
) -> None:
    data_dir = ("--replay.data_dir", str(tmp_path / "rings"))
    run.start("replay", *data_dir)
    run.start("learner")
    run.start("actor-0", "--actor.buffer_chunks", "2")
    run.start("actor-1", "--actor.buffer_chunks", "2", "--actor.on_full", "drop_oldest")
    run.wait_for_training()
    before = {actor.name: actor.acknowledged_steps for actor in run.peers.info().actors}
    run.processes["replay"].kill()
    run.processes["replay"].wait(5)
    time.sleep(3.0)
    for name in ("actor-0", "actor-1", "learner"):
        assert f"waiting for the replay at {run.address}" in run.log(name)
    run.start("replay", *data_dir)

    def look() -> Any:
        with contextlib.suppress(Unavailable):
            actors = {actor.name: actor.acknowledged_steps for actor in run.peers.info().actors}
            return all(actors[name] > before[name] + 400 for name in before) or None
        return None

    wait_for(look, "that both actors go on", 20)
    run.end("actor-0", "actor-1")
    info = run.peers.info()
    for actor in info.actors:
        acknowledged, dropped = _farewell(run.log(actor.name))
        assert actor.acknowledged_steps == acknowledged
        counted = dict(actor.counters.dropped_steps)
        if actor.name == "actor-0":  # held
            assert (dropped, counted) == (0, {})
        else:
            assert dropped == counted["buffer_full"] > 3 * 40
        produced = actor.counters.produced_steps
        assert produced == acknowledged + dropped + actor.counters.buffered_steps
    run.end("learner", "replay")


def test_a_second_actor_of_the_same_name_fences_the_first(run: Run) -> None:
    for name in ("replay", "learner", "actor-0"):
        run.start(name)
    run.wait_for_training()
    run.start("actor-0")
    (older,) = run.older
    assert older.wait(20) == 3
    log = run.log("actor-0")
    assert re.search(r"actor 'actor-0' was started anew as incarnation 0x\w+; this one, 0x\w+, must stop", log)
    assert "Traceback" not in log
    before = run.peers.info()
    wait_for(
        lambda: run.peers.info().steps.acknowledged > before.steps.acknowledged + 400 or None, "the newer one's work"
    )
    assert [actor.name for actor in run.peers.info().actors] == ["actor-0"]
    assert before.steps.lost_tail <= 4  # the older life's last step in each lane
    run.end("actor-0", "learner", "replay")


def test_a_lane_of_nan_is_cut_dumped_and_counted_and_all_else_goes_on(run: Run, tmp_path: Path) -> None:
    sick = ("--env.factory", "tests.e2e.envs:make_sick")
    folders = ("--replay.data_dir", str(tmp_path / "rings"), "--replay.dump_dir", str(tmp_path / "dumps"))
    run.start("replay", *sick, *folders)
    run.start("learner", *sick, "--learner.checkpoint_period_s", "1")
    run.start("actor-0", *sick)
    run.wait_for_training()
    wait_for(lambda: run.peers.info().steps.quarantined > 400 or None, "sick lanes", 20)
    run.end("actor-0", "learner")
    steps = run.peers.info().steps
    assert steps.acknowledged == steps.resident + steps.overwritten + steps.quarantined + steps.lost_tail
    assert steps.acknowledged - steps.quarantined > 2 * steps.quarantined  # two lanes of four are never sick
    run.end("replay")
    assert "lanes are quarantined: values that are not finite" in run.log("replay")
    for name in run.processes:
        assert "Traceback" not in run.log(name)

    dumps = [load_dump(file) for file in sorted((tmp_path / "dumps").iterdir())]
    assert {dump.lane for dump in dumps} == {SICK_LANE, MAD_LANE}
    for dump in dumps:
        assert (dump.actor, dump.policy_version > 0) == ("actor-0", True)
        policy, reward = dump.columns["observation.policy"], dump.columns["reward"]
        assert np.isfinite(policy[:-1]).all()
        if dump.lane == MAD_LANE:
            assert (dump.bad_columns, reward[-1]) == (("reward",), np.inf)
        else:
            assert not np.isfinite(dump.columns["final.observation.policy"]).all() or np.isnan(policy[-1]).all()

    folder = RingFolder.open(tmp_path / "rings" / "by-hand", "test")
    kept = folder.format
    table = Table(
        TableSettings(capacity=kept.capacity, n_step=kept.n_step, discount=kept.discount), kept.schema,
        clock=time.monotonic, folder=folder,
    )  # fmt: skip
    assert table.check_valid() is None
    ring = table.store.ring
    items = ring.status == StepOutcome.ITEM
    assert items.sum() > 200
    for name in ("observation.policy", "action", "reward"):
        assert np.isfinite(ring.column(name)).all(), name
    for name in ("n_step_return", "discount", "priority"):
        assert np.isfinite(ring.column(name)[items]).all(), name
    folder.close()
    newest = sorted((run.run_folder / "checkpoints").iterdir())[-1]
    for name, tensor in safetensors.numpy.load_file(newest).items():
        assert np.isfinite(tensor).all(), name
