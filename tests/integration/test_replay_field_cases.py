"""Field cases of the replay over real connections; docs/field-cases.md says which case is which test."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np
import pytest

from services.common.chunk import TERMINATED, TRUNCATED, VALID, Chunk
from services.common.config.load import load
from services.common.ring_layout import RingFormat
from services.common.rpc import Caller, call_once, connect
from services.learner.importance import importance_weights
from services.replay import servicer
from services.replay.__main__ import table_settings
from services.replay.admission import InsertStatus
from services.replay.ring_folder import RingFolder
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import replay_pb2, replay_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, SCHEMA, FakeLog, ReplayPeers, make_chunk

APPLIED = replay_pb2.INSERT_STATUS_APPLIED
BLOCKED = replay_pb2.INSERT_STATUS_BLOCKED
DUPLICATE = replay_pb2.INSERT_STATUS_DUPLICATE
WAITING = replay_pb2.SAMPLE_STATUS_WAITING


class Served(ReplayPeers):
    """A served replay, its peers, and the table behind it."""

    def __init__(self, settings: TableSettings, serve: Serve) -> None:
        self.servicer = ReplayServicer(
            run_id=RUN_ID,
            incarnation=99,
            make_table=lambda schema: Table(settings, schema, clock=time.monotonic),
            log=FakeLog(),
            fail=lambda error: pytest.fail(str(error)),
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


def _counted(sequence: int, T: int, end: int) -> Chunk:  # noqa: N803 (the field's letter)
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
    chi_square = ((counts - expected) ** 2 / expected).sum()
    return bool(chi_square < freedom + 4.0 * np.sqrt(2.0 * freedom))


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
    drawn = [key for _ in range(4) for batch in replay.draw(1, 64) for key in batch.keys.tolist()]
    assert drawn == list(range(256))
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
    from services.replay.sampler_settings import SamplerSettings

    return {"sampling": SamplerSettings(max_times_sampled=max_times_sampled)}


LIMITED = {
    "samples_per_insert": 1.0, "error_buffer": 64.0, "max_chunk_steps": 16, "max_batch_size": 16, "max_num_batches": 1
}  # fmt: skip


def _insert_until_blocked(replay: ReplayPeers) -> Tuple[Chunk, Any]:
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
    monkeypatch.setattr(servicer, "MAX_WAIT_S", 3.0)
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
    assert all(2.9 < seconds < 10.0 for seconds, _ in waits)
    assert all(answer.reason for _, answer in waits)


def test_a_chunk_that_is_sent_three_times_at_once_counts_once(start: Any) -> None:
    replay = start(capacity=1024)
    replay.insert(make_chunk(0, 2))
    for sequence in range(1, 21):
        chunk = make_chunk(8, 2, sequence=sequence, first_step=8 * (sequence - 1), seed=sequence)
        with ThreadPoolExecutor(3) as threads:
            answers = list(threads.map(replay.insert, [chunk] * 3))
        assert sorted(answer.status for answer in answers) == [APPLIED, DUPLICATE, DUPLICATE]
        assert {answer.next_sequence for answer in answers} == {sequence + 1}
    steps, items = replay.info().steps, replay.items()
    assert (steps.acknowledged, steps.items, steps.unripe) == (320, 318, 2)
    assert len(items) == 318
    assert len({(item.n_step_return, item.policy_version) for item in items.values()}) == 318


def test_no_call_is_made_without_a_deadline() -> None:
    """Every call goes through `call_once` or `Caller.call`, which ask for one; none is made on a stub itself."""
    for call in (call_once, Caller.call):
        assert inspect.signature(call).parameters["timeout_s"].default is inspect.Parameter.empty
    made_directly = re.compile(r"[sS]tub(\([^()]*\))?\.[A-Z]\w+\(")
    assert made_directly.search("self._stub.Insert(request)")
    assert made_directly.search("ReplayServiceStub(channel).GetInfo(request)")
    root = Path(servicer.__file__).parents[1]
    sources = {file: file.read_text() for file in root.rglob("*.py")}
    assert sum("call_once(" in source or "_caller.call(" in source for source in sources.values()) >= 3
    for file, source in sources.items():
        assert not made_directly.search(source), file


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
    ballast = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
    os.posix_fallocate(ballast, 0, shutil.disk_usage(disk).free)
    os.close(ballast)
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
    (waiter,) = table.info().waiters  # whoever asks who waits, and why, is told
    assert (waiter.peer_name, waiter.call, waiter.reason) == ("a", "Insert", answer.reason)
    assert table.sample(1, 16, max_wait_s=0.0).reason == ""  # who draws is not held up
    assert table.info().steps.acknowledged == 2 * sequence
    (disk / "ballast").unlink()
    assert table.insert("a", 1, chunk, max_wait_s=0.0).status is InsertStatus.APPLIED
    assert table.info().waiters == []
    assert table.check_valid() is None
    folder.close()
    folder = RingFolder.open(disk / "ring", "abc", 1 << 18)
    again = Table(settings, SCHEMA, clock=time.monotonic, folder=folder)
    assert again.info().steps.acknowledged == 2 * (sequence + 1)
    assert again.check_valid() is None
    folder.close()


# The page


def test_every_case_on_the_page_names_tests_that_exist() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "field-cases.md").read_text(encoding="utf-8")
    short = dict(re.findall(r"^\| (\w+) \| `(tests/[^`]+)`", page, re.MULTILINE))
    assert set(short) == {"oracle", "wire", "process", "gradients", "helpers", "parameters", "services", "up"}
    rows = re.findall(r"^\| (.+) \|$", page, re.MULTILINE)
    cases = [row for row in rows if "test_" in row and row.split(" | ")[0] not in short]
    named = 0
    for row in cases:
        found = [(short[name], test) for name, test in re.findall(r"(\w+) `(test_\w+)`", row)]
        found += re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
        assert found, row
        named += len(found)
        for file, test in found:
            assert f"\ndef {test}(" in (root / file).read_text(encoding="utf-8"), f"{file}::{test}"
    assert named > 60
