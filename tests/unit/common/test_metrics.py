from __future__ import annotations

import os
import platform
import urllib.request
from pathlib import Path
from typing import Any, Dict, Iterator, Optional

import numpy as np
import pytest

from services.common.errors import UserError
from services.common.metrics import Metrics, disk_bytes


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


def test_each_process_tells_its_release_and_what_it_takes(metrics: Metrics) -> None:
    families = {family.name: family for family in metrics.registry.collect()}
    (info,) = families["shoal_learner_build_info"].samples
    assert info.value == 1
    assert info.labels["python"] == platform.python_version()
    assert info.labels["version"]
    for name in ("resident_memory_bytes", "open_fds", "cpu_seconds", "start_time_seconds"):
        assert families[f"process_{name}"].samples[0].value > 0


def test_counters_by_a_label_are_there_from_the_start(metrics: Metrics) -> None:
    counters = metrics.counters("checksum_failures", "Damage.", "where", ("chunk", "ring"))
    counters["ring"].inc(2)
    found = {where: _by(metrics, "checksum_failures_total", where=where) for where in ("chunk", "ring")}
    assert found == {"chunk": 0, "ring": 2}


def test_what_somebody_else_keeps_is_read_when_asked(metrics: Metrics) -> None:
    values: Dict[str, Optional[float]] = {"depth": 1, "sent": 5}
    metrics.gauge_of("depth_chunks", "Depth.", lambda: values["depth"])
    metrics.counter_of("sent_steps", "Sent.", lambda: values["sent"] or 0)
    metrics.gauges_of("run_state", "State.", "state", lambda: {"a": 1.0, "b": 0.0})
    values.update(depth=3, sent=9)
    assert _by(metrics, "depth_chunks") == 3
    assert _by(metrics, "sent_steps_total") == 9
    assert (_by(metrics, "run_state", state="a"), _by(metrics, "run_state", state="b")) == (1, 0)
    values["depth"] = None
    assert _by(metrics, "depth_chunks") is None


def test_waits_are_served_by_reason(metrics: Metrics) -> None:
    waits = metrics.waits(("batches", "schema"))
    with waits.on("batches"):
        assert (_by(metrics, "waiting_seconds", reason="batches") or 0) > 0
    assert (_by(metrics, "waited_seconds_total", reason="batches") or 0) > 0
    assert _by(metrics, "waiting_seconds", reason="batches") == 0
    assert _by(metrics, "waited_seconds_total", reason="schema") == 0


def test_a_disk_is_that_of_the_folder_or_of_where_it_will_lie(metrics: Metrics, tmp_path: Path) -> None:
    metrics.disk(tmp_path / "not" / "yet", "the ring")
    size = os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert _by(metrics, "disk_size_bytes") == size
    assert 0 < (_by(metrics, "disk_free_bytes") or 0) <= size


def test_a_disk_that_cannot_be_read_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    free, size = disk_bytes(tmp_path / "file" / "folder")
    assert np.isnan([free, size]).all()


def _by(metrics: Metrics, name: str, **labels: str) -> Optional[float]:
    return metrics.registry.get_sample_value(f"shoal_learner_{name}", {"run": "run-a", **labels})
