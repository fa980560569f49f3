"""What a table is, for comparing it with what came back; chunks of any kind, and ways for its process to die."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
from hypothesis import strategies as st

from services.replay.chunk_log import ChunkLog
from services.replay.footprint import row_bytes
from services.replay.items import StepOutcome
from services.replay.ring import Ring
from services.replay.table import Table

# Settings of a table whose rate limiter holds inserts and samples.
LIMITED = {"samples_per_insert": 2.0, "error_buffer": 64.0, "min_size_to_sample": 4, "max_chunk_steps": 8, "n_step": 1}


class Killed(BaseException):
    """The process ends here."""


def hold_pieces_of(num_rows: int, table: Table, patches: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> None:
    """Let a snapshot go on by `num_rows` at a time, and call `meanwhile` after each."""
    patches.setattr("services.replay.snapshot.PIECE_BYTES", num_rows * row_bytes(table.store.ring.schema))
    patches.setattr("services.replay.snapshot._let_others_run", meanwhile)


def open_files_below(folder: Path) -> List[str]:
    """Files in `folder` that this process has open, once for each descriptor."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            links.append(os.readlink(descriptor))
    return sorted(link for link in links if link.startswith(f"{folder}/"))


def columns_of(table: Table) -> Dict[str, List[Any]]:
    """What the ring holds of each item, as lists."""
    ring = table.store.ring
    items = ring.status == StepOutcome.ITEM
    found = {name: ring.column(name).tolist() for name in ("status", "priority", "times_sampled")}
    for name in ("n_step_return", "discount", "bootstrap_key", "reward", "actor", "inserted_s"):
        found[name] = ring.column(name)[items].tolist()
    return found


def ages_of(table: Table) -> Any:
    """Stamps of all items, versions that were heard of, and how many items are expired."""
    ring = table.store.ring
    keys = np.sort(ring.keys(np.flatnonzero(ring.status == StepOutcome.ITEM)))
    stamps = table.store.stamps.look_up(keys, 0.0, table.newest_version, table._admission.name_table()).resolve()
    columns = {name: np.asarray(value).tolist() for name, value in vars(stamps).items()}
    return columns, table.store.history.pairs(), table.info().sampling.num_expired


def state_of(table: Table) -> Any:
    """Everything that must come back."""
    oldest = table.store.ring.oldest_key  # what is overwritten is no open window, whether it is still listed or not
    groups = {
        (
            (record.name, record.incarnation, tuple(record.fenced), record.acknowledged_steps),
            (record.life_acknowledged_steps, record.elsewhere_steps, record.counters.produced_steps),
        ): {
            index: (
                g.num_lanes,
                g.next_sequence,
                g.next_step,
                np.where(g.open_keys >= oldest, g.open_keys, -1).tolist(),
            )
            for index, g in record.groups.items()
        }
        for record in table._admission.actors.values()
    }
    return table.store.counters, table.store.ring.reserved, groups, columns_of(table), ages_of(table)


def draw_chunk(data: Any, make_chunk: Any, event: str, life: List[int]) -> Any:
    """A chunk of an actor with anything in it, the next one of `life`: incarnation, sequence, first step.

    Args:
        data: of hypothesis.
        make_chunk: the fixture.
        event: "restart" begins another life, "gap" leaves steps out, "sick" makes a reward NaN.
        life: of the actor; moved on by "restart" and "gap".
    """
    if event == "restart":
        life[:] = [life[0] + 1, 0, 0]
    life[2] += event == "gap"
    T = data.draw(st.integers(0, 4))
    places = st.lists(st.tuples(st.integers(0, max(0, T - 1)), st.integers(0, 1)), max_size=3, unique=True)
    marks = {kind: data.draw(places) if T else [] for kind in ("ends", "time_outs", "resets")}
    has_final = data.draw(st.booleans()) and not marks["resets"]
    cut = has_final and data.draw(st.booleans()) and T > 0
    chunk = make_chunk(T=T, sequence=life[1], first_step=life[2], cut=cut, final=has_final, **marks)
    if event == "sick" and T:
        chunk.reward[data.draw(st.integers(0, T - 1)), 0] = np.nan
    return chunk


STAGES = ["reserve", "evict", "half the columns", "settle", "half a record", "record", "commit"]


def kill_at(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the process dies at `stage` of an insert."""
    if stage == "reserve":
        monkeypatch.setattr("services.replay.item_store.ItemStore._evict", die)
    elif stage == "evict":
        monkeypatch.setattr("services.replay.item_store.ItemStore._write", die)
    elif stage == "half the columns":
        write = Ring.write

        def half(self: Ring, first_key: int, columns: Any) -> None:
            if "flags" in columns:
                write(self, first_key, {name: rows[: len(rows) // 2] for name, rows in columns.items()})
                raise Killed
            write(self, first_key, columns)

        monkeypatch.setattr(Ring, "write", half)
    elif stage == "settle":
        monkeypatch.setattr("services.replay.journal.FolderJournal.inserted", die)
    elif stage == "half a record":
        append = ChunkLog.append

        def torn(self: ChunkLog, record: bytes) -> None:
            append(self, record[: len(record) // 2])
            raise Killed

        monkeypatch.setattr(ChunkLog, "append", torn)
    elif stage == "record":
        monkeypatch.setattr(Ring, "commit", die)
    else:
        monkeypatch.setattr("services.replay.admission.Admission.acknowledge", die)


def die(*_values: Any) -> None:
    """End the process here."""
    raise Killed


def no_space(*_values: Any) -> None:
    """Find the disk full."""
    raise OSError(28, "No space left on device")
