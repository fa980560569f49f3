"""Checkpoints: everything a resume needs, in one sealed file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import numpy.typing as npt

from services.common.errors import UserError
from services.common.files import write_atomically
from services.common.log import Log
from services.common.run_folder import Progress
from services.common.schema import Schema
from services.common.sealed import seal, unseal
from services.learner.version_history import VersionRecord

AVERAGE_PREFIX = "averaged/"
KEEP = 3  # files: the newest may be damaged by a failing disk


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


class CheckpointFolder:
    """The newest few checkpoints of a run. Written aside, fsynced, then named."""

    def __init__(self, folder: Path, log: Log) -> None:
        self._folder = folder
        self._log = log

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and remove all but the last few.

        Raises:
            UserError: the disk is full; earlier checkpoints are untouched.
        """
        facts = {
            "algorithm": checkpoint.algorithm,
            "schema": checkpoint.schema.to_dict(),
            "progress": asdict(checkpoint.progress),
            "history": checkpoint.history,
            "acknowledged": checkpoint.acknowledged,
        }
        file = self._folder / f"{checkpoint.progress.updates:012d}.safetensors"
        average = {AVERAGE_PREFIX + name: tensor for name, tensor in checkpoint.average.items()}
        write_atomically(file, seal({**checkpoint.state, **average}, facts))
        for old in self._files()[:-KEEP]:
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
                )
            except (ValueError, KeyError, TypeError) as error:
                self._log.warning("a damaged checkpoint is passed over", file=str(file), reason=str(error))
        if files:
            raise UserError(f"no checkpoint in {str(self._folder)!r} is intact; restore one, or start a new run")
        return None

    def _files(self) -> List[Path]:
        return sorted(self._folder.glob("*.safetensors"))
