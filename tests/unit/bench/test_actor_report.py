"""The actor's report judges what was measured, and says so where nothing was."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest

from bench.actor.report import BEGIN, END, Findings, tables, verdicts, write_json_lines, write_section
from bench.actor.scaling import quantile

MACHINE: Dict[str, Any] = {"cpu": "x", "cores": 2, "memory_gib": 8, "python": "3.11", "load_before": [0.1]}
SUSTAINED: Dict[str, Any] = {
    "seconds": 60.0,
    "steps_per_s": 150_000.0,
    "slowest_tenth": 140_000.0,
    "dropped": {"buffer_full": 3, "stopped": 1},
    "actor_cpu_share": 0.8,
    "steps_per_cpu_s": 190_000.0,
    "heap_before": {"actor": 100 << 20, "replay": 200 << 20},
    "heap_after": {"actor": 101 << 20, "replay": 220 << 20},
}


def _findings() -> Findings:
    bare = {
        "rates": {"services": [95.0, 80.0, 99.0], "bare": [100.0, 100.0, 100.0]},
        "cpu_us": {"services": [2.0], "bare": [1.0]},
    }
    return Findings(
        MACHINE,
        "quick",
        bare_loop={16: bare},
        sustained=SUSTAINED,
        overlap={"arm": {"rates": {"1": [10.0], "2": [15.0]}}},
        inference=[{"width": 128, "lanes": 16, "took_us": {"numpy": [100.0], "torch": [200.0]}}],
        wire=[{"case": "images", "bytes_per_step": 99.0, "pack_ms": 1.0, "unpack_ms": 2.0, "steps_per_s": [5.0]}],
        scaling=[{"actors": 4, "steps_per_s": 9.0, "dropped": 0, "acknowledged_p99_ms": 3.0, "replay_cpu_share": 0.1}],
    )


def test_targets_are_judged_by_what_was_measured() -> None:
    words = {v.text: v.word for v in verdicts(_findings())}
    assert words["arm, 16 lanes: steps/s with services over the bare loop's"] == "pass"  # the median of the rounds
    assert words["arm, 64 lanes: steps/s with services over the bare loop's"] == "NOT MEASURED"
    assert words["4,096 lanes: steps/s into one replay"] == "pass"
    assert words["4,096 lanes: steps dropped"] == "FAIL"
    assert words["4,096 lanes: heap of the actor at the end, over its start"] == "pass"
    assert words["4,096 lanes: heap of the replay at the end, over its start"] == "FAIL"
    assert words["many actors: steps dropped"] == "pass"


def test_nothing_measured_passes_nothing() -> None:
    assert {v.word for v in verdicts(Findings(MACHINE, "quick"))} == {"NOT MEASURED"}


def test_every_section_has_a_table_of_one_width() -> None:
    made = tables(_findings())
    assert len(made) == 7
    for head, rows in made:
        assert rows
        assert {len(row) for row in rows} == {len(head)}


def test_the_page_gets_its_section_anew_and_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_section(_findings(), page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\nA quick run on x")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert text.count("190 k") == 1
    page.write_text("no markers")
    with pytest.raises(ValueError, match="has no section between"):
        write_section(_findings(), page)


def test_each_finding_is_a_line(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    write_json_lines(_findings(), file)
    assert len(file.read_text().splitlines()) == 1 + 6 + len(verdicts(_findings()))


@pytest.mark.parametrize(("share", "bound"), [(0.5, 0.01), (0.9, 0.01), (0.91, 0.1), (1.0, 1.0)])
def test_a_quantile_is_the_bound_of_its_bucket(share: float, bound: float) -> None:
    assert quantile({0.001: 1.0, 0.01: 90.0, 0.1: 99.0, 1.0: 100.0}, share) == bound
