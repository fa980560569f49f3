"""What a helper keeps between its lives: the residual, the generator's state, the last sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Mapping

import numpy.typing as npt

from services.common.files import write_atomically
from services.common.log import Log
from services.common.sealed import seal, unseal

GENERATOR = "generator"  # of an algorithm's state, where it has one
_RESIDUAL = "residual."


@dataclass(frozen=True)
class HelperState:
    """One helper's state between two pushes."""

    sequence: int = 0  # of the last push
    residual: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)  # tensor -> <float32>[shape]
    generator: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


class HelperCheckpoint:
    """One sealed file a helper, named as it; written by period and at the end."""

    def __init__(
        self,
        file: Path,
        take: Callable[[], HelperState],
        *,
        period_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._file = file
        self._take = take
        self._period_s = period_s
        self._clock = clock
        self._due_at_s = clock() + period_s

    def save_if_due(self) -> None:
        """Save when the period is over.

        Raises:
            UserError: the disk is full; the last state is untouched.
        """
        if self._clock() >= self._due_at_s:
            self.save()

    def save(self) -> None:
        """Save now.

        Raises:
            UserError: as `save_if_due`.
        """
        state = self._take()
        tensors: Dict[str, npt.NDArray[Any]] = {_RESIDUAL + name: array for name, array in state.residual.items()}
        write_atomically(self._file, seal({**tensors, **state.generator}, {"sequence": state.sequence}))
        self._due_at_s = self._clock() + self._period_s


def load_helper_state(file: Path, log: Log) -> HelperState:
    """What the last life of a helper left; nothing where there is no file, or a damaged one (which is said)."""
    if not file.exists():
        return HelperState()
    try:
        tensors, facts = unseal(file)
        return HelperState(
            sequence=int(facts["sequence"]),
            residual={n[len(_RESIDUAL) :]: array for n, array in tensors.items() if n.startswith(_RESIDUAL)},
            generator={n: array for n, array in tensors.items() if n == GENERATOR},
        )
    except (ValueError, KeyError, TypeError) as error:
        log.warning("a damaged state of a helper is passed over", file=str(file), reason=str(error))
        return HelperState()
