from __future__ import annotations

from typing import Any, Dict

import numpy as np
import pytest

from services.actor.metrics import WAIT_REASONS, ActorBounds, ActorMetrics
from services.common.chunk import TERMINATED, TRUNCATED, VALID
from services.common.metrics import Metrics
from services.common.waits import Waits
from tests.fakes import RUN_ID, make_chunk


class Actor:
    """What the metrics read."""

    depth, age_s, version, env_call_s, sent_steps, sent_bytes = 3, 1.5, 7, 0.25, 320, 4096


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("actor", RUN_ID)


@pytest.fixture
def waits(metrics: Metrics) -> Waits:
    return metrics.waits(WAIT_REASONS)


@pytest.fixture
def counts(metrics: Metrics, waits: Waits) -> ActorMetrics:
    sources: Dict[str, Any] = {
        name: lambda name=name: getattr(Actor, name)
        for name in ("depth", "age_s", "version", "env_call_s", "sent_steps", "sent_bytes")
    }
    bounds = ActorBounds(buffer_chunks=4, lanes=16, max_policy_age_s=60.0)
    return ActorMetrics(metrics, waits, **sources, bounds=bounds)


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
    assert [_value(metrics, name) for name in ("sent_steps_total", "sent_bytes_total")] == [320, 4096]


def test_bounds_of_the_run_file_are_served_beside_what_they_bound(metrics: Metrics, counts: ActorMetrics) -> None:
    names = ("buffer_capacity_chunks", "lanes", "max_policy_age_seconds")
    assert [_value(metrics, name) for name in names] == [4, 16, 60]


def test_an_actor_is_parked_while_it_waits_for_parameters(metrics: Metrics, counts: ActorMetrics, waits: Waits) -> None:
    assert _value(metrics, "parked") == 0
    with waits.on("replay_full"):
        assert _value(metrics, "parked") == 0
        with waits.on("parked"):
            assert _value(metrics, "parked") == 1
    assert _value(metrics, "parked") == 0


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
