"""A run's folder: what lies where, how far the run has come, its evaluations, its best parameters."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from services.common.errors import UserError
from services.common.files import cannot_write, with_a_descriptor, write_atomically
from services.common.sealed import seal, unseal
from services.common.thinning import evenly


@dataclass(frozen=True)
class Progress:
    """How far a run has come, over all lives of the chief."""

    updates: int = 0
    training_seconds: float = 0.0  # the chief's running time
    env_steps: int = 0  # acknowledged by the replay
    is_finished: bool = False  # the last update was made


@dataclass(frozen=True)
class Evaluation:
    """What an evaluator saw of one version."""

    version: int
    updates: int
    episodes: int
    success_rate: float  # share of episodes with success at the last step; -1 where the environment reports none
    mean_return: float
    mean_episode_steps: float
    training_seconds: float = 0.0
    env_steps: int = 0

    def better_than(self, other: Optional[Evaluation]) -> bool:
        """More success first, then more return."""
        if other is None:
            return True
        return (self.success_rate, self.mean_return) > (other.success_rate, other.mean_return)


class RunFolder:
    """`<run.folder>/<run.name>/`: the chief writes it, the report reads it."""

    def __init__(self, path: Path, *, max_evaluations: int = 10_000) -> None:
        """Nothing is made.

        Args:
            path: of the folder.
            max_evaluations: lines of the learning curve; see `append_evaluation`.
        """
        self.path = path
        self._max_evaluations = max_evaluations
        self._num_evaluations: Optional[int] = None  # lines of the file; None: not counted yet
        self.config = path / "config.toml"
        self.checkpoints = path / "checkpoints"
        self.helpers = path / "helpers"
        self.versions = path / "versions.json"
        self.updates_done = path / "updates_done"
        self.tensorboard = path / "tensorboard"
        self.staleness = path / "staleness.jsonl"
        self.non_finite = path / "non_finite"
        self.logs = path / "logs"
        self.result = path / "result.json"
        self.learning_curve = path / "learning_curve.png"
        self.video = path / "eval.mp4"
        self._progress = path / "progress.json"
        self._best = path / "best.safetensors"
        self._evaluations = path / "evaluations.jsonl"

    def save_progress(self, progress: Progress) -> None:
        """Say how far the run has come, for whoever reads the folder."""
        write_atomically(self._progress, (json.dumps(asdict(progress)) + "\n").encode())

    def load_progress(self) -> Progress:
        """How far the run has come; nothing done where nothing was said."""
        try:
            return Progress(**json.loads(self._progress.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError):
            return Progress()

    def save_best(self, data: bytes, evaluation: Evaluation) -> None:
        """Keep a published set (safetensors bytes) as the best."""
        write_atomically(self._best, seal(safetensors.numpy.load(data), asdict(evaluation)))

    def load_best(self) -> Optional[Tuple[Dict[str, npt.NDArray[np.float32]], Evaluation]]:
        """The best parameters and what was seen of them; None before the first evaluation.

        Raises:
            UserError: the file is damaged.
        """
        if not self._best.exists():
            return None
        try:
            parameters, facts = unseal(self._best)
            return parameters, Evaluation(**facts)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"the best parameters {str(self._best)!r} are damaged: {error}; move the file away: the next "
                "evaluation of a run that goes on writes a new one"
            ) from None

    def append_evaluation(self, evaluation: Evaluation) -> None:
        """Add a line to the learning curve; where it is full half of its lines go first, evenly, but not the best.

        Raises:
            UserError: the disk is full, or the folder cannot be written.
        """
        if self._num_evaluations is None or self._num_evaluations >= self._max_evaluations:
            self._thin_out()
        try:
            with with_a_descriptor(lambda: self._evaluations.open("a", encoding="utf-8")) as stream:
                stream.write(json.dumps(asdict(evaluation)) + "\n")
        except OSError as error:
            raise cannot_write(self._evaluations, error) from None
        self._num_evaluations = (self._num_evaluations or 0) + 1

    def _thin_out(self) -> None:
        curve = self.evaluations()
        self._num_evaluations = len(curve)
        if len(curve) < self._max_evaluations:
            return
        best = curve[0]
        for evaluation in curve:
            if evaluation.better_than(best):
                best = evaluation
        places = set(evenly([each.updates for each in curve], self._max_evaluations // 2))
        kept = [each for place, each in enumerate(curve) if place in places or each is best]
        write_atomically(self._evaluations, "".join(json.dumps(asdict(each)) + "\n" for each in kept).encode())
        self._num_evaluations = len(kept)

    def evaluations(self) -> List[Evaluation]:
        """The learning curve so far; lines that are not whole, after a crash or on a bad disk, are left out."""
        if not self._evaluations.exists():
            return []
        curve: List[Evaluation] = []
        for line in self._evaluations.read_text(encoding="utf-8", errors="replace").split("\n"):
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                evaluation = Evaluation(**json.loads(line))
                if all(type(value) in (int, float) for value in asdict(evaluation).values()):
                    curve.append(evaluation)
        return curve
