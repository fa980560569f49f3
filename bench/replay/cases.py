"""Which systems are compared: the Python and the module of each, and the settings it is tried with.

A new way into shoal's replay is a module with a subclass of `ShoalCase` and one more entry of `all_cases`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import List, Tuple


@dataclass(frozen=True)
class Column:
    """One thing that is measured."""

    operation: str  # "insert" or "sample"
    batch: int  # steps of an insert, items of a sample

    @property
    def title(self) -> str:
        return f"insert {self.batch:,}" if self.operation == "insert" else f"sample+update {self.batch:,}"

    @property
    def unit(self) -> str:
        return "steps/s" if self.operation == "insert" else "batches/s"


COLUMNS = {
    "small": [
        Column("insert", 1),
        Column("insert", 50),
        Column("insert", 1000),
        Column("insert", 4096),
        Column("sample", 512),
        Column("sample", 4096),
    ],
    "large": [Column("insert", 256), Column("sample", 512)],
}


@dataclass(frozen=True)
class CaseSpec:
    """How a case is started."""

    name: str
    title: str
    python: Path
    module: str

    @property
    def missing(self) -> str:
        """Why the case cannot run; empty if it can."""
        reason = self.python.parent.parent.with_suffix(".missing")
        if reason.is_file():
            return reason.read_text(encoding="utf-8").strip()
        return "" if self.python.is_file() else f"there is no {self.python}; `make bench-replay` makes it"

    def variants(self, column: Column) -> Tuple[str, ...]:
        """Settings to try; the fastest is measured."""
        if self.name != "reverb":
            return ("",)
        if column.operation == "sample":
            return ("timestep 128 2", "timestep 512 2", "timestep 512 -1", "timestep 256 4", "trajectory 512 2")
        if column.batch == 1:
            return ("writer 1 1", "trajectory 1 1")
        flushes = sorted({50, column.batch})
        kinds = ("writer {} 1", "writer {} 50", "trajectory {} 1")
        return tuple(kind.format(flush) for flush in flushes for kind in kinds)


def all_cases(venvs: Path) -> List[CaseSpec]:
    """Every case in the order of its column; `venvs` is the folder of the peers' venvs."""
    here = Path(sys.executable)

    def of_peer(name: str) -> Path:
        return venvs / name / "bin" / "python"

    return [
        CaseSpec("shoal", "shoal, gRPC", here, "bench.replay.shoal_case"),
        CaseSpec("shoal-mapped", "shoal, mapped", here, "bench.replay.shoal_mapped_case"),
        CaseSpec("shoal-table", "shoal's table in process", here, "bench.replay.shoal_table_case"),
        CaseSpec("reverb", "Reverb 0.14, gRPC", of_peer("reverb"), "bench.replay.reverb_case"),
        CaseSpec("cpprb", "cpprb 11, in process", of_peer("cpprb"), "bench.replay.cpprb_case"),
        CaseSpec("torchrl", "TorchRL 0.14, in process", of_peer("torchrl"), "bench.replay.torchrl_case"),
    ]
