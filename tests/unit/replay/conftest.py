from __future__ import annotations

import itertools
import weakref
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import pytest

from services.common.chunk import TERMINATED, TRUNCATED, VALID, Chunk, FinalObservations
from services.common.ring_layout import RingFormat
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.replay.ring_folder import RingFolder
from services.replay.table import Table, TableSettings
from tests.fakes import FakeClock

SCHEMA = Schema((TensorSpec("policy", "float32", (2,)),), ActionSpec((-1.0,), (1.0,)))
MakeChunk = Callable[..., Chunk]
MakeTable = Callable[..., Table]


@pytest.fixture
def schema() -> Schema:
    return SCHEMA


@pytest.fixture
def make_chunk() -> MakeChunk:
    """A chunk whose observations are [first_step + t, lane], with rewards 1 and no critics unless given."""

    def make(
        T: int = 4,  # noqa: N803
        B: int = 2,  # noqa: N803
        *,
        sequence: int = 0,
        first_step: Optional[int] = None,
        lane_group: int = 0,
        ends: Sequence[Tuple[int, int]] = (),
        time_outs: Sequence[Tuple[int, int]] = (),
        resets: Sequence[Tuple[int, int]] = (),
        cut: bool = False,
        final: bool = True,
        q_taken: Any = np.nan,
        value: Any = np.nan,
        final_value: float = np.nan,
        reward: float = 1.0,
    ) -> Chunk:
        begin = T * sequence if first_step is None else first_step
        flags = np.full((T, B), VALID, np.uint8)
        for t, b in ends:
            flags[t, b] |= TERMINATED
        for t, b in time_outs:
            flags[t, b] |= TRUNCATED
        for t, b in resets:
            flags[t, b] = 0
        ended = (flags & (TERMINATED | TRUNCATED)) != 0
        with_final = ended & final
        if cut:
            with_final[T - 1] = True
        step = np.flatnonzero(with_final)
        observation = np.stack(np.broadcast_arrays(begin + np.arange(T)[:, None], np.arange(B)), -1).astype(np.float32)
        chunk = Chunk(
            lane_group=lane_group,
            sequence=sequence,
            first_step=begin,
            observation={"policy": observation},
            action=np.zeros((T, B, 1), np.float32),
            reward=np.full((T, B), reward, np.float32),
            flags=flags,
            policy_version=np.full(T, 7, np.int64),
            q_taken=np.broadcast_to(np.asarray(q_taken, np.float32), (T, B)).copy(),
            value=np.broadcast_to(np.asarray(value, np.float32), (T, B)).copy(),
            final=FinalObservations(
                step=step,
                observation={"policy": np.stack([-1.0 - step, step % B], 1).astype(np.float32)},
                value=np.full(len(step), final_value, np.float32),
                cut=~ended.reshape(-1)[step],
            ),
        )
        chunk.check(SCHEMA)
        return chunk

    return make


@pytest.fixture
def make_table(clock: FakeClock) -> MakeTable:
    def make(**changes: Any) -> Table:
        values: Dict[str, Any] = {
            "capacity": 64,
            "n_step": 3,
            "discount": 0.5,
            "max_batch_size": 16,
            "max_num_batches": 4,
        }
        real_clock = changes.pop("clock", clock)
        return Table(TableSettings(**{**values, **changes}), SCHEMA, clock=real_clock)

    return make


@pytest.fixture
def feed(make_chunk: MakeChunk) -> Callable[..., List[int]]:
    """Insert `num_chunks` chunks of an actor, from the sequence number `first` on; returns the statuses."""

    def insert(
        table: Table, num_chunks: int, actor: str = "a", incarnation: int = 1, first: int = 0, **of_chunk: Any
    ) -> List[int]:
        return [
            int(table.insert(actor, incarnation, make_chunk(sequence=i, **of_chunk), max_wait_s=0.0).status)
            for i in range(first, first + num_chunks)
        ]

    return insert


class Durable:
    """A table whose ring lies in a folder, and which can be dropped and opened again."""

    def __init__(self, path: Path, clock: FakeClock, **settings: Any) -> None:
        self.path = path
        self.clock = clock
        self.wall_ahead_s = 1000.0  # of the table's clock
        self.settings: Dict[str, Any] = {
            "capacity": 64,
            "n_step": 3,
            "discount": 0.5,
            "max_batch_size": 8,
            "max_num_batches": 4,
            **settings,
        }
        self.folder: RingFolder
        self.table = self.open()

    def open(self, path: Optional[Path] = None, **changes: Any) -> Table:
        """Open what lies at `path`, or make it."""
        path = path or self.path
        values = {**self.settings, **changes}
        if path.exists():
            self.folder = RingFolder.open(path, "5", SEGMENT_BYTES)
        else:
            ring_format = RingFormat("run", SCHEMA, values["capacity"], values["n_step"], values["discount"], "", 0.0)
            self.folder = RingFolder.create(path, ring_format, "5", SEGMENT_BYTES)
        try:
            self.table = Table(
                TableSettings(**values),
                SCHEMA,
                clock=self.clock,
                folder=self.folder,
                wall_clock=lambda: self.clock.now_s + self.wall_ahead_s,
            )
        except BaseException:
            self.folder.close()
            raise
        return self.table

    def drop(self) -> None:
        """Let go of the folder as the death of the process would: nothing more is written."""
        self.folder.close()

    def reopen(self, **changes: Any) -> Table:
        """Drop and open."""
        self.drop()
        table = self.open(**changes)
        assert table.check_valid() is None
        return table


SEGMENT_BYTES = 1 << 18  # of the chunk log; the smallest there is
MakeDurable = Callable[..., Durable]


@pytest.fixture
def make_durable(tmp_path: Path, clock: FakeClock) -> Iterator[MakeDurable]:
    made: weakref.WeakSet[Durable] = weakref.WeakSet()  # each mapping holds a descriptor, and examples are many
    numbers = itertools.count()

    def make(**settings: Any) -> Durable:
        durable = Durable(tmp_path / f"ring-{next(numbers)}", clock, **settings)
        made.add(durable)
        return durable

    yield make
    for durable in made:
        durable.drop()


@pytest.fixture
def another_boot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and the machine has started anew."""

    def start() -> None:
        monkeypatch.setattr("services.replay.ring_folder.boot_id", lambda: "another life")

    return start
