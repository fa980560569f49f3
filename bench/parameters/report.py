"""What was measured, as tables for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from rich.table import Table

BEGIN, END = "<!-- bench-parameters: begin -->", "<!-- bench-parameters: end -->"
MIB = 1024 * 1024

_SWAP_HEAD = [
    "wire",
    "readers",
    "swap p50 (ms)",
    "swap p99 (ms)",
    "last reader, median (ms)",
    "chief CPU a publish (ms)",
    "CPU of a reader (ms)",
]
_COST_HEAD = [
    "wire",
    "readers",
    "heap before, after (MiB)",
    "threads before, after",
    "sets kept",
    "questions/s idle",
    "CPU idle",
]


@dataclass(frozen=True)
class Measured:
    """One chief with a number of readers."""

    num_readers: int
    wire_dtype: str
    parameters: int
    latencies_s: List[float]  # publish to swap, every reader of every publish
    publish_s: List[float]  # that the training loop was held
    readers_cpu_s: float  # of all of them together, over all timed publishes
    before: Dict[str, Any]  # the chief before and after the timed publishes
    after: Dict[str, Any]
    idle: Dict[str, float]

    def summary(self) -> Dict[str, Any]:
        """Plain figures."""
        p50, p99 = np.percentile(self.latencies_s, [50, 99]).tolist()
        by_publish = np.reshape(self.latencies_s, (len(self.publish_s), self.num_readers))
        return {
            "wire_dtype": self.wire_dtype,
            "readers": self.num_readers,
            "parameters": self.parameters,
            "set_bytes": self.after["set_bytes"],
            "publishes": len(self.publish_s),
            "swap_p50_ms": 1e3 * p50,
            "swap_p99_ms": 1e3 * p99,
            "last_swap_median_ms": 1e3 * float(np.median(by_publish.max(axis=1))),
            "publish_call_median_ms": 1e3 * float(np.median(self.publish_s)),
            "chief_cpu_per_publish_ms": 1e3 * (self.after["cpu_s"] - self.before["cpu_s"]) / len(self.publish_s),
            "reader_cpu_per_swap_ms": 1e3 * self.readers_cpu_s / len(self.latencies_s),
            "heap_before_mib": self.before["heap_bytes"] / MIB,
            "heap_after_mib": self.after["heap_bytes"] / MIB,
            "threads_before": self.before["system_threads"],
            "threads_after": self.after["system_threads"],
            "sets": self.after["sets"],
            **{f"idle_{name}": value for name, value in self.idle.items()},
        }


def rows(found: Sequence[Measured]) -> Tuple[List[List[str]], List[List[str]]]:
    """Cells of the two tables."""
    swaps, costs = [], []
    for one in (measured.summary() for measured in found):
        head = [one["wire_dtype"], str(one["readers"])]
        swaps.append(
            [
                *head,
                *(f"{one[name]:.1f}" for name in ("swap_p50_ms", "swap_p99_ms", "last_swap_median_ms")),
                f"{one['chief_cpu_per_publish_ms']:.1f}",
                f"{one['reader_cpu_per_swap_ms']:.1f}",
            ]
        )
        costs.append(
            [
                *head,
                f"{one['heap_before_mib']:.1f}, {one['heap_after_mib']:.1f}",
                f"{one['threads_before']}, {one['threads_after']}",
                str(one["sets"]),
                f"{one['idle_questions_per_s']:.1f}",
                f"{100 * one['idle_cpu_share']:.1f} %",
            ]
        )
    return swaps, costs


def tables(found: Sequence[Measured]) -> List[Table]:
    """For the terminal."""
    made = []
    for head, cells in zip((_SWAP_HEAD, _COST_HEAD), rows(found)):
        table = Table(*head)
        for row in cells:
            table.add_row(*row)
        made.append(table)
    return made


def to_markdown(machine: Dict[str, Any], found: Sequence[Measured], publishes: float) -> str:
    """For the docs."""
    first = found[0]
    sizes = {one.wire_dtype: one.after["set_bytes"] for one in found}
    lines = [
        f"{first.parameters:,} parameters ("
        + ", ".join(f"{wire_dtype}: {size / MIB:.1f} MiB" for wire_dtype, size in sizes.items())
        + f"), {publishes:.0f} publishes each, on {machine['cpu']}, {machine['cores']} cores, "
        f"Python {machine['python']}; the machine was shared, load before: {machine['load_before'][0]}.\n"
    ]
    for head, cells in zip((_SWAP_HEAD, _COST_HEAD), rows(found)):
        lines.append("".join("| " + " | ".join(row) + " |\n" for row in [head, ["---"] * len(head), *cells]))
    return "\n".join(lines) + "\n"
