"""Checkpoints: everything a resume needs, in one sealed file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional

import numpy as np
import numpy.typing as npt

from services.common.errors import UserError
from services.common.files import files_in
from services.common.log import Log
from services.common.run_folder import Progress
from services.common.schema import Schema
from services.common.sealed import unseal, write_sealed
from services.learner.version_history import VersionRecord

AVERAGE_PREFIX = "averaged/"
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """The state of an algorithm's learner and of the chief around it."""

    algorithm: str
    schema: Schema
    progress: Progress
    history: List[VersionRecord]
    acknowledged: Dict[str, int]  # ring of the replay -> steps it acknowledged
    state: Mapping[str, npt.NDArray[Any]]
    average: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)  # the averaged policy, where there is one
    generators: Mapping[str, Any] = field(default_factory=dict)  # numpy's, by their use: bit_generator.state


class CheckpointFolder:
    """The last few checkpoints of a run, and that of its best version. Written aside, fsynced, then named."""

    def __init__(
        self, folder: Path, log: Log, *, keep: int = 3, best_updates: Callable[[], Optional[int]] = lambda: None
    ) -> None:
        """Look after `folder`, which is made with the first checkpoint.

        Args:
            folder: for the files.
            log: hears of damaged ones.
            keep: the last so many stay; more than one, for the newest may be damaged by a failing disk.
            best_updates: updates behind the best version so far. The first checkpoint at or after it stays too.
        """
        self._folder = folder
        self._log = log
        self._keep = keep
        self._best_updates = best_updates

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and remove those that need not stay.

        Raises:
            UserError: the disk is full; earlier checkpoints are untouched.
        """
        facts = {
            "algorithm": checkpoint.algorithm,
            "schema": checkpoint.schema.to_dict(),
            "progress": asdict(checkpoint.progress),
            "history": checkpoint.history,
            "acknowledged": checkpoint.acknowledged,
            "generators": dict(checkpoint.generators),
        }
        self._remove_unfinished()
        average = {AVERAGE_PREFIX + name: tensor for name, tensor in checkpoint.average.items()}
        write_sealed(
            self._folder / f"{checkpoint.progress.updates:012d}{SUFFIX}", {**checkpoint.state, **average}, facts
        )
        files = self._files()
        staying = {*files[-self._keep :], *self._best_of(files)}
        for old in files:
            if old not in staying:
                old.unlink()

    def load_newest(self) -> Optional[Checkpoint]:
        """Read the newest intact checkpoint; damaged ones are named in the log and left where they are.

        Raises:
            UserError: there are checkpoints, and none of them is intact.
        """
        files = self._files()
        for file in reversed(files):
            try:
                tensors, facts = unseal(file)
                average = [name for name in tensors if name.startswith(AVERAGE_PREFIX)]
                return Checkpoint(
                    algorithm=facts["algorithm"],
                    schema=Schema.from_dict(facts["schema"]),
                    progress=Progress(**facts["progress"]),
                    history=[VersionRecord(*row) for row in facts["history"]],  # of two columns in older files
                    acknowledged=dict(facts["acknowledged"]),
                    average={name[len(AVERAGE_PREFIX) :]: tensors.pop(name) for name in average},
                    state=tensors,
                    generators=dict(facts.get("generators", {})),  # not kept by earlier versions of shoal
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._log.warning("a damaged checkpoint is passed over", file=str(file), reason=str(error))
        if files:
            raise UserError(f"no checkpoint in {str(self._folder)!r} is intact; restore one, or start a new run")
        return None

    def _remove_unfinished(self) -> None:
        """Free the space of files that a life was killed over: nobody else writes here."""
        for file in files_in(self._folder, f".*{SUFFIX}.*", ".tmp*"):  # ours, and those of the library that writes them
            file.unlink()

    def _files(self) -> List[Path]:
        return files_in(self._folder, f"[!.]*{SUFFIX}")

    def _best_of(self, files: List[Path]) -> List[Path]:
        """The checkpoint of the best version among `files`, or none."""
        best = self._best_updates()
        return [] if best is None else [file for file in files if _updates_of(file) >= best][:1]


def _updates_of(file: Path) -> int:
    return int(file.stem) if file.stem.isdecimal() else -1


def generator_state(generator: np.random.Generator) -> Dict[str, Any]:
    """The state of a generator that other threads draw from, in whole numbers alone."""
    with generator.bit_generator.lock:
        return dict(generator.bit_generator.state)
