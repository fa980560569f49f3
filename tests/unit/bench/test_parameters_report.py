"""Figures of the parameters' benchmark are those of what was measured, and the page gets all of them."""

from __future__ import annotations

from typing import Any

import pytest

from bench.parameters.report import Measured, to_markdown

STATS: Any = {"cpu_s": 1.0, "heap_bytes": 2**20, "system_threads": 9, "sets": 2, "set_bytes": 2**21}
MEASURED = Measured(
    num_readers=2,
    wire_dtype="float32",
    parameters=500_000,
    latencies_s=[0.010, 0.020, 0.010, 0.040],  # two publishes
    publish_s=[0.001, 0.003],
    readers_cpu_s=0.08,
    before=STATS,
    after={**STATS, "cpu_s": 1.5, "heap_bytes": 3 * 2**20},
    idle={"cpu_share": 0.02, "questions_per_s": 16.0},
)


def test_latencies_are_of_readers_and_costs_of_publishes() -> None:
    summary = MEASURED.summary()
    assert summary["swap_p50_ms"] == pytest.approx(15.0)
    assert summary["last_swap_median_ms"] == pytest.approx(30.0)
    assert summary["chief_cpu_per_publish_ms"] == pytest.approx(250.0)
    assert summary["reader_cpu_per_swap_ms"] == pytest.approx(20.0)
    assert (summary["heap_before_mib"], summary["heap_after_mib"]) == (1.0, 3.0)


def test_the_page_has_both_tables_and_the_machine() -> None:
    page = to_markdown({"cpu": "a cpu", "cores": 2, "python": "3.11", "load_before": [0.5]}, [MEASURED], 2)
    assert "500,000 parameters (float32: 2.0 MiB), 2 publishes each, on a cpu, 2 cores" in page
    assert "| float32 | 2 | 15.0 |" in page
    assert "| float32 | 2 | 1.0, 3.0 | 9, 9 | 2 | 16.0 | 2.0 % |" in page
