"""The first steps of a trial in full, so that two trials with one seed can be compared number by number."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import numpy as np
import numpy.typing as npt

from services.actor.conformance.finding import Finding, ok, warning
from services.actor.envs.contract import EnvStep
from services.actor.envs.host_tensors import to_host

MAX_RECORD_BYTES = 32 << 20
MAX_RECORDED_STEPS = 500
_CHECK = "determinism"

Columns = Dict[str, npt.NDArray[Any]]  # name -> [S + 1 or S, B, ...]; observations begin with that of the reset


class Record:
    """Collects the first steps until they would take too much memory."""

    def __init__(self, first: Mapping[str, Any]) -> None:
        """Begin with the observation of the reset."""
        self._columns: Dict[str, List[npt.NDArray[Any]]] = {}
        self._bytes = 0
        self._put({f"observation {name!r}": tensor for name, tensor in first.items()})
        self._per_step_bytes = self._bytes
        self.steps = 0

    @property
    def is_full(self) -> bool:
        return self.steps >= MAX_RECORDED_STEPS or self._bytes + self._per_step_bytes > MAX_RECORD_BYTES

    def add(self, step: EnvStep) -> None:
        """Take in a step, if there is room."""
        if self.is_full:
            return
        self.steps += 1
        self._put({f"observation {name!r}": tensor for name, tensor in step.observation.items()})
        flags = {name: getattr(step, name) for name in ("reward", "terminated", "truncated", "valid")}
        self._put(flags)

    def columns(self) -> Columns:
        """All of it."""
        return {name: np.stack(rows) for name, rows in self._columns.items()}

    def save(self, path: str) -> None:
        """Write it as an npz file."""
        columns: Dict[str, Any] = dict(self.columns())
        np.savez(path, **columns)

    def _put(self, parts: Mapping[str, Any]) -> None:
        for name, tensor in parts.items():
            row = np.array(to_host(tensor))
            self._bytes += row.nbytes
            self._columns.setdefault(name, []).append(row)


def compare(one: Columns, other: Columns) -> Finding:
    """Name the first difference of two trials: by step, then in the order of the columns."""
    first = None
    for name, column in one.items():
        its = other[name]
        length = min(len(column), len(its))
        mine, its = column[:length], its[:length]
        differ = mine != its
        if mine.dtype.kind == "f":
            differ &= ~(np.isnan(mine) & np.isnan(its))
        if not differ.any():
            continue
        where = np.unravel_index(int(np.argmax(differ)), differ.shape)
        step = int(where[0]) + (0 if name.startswith("observation") else 1)
        if first is None or step < first[0]:
            first = (step, name, where, mine[where], its[where])
    steps = min(len(one["reward"]), len(other["reward"])) if "reward" in one and "reward" in other else 0
    if first is None:
        return ok(_CHECK, f"two processes with the same seed did the same for {steps} steps")
    step, name, where, mine, its = first
    place = "".join(f"[{int(index)}]" for index in where[2:])
    when = "in the first observation" if step == 0 else f"in step {step}"
    return warning(
        _CHECK,
        f"two processes with the same seed differ {when}: {name}{place} of lane {int(where[1])} is {mine} and {its}",
        "seed all random numbers from the factory's seed and from reset(seed); GPU simulators may differ all the same",
    )
