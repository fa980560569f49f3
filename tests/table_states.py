"""What a table is, for comparing it with what came back; and ways for its process to die."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest

from services.replay.chunk_log import ChunkLog
from services.replay.items import StepOutcome
from services.replay.ring import Ring
from services.replay.table import Table


class Killed(BaseException):
    """The process ends here."""


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
