"""The benchmarks start, measure something, and end: their cases call the product's own parts, which change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest

from bench.actor.measure import ask
from bench.parameters.__main__ import measure

pytestmark = pytest.mark.timeout(240)

ARM, LIGHT = "services.actor.envs.arm:make_reach", "bench.actor.simulators:make"
ACTOR_SECTIONS: Dict[str, Dict[str, Any]] = {
    "bare_loop": {"factory": ARM, "lanes": 4, "rounds": 1, "round_s": 0.3},
    "overlap": {"factory": LIGHT, "lanes": 8, "groups": [1, 2], "wait_s": 0.002, "rounds": 1, "round_s": 0.3},
    "inference": {"lanes": [4], "widths": [32], "rounds": 1},
    "wire": {"rounds": 1, "round_s": 0.2},
}


@pytest.mark.parametrize("section", sorted(ACTOR_SECTIONS))
def test_the_actors_benchmark_measures(section: str) -> None:
    assert ask(section, ACTOR_SECTIONS[section], 200.0)


def test_the_parameters_benchmark_measures(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        found = measure(2, "float32", publishes=2, idle_s=0.3, log=log)
    assert len(found.latencies_s) == 4
    assert all(0 < latency < 60 for latency in found.latencies_s)
