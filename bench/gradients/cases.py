"""Which ways to send gradients are compared, and in which process each is measured."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import List, Tuple

from bench.gradients.recording import POWER_SGD_RANK
from bench.replay.cases import CaseSpec


@dataclass(frozen=True)
class Way:
    """One row of the tables."""

    name: str
    title: str
    process: str
    variant: str
    calls: Tuple[str, ...] = ("encode", "decode")  # that are timed


@dataclass(frozen=True)
class GradientCase(CaseSpec):
    """A process that measures some of the ways."""

    @property
    def missing(self) -> str:
        reason = self.python.parent.parent.with_suffix(".missing")
        if reason.is_file():
            return reason.read_text(encoding="utf-8").strip()
        return "" if self.python.is_file() else f"there is no {self.python}; `make bench-gradients` makes it"


PACKERS = "packers"
_WAYS = (
    Way("int8", "shoal: int8, feedback, zstd", "shoal", "int8 zstd on"),
    Way("int8-zlib", "shoal: int8, feedback, zlib", "shoal", "int8 zlib on"),
    Way("int8-plain", "shoal: int8, feedback, not packed", "shoal", "int8 none on"),
    Way("int8-open", "shoal: int8, no feedback, zstd", "shoal", "int8 zstd off"),
    Way("fp16", "shoal: fp16, feedback, zstd", "shoal", "fp16 zstd on"),
    Way("fp32", "shoal: float32, not packed", "shoal", "none none off"),
    Way("hivemind", "hivemind 1.1: blockwise 8 bit, by tensor", "hivemind", "tensors"),
    Way("hivemind-joined", "hivemind 1.1: blockwise 8 bit, joined", "hivemind", "joined"),
    Way("ddp", "DDP over gloo: float32", "ddp", "none", ("step",)),
    Way("ddp-fp16", "DDP over gloo: fp16 hook", "ddp", "fp16", ("step",)),
    Way("ddp-powersgd", f"DDP over gloo: PowerSGD hook, rank {POWER_SGD_RANK}", "ddp", "powersgd", ("step",)),
)
_PACKERS = tuple(
    Way(f"packed-{name}-{order}", f"the same codes, {name} by {order}", PACKERS, f"{name} {order}", ("encode",))
    for name, order in (
        ("zstd", "rows"),
        ("zstd", "columns"),
        ("huffman", "rows"),
        ("huffman", "columns"),
        ("zlib-ng", "columns"),
        ("isal", "columns"),
        ("brotli", "columns"),
        ("lz4", "columns"),
    )
)
WAYS = (*_WAYS, *_PACKERS)
CALLS = ("encode", "decode", "step")


def all_cases(venvs: Path) -> List[GradientCase]:
    """Every process; `venvs` is the folder of the peers' venvs."""
    here = Path(sys.executable)
    return [
        GradientCase("shoal", "shoal", here, "bench.gradients.shoal_case"),
        GradientCase("hivemind", "hivemind", venvs / "hivemind" / "bin" / "python", "bench.gradients.hivemind_case"),
        GradientCase(PACKERS, "other packers", venvs / PACKERS / "bin" / "python", "bench.gradients.packers_case"),
        GradientCase("ddp", "DDP", here, "bench.gradients.ddp_case"),
    ]
