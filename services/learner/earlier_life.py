"""What a chief takes over from its earlier life: the newest checkpoint, and what was lost of the updates behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

import numpy as np

from services.common.errors import UserError
from services.common.log import Log
from services.common.run_folder import Progress, RunFolder
from services.common.schema import Schema
from services.learner.checkpoint import Checkpoint, CheckpointFolder
from services.learner.done_updates import DoneUpdates
from services.learner.version_history import VersionRecord

if TYPE_CHECKING:
    from services.agent.algorithm import Learner

STAND_INS = "stand_ins"  # the generator that chooses the items which stand in for overwritten ones


class EarlierLife:
    """The state that a chief begins with; that of a first life is empty."""

    def __init__(self, folder: RunFolder, checkpoints: CheckpointFolder, algorithm: str, log: Log) -> None:
        """Load the newest checkpoint, if there is one.

        Raises:
            UserError: it is another algorithm's, or none that is there is intact.
        """
        found = checkpoints.load_newest()
        if found is not None and found.algorithm != algorithm:
            raise UserError(
                f"the checkpoint in {str(folder.path)!r} was trained by {found.algorithm}, the run file asks for "
                f"{algorithm}: choose another run.name, or set algorithm.name back"
            )
        self._folder = folder
        self._checkpoint: Optional[Checkpoint] = found
        self._done = DoneUpdates(folder.updates_done)
        self._log = log

    @property
    def history(self) -> List[VersionRecord]:
        """Its versions, rising."""
        return self._checkpoint.history if self._checkpoint else []

    @property
    def last_version(self) -> int:
        """The last version of `history`, 0 where there is none."""
        return self.history[-1].version if self.history else 0

    @property
    def acknowledged(self) -> Mapping[str, int]:
        """Steps that each ring of the replay had acknowledged."""
        return self._checkpoint.acknowledged if self._checkpoint else {}

    @property
    def progress(self) -> Progress:
        """How far it had come."""
        return self._checkpoint.progress if self._checkpoint else Progress()

    @property
    def average(self) -> Mapping[str, Any]:
        """The averaged policy, by name of the tensor; empty where there is none."""
        return self._checkpoint.average if self._checkpoint else {}

    def stand_ins(self, seed: int) -> np.random.Generator:
        """The generator of STAND_INS, where it was; seeded with `seed` in a first life."""
        generator = np.random.default_rng(seed)
        generators: Mapping[str, Dict[str, Any]] = self._checkpoint.generators if self._checkpoint else {}
        if STAND_INS in generators:
            generator.bit_generator.state = generators[STAND_INS]
        return generator

    def check_fits(self, schema: Schema) -> None:
        """Refuse the actors' environment if it is not the one of the checkpoint.

        Raises:
            UserError: says what differs.
        """
        if self._checkpoint is not None and self._checkpoint.schema != schema:
            raise UserError(
                f"the checkpoint in {str(self._folder.path)!r} does not fit the actors' environment: "
                f"{self._checkpoint.schema.difference(schema)}; choose another run.name, or the environment of that run"
            )

    def resume(self, learner: Learner, *, env_steps: int) -> None:
        """Bring `learner` to where the checkpoint left it, and say how many updates behind it a kill has cost.

        Raises:
            UserError: the checkpoint is of other networks.
        """
        if self._checkpoint is not None:
            try:
                learner.load_state(self._checkpoint.state)
            except ValueError as error:
                raise UserError(
                    f"the checkpoint in {str(self._folder.path)!r} does not fit the run file: {error}; choose another "
                    "run.name, or set the run file back"
                ) from None
        lost = self._done.updates - learner.updates
        if self._checkpoint is not None:
            self._log.info("resumed", updates=learner.updates, lost_updates=max(0, lost), env_steps=env_steps)
        elif lost > 0:
            self._log.warning("training begins anew: it ended before its first checkpoint", lost_updates=lost)
        self.note_updates(learner.updates)

    def note_updates(self, updates: int) -> None:
        """So many are done now: what the next life compares its checkpoint with."""
        self._done.note(updates)
