"""Batch dumps: what a stopped update was computed from, as a file that a person can load and look at."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import numpy.typing as npt

from services.common.batch import Batch
from services.common.errors import UserError
from services.common.files import write_atomically
from services.common.log import Log
from services.common.sealed import seal, unseal

MAX_FILES = 20
PREFIX, SUFFIX = "batch-", ".safetensors"
_TENSORS = ("observation", "next_observation")
_LEFT_OUT = ("num_items", "stamps")  # the first is written apart; the others say nothing of what is not finite


@dataclass(frozen=True)
class StoppedBatch:
    """A batch whose update was stopped."""

    batch: Batch
    importance_weights: npt.NDArray[np.float32]  # [N]
    reason: str  # one sentence: what was not finite
    updates: int  # of the learner before this one
    table_id: int  # that the keys belong to
    suspects: npt.NDArray[np.bool_]  # [N], items whose own values are not finite or absurdly large
    chunks: Tuple[str, ...] = ()  # names of those that brought the first suspects, as far as they could be found


class BatchDump:
    """A folder of stopped batches that stays bounded: the oldest files make room.

    Nothing that goes wrong here reaches the caller: it is logged, and training goes on.
    """

    def __init__(self, folder: Path, log: Log, on_written: Callable[[], object] = lambda: None) -> None:
        """Make the dump; the folder is made with the first file, and `on_written` is called for each."""
        self._folder = folder
        self._log = log
        self._on_written = on_written
        self._number = max([0, *(_number(file) for file in self._files())])

    def write(self, stopped: StoppedBatch) -> None:
        """Write one batch, and remove all but the last MAX_FILES."""
        self._number += 1
        file = self._folder / f"{PREFIX}{self._number:08d}{SUFFIX}"
        facts = {
            "reason": stopped.reason,
            "updates": stopped.updates,
            "table_id": stopped.table_id,
            "num_items": stopped.batch.num_items,
            "chunks": list(stopped.chunks),
        }
        try:
            write_atomically(file, seal(_tensors(stopped), facts))
            self._on_written()
            for old in self._files()[:-MAX_FILES]:
                old.unlink()
        except (UserError, OSError) as error:
            self._log.warning("a stopped batch could not be written", file=str(file), reason=str(error))

    def _files(self) -> List[Path]:
        return sorted(self._folder.glob(f"{PREFIX}*{SUFFIX}"))


def _number(file: Path) -> int:
    digits = file.name[len(PREFIX) : -len(SUFFIX)]
    return int(digits) if digits.isdecimal() else 0


def _tensors(stopped: StoppedBatch) -> Dict[str, npt.NDArray[Any]]:
    tensors: Dict[str, npt.NDArray[Any]] = {
        "importance_weights": stopped.importance_weights,
        "suspects": stopped.suspects,
    }
    for field in fields(Batch):
        column = getattr(stopped.batch, field.name)
        if field.name in _TENSORS:
            tensors.update({f"batch.{field.name}.{name}": rows for name, rows in column.items()})
        elif field.name not in _LEFT_OUT:
            tensors[f"batch.{field.name}"] = column
    return tensors


def load_stopped_batch(file: Path) -> StoppedBatch:
    """Read a file of `<run>/non_finite/` back.

    Raises:
        UserError: it is damaged, or no such file; the message names it.
    """
    try:
        tensors, facts = unseal(file)
        columns: Dict[str, Any] = {name: {} for name in _TENSORS}
        for name, array in tensors.items():
            outer, _, column = name.partition(".")
            head, _, tensor = column.partition(".")
            if head in _TENSORS:
                columns[head][tensor] = array
            elif outer == "batch":
                columns[column] = array
        return StoppedBatch(
            batch=Batch(**columns, num_items=int(facts["num_items"])),
            importance_weights=tensors["importance_weights"],
            reason=str(facts["reason"]),
            updates=int(facts["updates"]),
            table_id=int(facts["table_id"]),
            suspects=tensors["suspects"],
            chunks=tuple(facts.get("chunks", ())),  # not kept by earlier versions of shoal
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{str(file)!r} is no stopped batch: {error}; name a file of a run's non_finite folder"
        ) from None
