from __future__ import annotations

import urllib.request
from typing import Any, Dict, Iterator

import numpy as np
import pytest

from services.common.errors import UserError
from services.common.metrics import Metrics


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    made = Metrics("learner", "run-a")
    yield made
    made.stop()


def _samples(metrics: Metrics) -> Dict[str, float]:
    return {
        sample.name + sample.labels.get("le", ""): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
    }


def test_a_batch_histogram_counts_as_a_hand_does(metrics: Metrics) -> None:
    histogram = metrics.batch_histogram("lag_updates", "Lag.", (0, 10, 100))
    histogram.observe(np.array([[0, 1], [10, 11]]))
    histogram.observe(np.array([100, 101]))
    samples = _samples(metrics)
    name = "shoal_learner_lag_updates"
    assert samples[f"{name}_bucket0"] == 1
    assert samples[f"{name}_bucket10"] == 3  # bounds are inclusive, counts cumulative
    assert samples[f"{name}_bucket100"] == 5
    assert samples[f"{name}_bucket+Inf"] == 6
    assert samples[f"{name}_count"] == 6
    assert samples[f"{name}_sum"] == 223


def test_the_endpoint_serves_every_metric_with_the_run(metrics: Metrics) -> None:
    metrics.counter("episodes", "Episodes.").inc(3)
    metrics.gauge("depth_chunks", "Depth.").set(2)
    metrics.histogram("wait_seconds", "Wait.", (0.1, 1)).observe(0.5)
    metrics.batch_histogram("lag_updates", "Lag.", (1,)).observe(np.ones(2))
    port = metrics.serve(0, "learner.metrics_port")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    assert 'shoal_learner_episodes_total{run="run-a"} 3.0' in text
    assert 'shoal_learner_depth_chunks{run="run-a"} 2.0' in text
    assert 'shoal_learner_wait_seconds_bucket{le="1.0",run="run-a"} 1.0' in text
    lines = [line for line in text.splitlines() if line.startswith("shoal_learner_lag_updates_count")]
    assert lines == ['shoal_learner_lag_updates_count{run="run-a"} 2.0']
    assert all('run="run-a"' in line for line in text.splitlines() if line.startswith("shoal_"))


def test_a_busy_port_is_told_with_what_to_change(metrics: Metrics) -> None:
    port = metrics.serve(0, "learner.metrics_port")
    other: Any = Metrics("learner", "run-a")
    with pytest.raises(UserError, match=f"cannot serve metrics on 127.0.0.1:{port}.*learner.metrics_port"):
        other.serve(port, "learner.metrics_port")
    other.stop()


def test_two_services_in_one_process_do_not_meet() -> None:
    for _ in range(2):
        Metrics("actor", "run-a").counter("episodes", "Episodes.")
