from __future__ import annotations

from typing import Any, Dict

import numpy as np
import pytest

from services.actor.metrics import ActorMetrics
from services.common.chunk import TERMINATED, TRUNCATED, VALID
from services.common.metrics import Metrics
from tests.fakes import RUN_ID, make_chunk


class Actor:
    """What the metrics read."""

    depth, age_s, version, env_call_s = 3, 1.5, 7, 0.25


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("actor", RUN_ID)


@pytest.fixture
def counts(metrics: Metrics) -> ActorMetrics:
    sources: Dict[str, Any] = {
        name: lambda name=name: getattr(Actor, name) for name in ("depth", "age_s", "version", "env_call_s")
    }
    return ActorMetrics(metrics, **sources)


def _value(metrics: Metrics, name: str) -> Any:
    return metrics.registry.get_sample_value(f"shoal_actor_{name}", {"run": RUN_ID})


def test_steps_and_episodes_are_counted_a_chunk_at_a_time(metrics: Metrics, counts: ActorMetrics) -> None:
    flags = np.array([[VALID, VALID | TERMINATED], [VALID | TRUNCATED, 0], [VALID | TERMINATED | TRUNCATED, VALID]])
    counts.on_chunk(make_chunk(3, 2, flags=flags))
    counts.on_chunk(make_chunk(2, 2))
    assert _value(metrics, "produced_steps_total") == 5 + 4
    assert _value(metrics, "episodes_total") == 3


def test_what_is_lost_and_what_hangs_is_counted(metrics: Metrics, counts: ActorMetrics) -> None:
    counts.on_drop("buffer_full", 20)
    counts.on_drop("buffer_full", 4)
    counts.on_drop("stopped", 8)
    counts.on_hang()
    counts.on_acknowledged(0.004)
    assert _value(metrics, "dropped_buffer_full_steps_total") == 24
    assert _value(metrics, "dropped_stopped_steps_total") == 8
    assert _value(metrics, "env_hangs_total") == 1
    assert _value(metrics, "acknowledgement_seconds_count") == 1
    assert _value(metrics, "acknowledgement_seconds_sum") == 0.004


def test_the_rest_is_read_when_asked(metrics: Metrics, counts: ActorMetrics) -> None:
    names = ("buffer_depth_chunks", "policy_age_seconds", "policy_version", "env_call_seconds")
    assert [_value(metrics, name) for name in names] == [3, 1.5, 7, 0.25]


def test_the_ladder_is_served_as_it_is_now_over_all_lane_groups(metrics: Metrics, counts: ActorMetrics) -> None:
    class Ladder:
        def __init__(self, *values: float) -> None:
            self.values = np.array(values, np.float32)

        def exploration(self) -> Any:
            return self.values

    groups: Any = [Ladder(0.1, 0.5), Ladder(0.3, 0.7, 0.9)]
    counts.show_exploration(groups)
    names = ("exploration_min", "exploration_median", "exploration_max")
    assert [_value(metrics, name) for name in names] == pytest.approx([0.1, 0.5, 0.9])
    groups[1].values = groups[1].values / 10
    assert [_value(metrics, name) for name in names] == pytest.approx([0.03, 0.09, 0.5])
