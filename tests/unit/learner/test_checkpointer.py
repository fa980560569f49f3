from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, List, Mapping, Optional

import numpy as np
import pytest

from services.common.errors import UserError
from services.common.lifecycle import Lifecycle
from services.common.metrics import Metrics
from services.common.rpc import Stopped
from services.learner.checkpoint import Checkpoint, CheckpointFolder
from services.learner.checkpoint_metrics import CheckpointMetrics
from services.learner.checkpointer import Checkpointer
from tests.conftest import Eventually
from tests.fakes import FakeClock, FakeLog
from tests.unit.learner.test_checkpoint import _at


def _metrics(clock: FakeClock, metrics: Optional[Metrics] = None) -> CheckpointMetrics:
    return CheckpointMetrics(metrics or Metrics("learner", "run-a"), period_s=5.0, clock=clock)


class Folder(CheckpointFolder):
    """Keeps what was begun and what was saved; `gate` holds a write, `fault` fails it."""

    def __init__(self) -> None:
        self.begun: List[int] = []
        self.saved: List[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fault = ""

    def save(self, checkpoint: Checkpoint) -> None:
        self.begun.append(checkpoint.progress.updates)
        assert self.gate.wait(10)
        if self.fault:
            raise UserError(self.fault)
        self.saved.append(checkpoint.progress.updates)


class Taker:
    """The loop's state: a number that grows."""

    def __init__(self) -> None:
        self.updates = 0
        self.spares: List[Any] = []

    def __call__(self, spare: Any) -> Checkpoint:
        self.spares.append(spare)
        state = {"updates": np.zeros((), np.int64)} if spare is None else spare
        state["updates"][...] = self.updates
        return replace(_at(self.updates), state=state)


@pytest.fixture
def parts(clock: FakeClock, lifecycle: Lifecycle) -> Any:
    folder, take = Folder(), Taker()
    checkpointer = Checkpointer(folder, take, period_s=5.0, clock=clock, lifecycle=lifecycle, metrics=_metrics(clock))
    return folder, take, checkpointer


def test_one_is_written_each_period_beside_the_loop(parts: Any, clock: FakeClock, eventually: Eventually) -> None:
    folder, take, checkpointer = parts
    for take.updates in range(1, 11):
        clock.now_s += 1
        checkpointer.save_if_due()
        eventually(lambda: len(folder.saved) == take.updates // 5)
        eventually(checkpointer._idle.is_set)
    assert folder.saved == [5, 10]


def test_memory_is_filled_again_only_once_its_checkpoint_is_written(
    parts: Any, clock: FakeClock, eventually: Eventually
) -> None:
    folder, take, checkpointer = parts
    folder.gate.clear()
    for take.updates in (1, 2, 3):  # the first is not written yet: the others are put off
        clock.now_s += 5
        checkpointer.save_if_due()
    assert len(take.spares) == 2  # one at the start, for its memory
    assert take.spares[0] is None
    folder.gate.set()
    eventually(checkpointer._idle.is_set)
    clock.now_s += 5
    checkpointer.save_if_due()
    eventually(checkpointer._idle.is_set)
    checkpointer.finish()
    assert take.spares[1] is not None
    assert all(spare is take.spares[1] for spare in take.spares[2:])
    assert len(take.spares) == 4
    assert folder.saved == [1, 3, 3]


def test_a_stop_with_one_on_its_way_takes_memory_of_its_own(parts: Any, clock: FakeClock) -> None:
    folder, take, checkpointer = parts
    checkpointer._done.set()  # the thread has ended when the next one is handed to it
    checkpointer._thread.join()
    clock.now_s += 5
    checkpointer.save_if_due()
    checkpointer.finish()
    assert [spare is None for spare in take.spares] == [True, False, True]
    assert len(folder.saved) == 1  # the state of the end: the older one is not written before it


def test_a_stop_waits_for_the_write_under_way_alone_and_makes_one_more(
    parts: Any, clock: FakeClock, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    folder, take, checkpointer = parts
    folder.gate.clear()
    for take.updates in (1, 2, 3):
        clock.now_s += 5
        checkpointer.save_if_due()
        eventually(lambda: folder.begun)
    lifecycle.stop("SIGTERM")
    finishing = threading.Thread(target=checkpointer.finish)
    finishing.start()
    eventually(checkpointer._done.is_set)
    assert folder.begun == [1]  # two at once would share the disk
    folder.gate.set()
    finishing.join(10)
    assert not finishing.is_alive()
    assert folder.begun == folder.saved == [1, 3]


def _write_plainly(file: Path, state: Mapping[str, Any]) -> None:
    """What a state's digest and its bytes on the disk take at least."""
    digest = hashlib.blake2b()
    with file.open("wb") as stream:
        for tensor in state.values():
            digest.update(tensor.data)
            stream.write(tensor.data)
        stream.flush()
        os.fsync(stream.fileno())


def _user_s_of(call: Callable[[], Any]) -> float:
    began_s = os.times().user
    call()
    return os.times().user - began_s


def test_a_large_state_takes_little_more_than_its_digest_and_its_bytes(
    tmp_path: Path, clock: FakeClock, lifecycle: Lifecycle, log: FakeLog, eventually: Eventually
) -> None:
    """Ten million parameters with target and moments, while the last periodic checkpoint may be on its way too.

    How long disk and kernel take is theirs to say; what the process does is compared with plain writes
    of the same bytes: a second digest would show. No tensor is copied.
    """
    state = {f"tensor-{k}": np.full(10_000_000, k, np.float32) for k in range(4)}
    checkpoint = replace(_at(3), state=state)
    folder, metrics = CheckpointFolder(tmp_path / "checkpoints", log), Metrics("learner", "run-a")
    checkpointer = Checkpointer(
        folder,
        lambda _spare: checkpoint,
        period_s=5.0,
        clock=clock,
        lifecycle=lifecycle,
        metrics=_metrics(clock, metrics),
    )
    clock.now_s += 5

    def stop() -> None:
        checkpointer.save_if_due()
        eventually(lambda: (tmp_path / "checkpoints").is_dir() and list((tmp_path / "checkpoints").iterdir()))
        lifecycle.stop("SIGTERM")
        checkpointer.finish()

    plain_s = _user_s_of(lambda: [_write_plainly(tmp_path / f"plain-{k}", state) for k in range(2)])
    tracemalloc.start()
    assert _user_s_of(stop) < 1.5 * plain_s
    assert tracemalloc.get_traced_memory()[1] < state["tensor-0"].nbytes
    tracemalloc.stop()
    assert metrics.registry.get_sample_value("shoal_learner_checkpoints_total", {"run": "run-a"}) == 2
    loaded: Any = folder.load_newest()
    assert loaded.state["tensor-3"][-1] == 3


def test_the_loop_is_not_held_by_a_slow_disk(parts: Any, clock: FakeClock, eventually: Eventually) -> None:
    folder, take, checkpointer = parts
    folder.gate.clear()
    for take.updates in range(1, 5):
        clock.now_s += 10
        checkpointer.save_if_due()
    folder.gate.set()
    eventually(lambda: folder.saved)
    assert folder.saved[0] == 1
    assert len(folder.saved) <= 2  # one on its way, one waiting; the others were put off


def test_the_last_state_is_written_before_finish_returns(parts: Any, clock: FakeClock) -> None:
    folder, take, checkpointer = parts
    take.updates = 7
    checkpointer.finish()
    assert folder.saved == [7]


def test_the_last_state_is_written_in_a_stop_too(parts: Any, lifecycle: Lifecycle) -> None:
    folder, take, checkpointer = parts
    lifecycle.stop("SIGTERM")
    take.updates = 7
    checkpointer.finish()
    assert folder.saved == [7]


def test_a_disk_that_is_full_stops_the_process(clock: FakeClock, eventually: Eventually) -> None:
    life, folder = Lifecycle(), Folder()
    folder.fault = "the disk is full"
    checkpointer = Checkpointer(folder, Taker(), period_s=5.0, clock=clock, lifecycle=life, metrics=_metrics(clock))
    clock.now_s += 5
    checkpointer.save_if_due()
    eventually(life.stopping.is_set)
    with pytest.raises(UserError, match="the disk is full"):
        life.join()


def test_it_writes_real_files(tmp_path: Path, clock: FakeClock, lifecycle: Lifecycle, log: FakeLog) -> None:
    folder = CheckpointFolder(tmp_path, log)
    metrics = _metrics(clock)
    Checkpointer(
        folder, lambda _spare: _at(3), period_s=5.0, clock=clock, lifecycle=lifecycle, metrics=metrics
    ).finish()
    loaded: Any = folder.load_newest()
    assert loaded.progress.updates == 3


def test_what_is_written_and_what_fails_is_shown(
    clock: FakeClock, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    folder, metrics, held = Folder(), Metrics("learner", "run-a"), []

    @contextlib.contextmanager
    def hold() -> Iterator[None]:
        held.append(folder.saved.copy())
        yield

    def value(name: str) -> float:
        found = metrics.registry.get_sample_value(f"shoal_learner_checkpoint{name}", {"run": "run-a"})
        assert found is not None
        return found

    checkpointer = Checkpointer(
        folder,
        Taker(),
        period_s=5.0,
        clock=clock,
        lifecycle=lifecycle,
        metrics=_metrics(clock, metrics),
        held=hold,
    )
    clock.now_s += 5
    assert value("_age_seconds") == 5
    assert value("_period_seconds") == 5
    checkpointer.save_if_due()
    eventually(lambda: value("s_total") == 1)
    assert (value("_age_seconds"), value("_write_seconds_count")) == (0, 1)
    eventually(checkpointer._idle.is_set)
    clock.now_s += 2
    assert value("_age_seconds") == 2
    clock.now_s += 3
    folder.fault = "the disk is full"
    checkpointer.save_if_due()
    eventually(lambda: value("_failures_total") == 1)
    assert value("s_total") == 1
    assert len(held) == 2
    lifecycle._failure = None  # it was meant


def test_whoever_sees_that_one_is_written_sees_its_age(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, ages = Metrics("learner", "run-a"), []
    shown = _metrics(clock, metrics)

    def look() -> None:
        ages.append(metrics.registry.get_sample_value("shoal_learner_checkpoint_age_seconds", {"run": "run-a"}))

    monkeypatch.setattr(shown._written, "inc", look)
    clock.now_s += 9
    shown.written(2.0, clock.now_s - 3)
    assert ages == [3]


def test_a_rest_writes_the_present_state_behind_what_is_on_its_way_and_the_period_begins_anew(
    parts: Any, clock: FakeClock, eventually: Eventually
) -> None:
    folder, take, checkpointer = parts
    folder.gate.clear()
    take.updates = 1
    clock.now_s += 5
    checkpointer.save_if_due()
    take.updates = 2
    rest = threading.Thread(target=checkpointer.save_now)
    rest.start()
    rest.join(0.2)
    assert rest.is_alive()  # the first holds the memory that the second is copied into
    folder.gate.set()
    rest.join(10)
    assert folder.saved == [1, 2]
    clock.now_s += 4.9
    checkpointer.save_if_due()
    clock.now_s += 0.2
    take.updates = 3
    checkpointer.save_if_due()
    eventually(lambda: folder.saved == [1, 2, 3])


def test_a_stop_ends_a_rest_whose_checkpoint_has_to_wait(parts: Any, clock: FakeClock, lifecycle: Lifecycle) -> None:
    folder, _take, checkpointer = parts
    folder.gate.clear()
    clock.now_s += 5
    checkpointer.save_if_due()
    lifecycle.stop("test")
    with pytest.raises(Stopped):
        checkpointer.save_now()
    folder.gate.set()
