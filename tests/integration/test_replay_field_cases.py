"""Field cases of the replay over real connections and in real processes; docs/field-cases.md says which is which."""

from __future__ import annotations

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

from services.common.chunk import TERMINATED, TRUNCATED, VALID, Chunk
from services.common.codec import decode_batch, encode_chunk, encode_schema
from services.common.config.load import load
from services.common.peer import Peer
from services.common.ring_layout import RingFormat
from services.common.rpc import Refused, Unavailable, call_once, connect
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.learner.importance import importance_weights
from services.replay import servicer
from services.replay.__main__ import table_settings
from services.replay.admission import InsertStatus
from services.replay.footprint import rows_for
from services.replay.ring_folder import RingFolder
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, SCHEMA, FakeLog, make_chunk
from tests.integration.test_replay_recovery import Replay as ReplayProcess

APPLIED = replay_pb2.INSERT_STATUS_APPLIED
BLOCKED = replay_pb2.INSERT_STATUS_BLOCKED
DUPLICATE = replay_pb2.INSERT_STATUS_DUPLICATE
OK = replay_pb2.SAMPLE_STATUS_OK
WAITING = replay_pb2.SAMPLE_STATUS_WAITING


class Client:
    """An actor, a learner and an operator at a replay, in one."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.table_id = 0  # of the last draw

    def insert(
        self, chunk: Chunk, actor: str = "actor-0", incarnation: int = 1, schema: Schema = SCHEMA, wait_s: float = 0.0
    ) -> Any:
        peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, actor, incarnation).to_proto(schema.digest)
        request = replay_pb2.InsertRequest(
            peer=peer, schema=encode_schema(schema), chunk=encode_chunk(chunk), max_wait_seconds=wait_s
        )
        return call_once(self.stub.Insert, request, timeout_s=15.0)

    def sample(self, batches: int = 1, size: int = 16, wait_s: float = 0.0) -> Any:
        peer = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "learner").to_proto(SCHEMA.digest)
        request = replay_pb2.SampleRequest(peer=peer, num_batches=batches, batch_size=size, max_wait_seconds=wait_s)
        response = call_once(self.stub.Sample, request, timeout_s=15.0)
        self.table_id = response.table_id
        return response

    def draw(self, batches: int = 1, size: int = 16) -> List[Any]:
        response = self.sample(batches, size)
        assert response.status == OK, response.reason
        return [decode_batch(message, response.num_items) for message in response.batches]

    def update(self, keys: Any, td_error: Any) -> Any:
        """The result, with the outcome of each."""
        updates = replay_pb2.PriorityUpdates(
            table_id=self.table_id,
            keys=np.asarray(keys, np.int64).tobytes(),
            td_error=np.asarray(td_error, np.float64).tobytes(),
        )
        peer = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "learner").to_proto(SCHEMA.digest)
        request = replay_pb2.UpdatePrioritiesRequest(peer=peer, priorities=updates)
        return call_once(self.stub.UpdatePriorities, request, timeout_s=15.0).result

    def info(self) -> Any:
        peer = Peer(RUN_ID, experience_pb2.ROLE_OPERATOR, "test").to_proto()
        return call_once(self.stub.GetInfo, replay_pb2.GetReplayInfoRequest(peer=peer), timeout_s=15.0)

    def items(self) -> Dict[int, Any]:
        """All items by key."""
        peer = Peer(RUN_ID, experience_pb2.ROLE_OPERATOR, "test").to_proto()
        request = replay_pb2.InspectRequest(peer=peer, order=replay_pb2.INSPECT_ORDER_OLDEST, max_items=10**6)
        found = call_once(self.stub.Inspect, request, timeout_s=15.0).items
        assert len({item.key for item in found}) == len(found)
        return {item.key: item for item in found}


class Served(Client):
    """The same, with the table behind it at hand."""

    def __init__(self, settings: TableSettings, serve: Serve) -> None:
        self.servicer = ReplayServicer(
            run_id=RUN_ID,
            incarnation=99,
            make_table=lambda schema: Table(settings, schema, clock=time.monotonic),
            log=FakeLog(),
            fail=pytest.fail,
        )
        address = serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, self.servicer)
        self.channel = connect(address)
        super().__init__(replay_pb2_grpc.ReplayServiceStub(self.channel))

    @property
    def table(self) -> Table:
        assert self.servicer.table is not None
        return self.servicer.table


@pytest.fixture
def start(serve: Serve) -> Iterator[Callable[..., Served]]:
    started: List[Served] = []

    def make(*flags: str, **settings: Any) -> Served:
        """A served table of these settings, or of what the flags of a run file come to."""
        if flags:
            config = load(None, list(flags)).config
            chosen = table_settings(config, config.replay.capacity_rows or 0)
        else:
            values = {"capacity": 256, "n_step": 1, "discount": 0.5, "max_batch_size": 64, "max_num_batches": 4}
            chosen = TableSettings(**{**values, **settings})
        started.append(Served(chosen, serve))
        return started[-1]

    yield make
    for served in started:
        served.channel.close()


# Boundaries of episodes

EPISODE_STEPS = 4
KINDS = {"terminal": TERMINATED, "time_out": TRUNCATED, "both": TERMINATED | TRUNCATED}


def _counted(sequence: int, T: int, end: int) -> Chunk:
    """Steps whose observation is their number and whose reward is a power of 3; each fourth ends an episode."""
    number = T * sequence + np.arange(T)
    ends = number % EPISODE_STEPS == EPISODE_STEPS - 1
    flags = np.repeat((VALID | np.where(ends, end, 0))[:, None], 2, 1)
    chunk = make_chunk(T, 2, sequence=sequence, first_step=T * sequence, flags=flags)
    chunk.observation["policy"][:] = np.stack(np.broadcast_arrays(number[:, None], [0, 1]), -1)
    chunk.reward[:] = 3.0 ** (number % 9)[:, None]
    chunk.final.observation["policy"][:] = np.stack([number[chunk.final.step // 2] + 0.5, chunk.final.step % 2], -1)
    return chunk


@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("end", list(KINDS))
def test_what_is_drawn_around_the_seam_of_a_full_ring_is_right(start: Any, end: str, n_step: int) -> None:
    replay = start(capacity=37, n_step=n_step, max_batch_size=37, max_num_batches=1)
    T, phases, seams = 5, set(), 0
    for sequence in range(16):
        assert replay.insert(_counted(sequence, T, KINDS[end])).status == APPLIED
        steps_so_far = T * (sequence + 1)
        # Of the last n - 1 steps none is dropped, and none is an item before its time.
        waits = [s for s in range(steps_so_far - T, steps_so_far) if s // 4 == steps_so_far // 4]
        waits = [s for s in waits if s + n_step >= steps_so_far]
        counters = replay.info().steps
        assert (counters.unripe, counters.lost_tail) == (2 * len(waits), 0)
        assert counters.resident + counters.overwritten == 2 * steps_so_far
        assert len(replay.items()) == counters.resident - counters.unripe
        for batch in replay.draw(1, 37):
            for i, (start_step, lane) in enumerate(batch.observation["policy"].astype(int).tolist()):
                last = start_step - start_step % EPISODE_STEPS + EPISODE_STEPS - 1
                k = min(n_step, last - start_step + 1)
                ended = start_step + k - 1 == last
                assert batch.n_step_return[i] == sum(0.5**j * 3.0 ** ((start_step + j) % 9) for j in range(k))
                assert batch.discount[i] == (0.0 if ended and end != "time_out" else 0.5**k)
                bootstrap = last + 0.5 if ended else start_step + k
                assert batch.next_observation["policy"][i].tolist() == [bootstrap, lane]
                phases.add(start_step % EPISODE_STEPS)
                slot = int(batch.keys[i]) % 37
                seams += int(replay.table.store.ring.bootstrap_key[slot]) % 37 < slot
    assert phases == {0, 1, 2, 3}
    assert seams > 5  # windows that go on at the ring's first row


# Priorities


def _fits(counts: Any, chance: Any) -> bool:
    """One-sided, since strata make draws less spread than multinomial ones."""
    expected = chance / chance.sum() * counts.sum()
    freedom = len(chance) - 1
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return chi_square < freedom + 4.0 * np.sqrt(2.0 * freedom)


SIZES = "--learner.batch_size 64 --replay.min_size_to_sample 1 --replay.n_step 1 --env.lanes 1 --actor.chunk_steps 300"


@pytest.mark.parametrize("selector", ["prioritized", "uniform", "visits"])
def test_a_run_files_selector_is_what_draws_over_the_wire(start: Any, selector: str) -> None:
    flags = {
        "prioritized": [],
        "uniform": ["--replay.selector", "uniform"],
        "visits": ["--replay.priority_rule", "td_error_visits", "--replay.td_weight", "1"],
    }[selector]
    replay = start(*flags, *SIZES.split(), "--replay.priority_exponent", "0.7")
    replay.insert(make_chunk(51, 1))
    replay.draw()
    p = np.linspace(0.1, 4.0, 50) ** 2
    assert replay.update(np.arange(50), p).applied == 50
    counts = np.zeros(50)
    for _ in range(45):
        for batch in replay.draw(4, 64):
            np.add.at(counts, batch.keys, 1)
    by_priority, alike = (p + 1e-6) ** 0.7, np.ones(50)
    assert _fits(counts, alike if selector == "uniform" else by_priority)
    assert not _fits(counts, by_priority if selector == "uniform" else alike)


def test_a_run_files_queue_gives_every_item_once_in_its_order(start: Any) -> None:
    replay = start("--replay.selector", "fifo", "--replay.max_times_sampled", "1", *SIZES.split())
    replay.insert(make_chunk(300, 1))
    drawn = [batch.keys.tolist() for _ in range(4) for batch in replay.draw(1, 64)]
    assert sum(drawn, []) == list(range(256))
    assert replay.sample(1, 64).status == WAITING  # 43 are left


def test_a_first_priority_is_the_actors_td_error_and_a_broken_critic_does_no_harm(start: Any) -> None:
    replay = start(n_step=3)
    chunk = make_chunk(9, 1)
    chunk.q_taken[5, 0], chunk.q_taken[2, 0], chunk.value[4, 0] = np.nan, np.inf, -np.inf  # 0 * log 0, and worse
    assert replay.insert(chunk).status == APPLIED
    r, q, v = (column[:, 0].astype(np.float64) for column in (chunk.reward, chunk.q_taken, chunk.value))
    items = replay.items()
    assert set(items) == set(range(6))
    for key in (0, 3, 4):
        want = abs(r[key] + 0.5 * r[key + 1] + 0.25 * r[key + 2] + 0.125 * v[key + 3] - q[key]) + 1e-6
        assert items[key].priority == pytest.approx(want, rel=1e-6)
    for key in (1, 2, 5):  # what bootstraps from the broken value, and what was taken at a broken one
        assert items[key].priority == 1.0  # nothing was resident yet
    assert all(np.isfinite(batch.probability).all() for batch in replay.draw(4, 64))


def test_a_mixed_batch_is_answered_item_by_item_and_the_run_goes_on(start: Any) -> None:
    replay = start()
    replay.insert(make_chunk(11, 1))
    (before,) = replay.draw()
    answer = replay.update(np.arange(8), [np.nan, -1.0, 0.0, np.inf, 1e308, 1e-320, 2.0, -np.inf])
    assert list(answer.outcome) == [3, 3, 1, 3, 1, 1, 1, 3]
    items = replay.items()
    assert [items[key].priority for key in (2, 4, 5, 6)] == [1e-6, 1e10, 1e-6, 2.0 + 1e-6]
    untouched = dict(zip(before.keys.tolist(), before.priority.tolist()))
    assert all(items[key].priority == untouched[key] for key in (0, 1, 3, 7) if key in untouched)
    tree = replay.table.store.sampler.tree
    assert tree.total == pytest.approx(tree.leaves(np.arange(256)).sum(), rel=1e-12)
    assert replay.update(np.arange(10), np.ones(10)).applied == 10
    counts = np.zeros(10)
    for _ in range(10):
        for batch in replay.draw(4, 64):
            np.add.at(counts, batch.keys, 1)
    assert _fits(counts, np.ones(10))


def test_a_late_update_of_a_reused_slot_is_stale_and_the_new_item_untouched(start: Any) -> None:
    replay = start(capacity=16, max_batch_size=16)
    replay.insert(make_chunk(16, 1))
    (drawn,) = replay.draw()
    for sequence in (1, 2):
        replay.insert(make_chunk(10, 1, sequence=sequence, first_step=6 + 10 * sequence, seed=sequence))
    before = {key: (item.priority, item.times_sampled) for key, item in replay.items().items()}
    assert min(before) > max(drawn.keys)
    answer = replay.update(drawn.keys, np.full(16, 1e6))
    assert (answer.stale, answer.applied) == (16, 0)
    assert {key: (item.priority, item.times_sampled) for key, item in replay.items().items()} == before


def test_importance_weights_are_divided_by_the_batchs_largest(start: Any) -> None:
    replay = start()
    replay.insert(make_chunk(65, 1))
    replay.draw()
    td_error = np.concatenate(([1e9, 1e9], np.full(62, 1e-9)))
    replay.update(np.arange(64), td_error)
    replay.update(np.arange(8, 64), np.full(56, 1e8))
    (batch,) = replay.draw(1, 64)
    weights = importance_weights(batch, 1.0)
    p = (np.where(batch.keys < 2, 1e9, np.where(batch.keys < 8, 1e-9, 1e8)) + 1e-6) ** 0.6
    np.testing.assert_allclose(weights, p.min() / p, rtol=1e-5)
    assert weights.max() == 1.0
    assert weights.min() < 0.3


# Calls and their waits


def test_a_batch_larger_than_the_table_is_answered_in_time(start: Any) -> None:
    replay = start(min_size_to_sample=1)
    replay.insert(make_chunk(4, 1))
    assert [len(batch) for batch in replay.draw(4, 64)] == [64] * 4  # of three items, each many times
    worn = start(max_batch_size=8, max_num_batches=1, capacity=64, **_limited_draws(2))
    worn.insert(make_chunk(4, 1))
    began = time.monotonic()
    answer = worn.sample(1, 8, wait_s=0.3)  # three items stand six draws
    assert 0.25 < time.monotonic() - began < 5.0
    assert answer.status == WAITING
    assert "3 items stand 6 more draws by max_times_sampled, and 8 are asked for" in answer.reason


def _limited_draws(max_times_sampled: int) -> Dict[str, Any]:
    from services.replay.sampler import SamplerSettings

    return {"sampling": SamplerSettings(max_times_sampled=max_times_sampled)}


LIMITED = {
    "samples_per_insert": 1.0, "error_buffer": 64.0, "max_chunk_steps": 16, "max_batch_size": 16, "max_num_batches": 1
}  # fmt: skip


def _insert_until_blocked(replay: Client) -> Tuple[Chunk, Any]:
    for sequence in range(1, 100):
        chunk = make_chunk(8, 2, sequence=sequence, first_step=8 * sequence)
        answer = replay.insert(chunk, wait_s=0.2)
        if answer.status == BLOCKED:
            return chunk, answer
        assert answer.status == APPLIED
    raise AssertionError("the limiter holds nobody")


def test_a_held_call_is_seen_says_why_and_comes_back_in_time(
    start: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "MAX_WAIT_S", 1.5)
    replay = start(**LIMITED)
    replay.insert(make_chunk(0, 2))
    waits: List[Tuple[float, Any]] = []

    def timed(call: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            began = time.monotonic()
            answer = call()
            waits.append((time.monotonic() - began, answer))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    thread = timed(lambda: replay.sample(wait_s=1e9))  # for ever, if it could
    eventually(lambda: [w.call for w in replay.info().waiters] == ["Sample"])
    assert "min_size_to_sample" in replay.info().waiters[0].reason
    thread.join()
    chunk, answer = _insert_until_blocked(replay)
    sentence = (
        r"inserts are \d+ samples ahead and 16 more steps x samples_per_insert 1 would pass the error_buffer of 64"
    )
    assert re.search(sentence, answer.reason)
    thread = timed(lambda: replay.insert(chunk, wait_s=1e9))
    eventually(lambda: [(w.peer_name, w.call) for w in replay.info().waiters] == [("actor-0", "Insert")])
    assert re.search(sentence, replay.info().waiters[0].reason)
    assert replay.info().limiter.insert_blocked
    thread.join()
    assert [answer.status for _, answer in waits] == [WAITING, BLOCKED]
    assert all(1.4 < seconds < 8.0 for seconds, _ in waits)
    assert all(answer.reason for _, answer in waits)


def test_a_chunk_that_is_sent_three_times_at_once_counts_once(start: Any) -> None:
    replay = start(capacity=1024)
    replay.insert(make_chunk(0, 2))
    for sequence in range(1, 21):
        chunk = make_chunk(8, 2, sequence=sequence, first_step=8 * (sequence - 1), seed=sequence)
        answers: List[Any] = []
        threads = [threading.Thread(target=lambda c=chunk: answers.append(replay.insert(c))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answer.status for answer in answers) == [APPLIED, DUPLICATE, DUPLICATE]
        assert {answer.next_sequence for answer in answers} == {sequence + 1}
    steps, items = replay.info().steps, replay.items()
    assert (steps.acknowledged, steps.items, steps.unripe) == (320, 318, 2)
    assert len(items) == 318
    assert len({(item.n_step_return, item.policy_version) for item in items.values()}) == 318


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    mounted: List[Path] = []

    def mount(size: str) -> Path:
        target = tmp_path / f"disk-{len(mounted)}"
        target.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(target)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            pytest.skip(f"NOT TESTED: a full disk; this user may not mount ({answer.stderr.strip()})")
        mounted.append(target)
        return target

    yield mount
    for target in mounted:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


def test_a_disk_that_fills_up_holds_inserts_with_a_reason_and_loses_nothing(small_disk: Any) -> None:
    disk = small_disk("3m")
    ring_format = RingFormat("run", SCHEMA, 512, 1, 0.5, "", 0.0)
    folder = RingFolder.create(disk / "ring", ring_format, "abc", 1 << 18)
    settings = TableSettings(capacity=512, n_step=1, discount=0.5, max_batch_size=16)
    table = Table(settings, SCHEMA, clock=time.monotonic, folder=folder)
    with pytest.raises(OSError, match="No space left"), (disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
    sequence = 0
    while True:
        chunk = make_chunk(2, 1, sequence=sequence, first_step=2 * sequence)
        answer = table.insert("a", 1, chunk, max_wait_s=0.0)
        if answer.status is not InsertStatus.APPLIED:
            break
        sequence += 1
        assert sequence < 20_000
    assert answer.status is InsertStatus.BLOCKED
    assert re.search(r"no space is left for '.*/ring/chunks/00000001\.log', and the chunk log needs", answer.reason)
    assert answer.retry_after_s > 0.0
    assert table.sample(1, 16, max_wait_s=0.0).reason == ""  # who draws is not held up
    assert table.info().steps.acknowledged == 2 * sequence
    (disk / "ballast").unlink()
    assert table.insert("a", 1, chunk, max_wait_s=0.0).status is InsertStatus.APPLIED
    assert table.check_valid() is None
    folder.close()
    folder = RingFolder.open(disk / "ring", "abc", 1 << 18)
    again = Table(settings, SCHEMA, clock=time.monotonic, folder=folder)
    assert again.info().steps.acknowledged == 2 * (sequence + 1)
    assert again.check_valid() is None
    folder.close()


# Real processes


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
    before = Client(replay.stub)
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
    after = Client(replay.stub)
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
    client = Client(first.stub)
    client.insert(make_chunk(16, 2))
    kept = client.items()
    used = _refused_start(process("second"))
    assert f"belongs to the process {first.process.pid}, which runs: stop it, or choose another run.name" in used
    assert _facts(client.items()) == _facts(kept)
    first.end(signal.SIGKILL)
    ring = tmp_path / "rings" / RUN_ID
    whole = shutil.copytree(ring, tmp_path / "whole")
    for number, (name, damage) in enumerate(
        {
            "columns/observation.policy": lambda file: file.write_bytes(file.read_bytes()[:-8]),  # truncated
            "chunks/00000000.log": lambda file: file.write_bytes(b"x" * 64 + file.read_bytes()[64:]),
        }.items()
    ):
        damage(ring / name)
        said = _refused_start(process(f"damaged-{number}"))
        assert f"{ring / name}' is damaged" in said
        shutil.copyfile(whole / name, ring / name)
    last = process("last")
    last.start()
    client = Client(last.stub)
    other = Schema((TensorSpec("policy", "float32", (3,)),), ActionSpec((-2.0,), (3.0,)))
    with pytest.raises(Refused, match="actor-1 has another schema: observation 'camera' is missing there"):
        client.insert(make_chunk(schema=other), "actor-1", schema=other)
    assert _facts(client.items()) == _facts(kept)


def test_a_disk_too_small_for_the_ring_ends_the_process_with_a_sentence(process: Any, small_disk: Any) -> None:
    disk = small_disk("1m")
    replay = process(**{"replay.data_dir": disk, "replay.capacity": 100_000})
    replay.start()
    with pytest.raises(Unavailable, match="the ring of 100000 rows takes"):  # the actor is to try again
        Client(replay.stub).insert(make_chunk())
    assert replay.process.wait(10.0) == 2
    said = replay.log.read_text()
    assert re.search(r"shoal replay: the ring of 100000 rows takes .* MiB, and '.*' has .* left: free some space", said)
    assert "Traceback" not in said
    assert list(disk.iterdir()) == []


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
    client, rows = Client(replay.stub), rows_for(budget, SCHEMA)
    client.insert(make_chunk(0, 8))
    assert client.info().capacity_rows == rows
    assert re.search(rf"the table rows={rows} takes='3\.0 MiB'", replay.log.read_text())
    chunks = [make_chunk(40, 8, seed=seed) for seed in range(8)]
    turns = -(-rows // 320)
    heap: List[int] = []
    seconds: List[List[float]] = []
    for turn in range(50):
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
    assert client.info().steps.acknowledged == 50 * turns * 320
    print(f"rows {rows}, heap {[size >> 10 for size in heap[::7]]} KiB")
    assert max(heap[40:]) - max(heap[2:12]) < 1 << 20
    early, late = np.array(seconds[1:11]), np.array(seconds[40:])
    print(f"p50 {np.median(early):.6f} {np.median(late):.6f} s")
    assert np.median(late) < 1.5 * np.median(early) + 0.001  # coarse: the benchmark compares the tails
    slow = [np.median(np.quantile(part, 0.95, axis=1)) for part in (early, late)]
    print(f"p95 {slow[0]:.6f} {slow[1]:.6f} s")
    assert slow[1] < 3.0 * slow[0] + 0.01


def test_samples_are_answered_in_time_while_a_hundred_writers_push(process: Any, eventually: Eventually) -> None:
    replay = process(**{"replay.samples_per_insert": 1.0, "replay.capacity": 20_000})
    replay.start()
    client, stop = Client(replay.stub), threading.Event()
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
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            began = time.perf_counter()
            answer = client.sample(4, 64, wait_s=1.0)
            took.append(time.perf_counter() - began)
            assert answer.status == OK, answer.reason
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
