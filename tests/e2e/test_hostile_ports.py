"""Strangers at each port of a whole run: every process goes on, and Prometheus and its peers are served."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from pathlib import Path
from typing import Callable, Dict, List

import pytest

from services.common.metrics_server import MAX_READERS, SLOWEST_S
from tests.e2e.launcher import Launcher
from tests.e2e.metrics_page import scrape
from tests.e2e.test_metrics import endpoints, service_of
from tests.integration import http2

NAMES = ["replay", "learner", "helper-0", "evaluator", "actor-0"]
MOST_BYTES = 64 << 20  # that a process may take for the strangers at one of its ports


def _harass(address: str, path: str) -> List[socket.socket]:
    """All that is foreign, and more connections than are served that say nothing; they stay open."""
    host, _, port = address.rpartition(":")
    strangers = []
    for content in [*http2.foreign(path).values()] * 2 + [b"G"] * 2 * MAX_READERS:
        stranger = socket.create_connection((host, int(port)), 5)
        strangers.append(stranger)
        stranger.settimeout(5)
        with contextlib.suppress(OSError):  # hung up in the middle: that is its right
            stranger.sendall(content)
    return strangers


def _served(address: str) -> Dict[str, float]:
    """The metrics without labels, as soon as Prometheus gets at them."""
    deadline_s = time.monotonic() + SLOWEST_S
    while True:
        try:
            return {name: float(value) for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", scrape(address), re.M)}
        except OSError:
            assert time.monotonic() < deadline_s, "nobody gets at the metrics"
            time.sleep(0.1)


@pytest.mark.timeout(300)
def test_strangers_at_every_port_harm_nothing(up: Callable[..., Launcher], tmp_path: Path) -> None:
    launcher = up(
        *("configs/arm_reach.toml", "--run.name", "besieged", "--helper.count", "1", "--actor.count", "1"),
        *("--learner.max_updates", "1000000", "--evaluator.episodes", "10"),
    )
    folder = tmp_path / "runs" / "besieged"
    ports = endpoints(folder, NAMES)
    before = {name: _served(address) for name, address in ports.items()}
    strangers = []
    for name, service in (("replay", "ReplayService"), ("learner", "ParameterService")):
        listens = re.search(r"address=(\S+)", (folder / "logs" / f"{name}.log").read_text())
        assert listens is not None
        strangers += _harass(listens.group(1), f"/shoal.v1.{service}/GetInfo")
    for name, address in ports.items():
        strangers += _harass(address, "/metrics")
        after = _served(address)
        resident = f"shoal_{service_of(name)}_process_resident_memory_bytes"
        resident = resident if resident in after else "process_resident_memory_bytes"
        assert after[resident] - before[name][resident] < 4 * MOST_BYTES, name
    time.sleep(1.0)
    then = {name: _served(ports[name]) for name in ("replay", "learner")}
    acknowledged, updates = "shoal_replay_acknowledged_steps_total", "shoal_learner_updates_total"
    assert then["replay"][acknowledged] > before["replay"][acknowledged]
    deadline_s = time.monotonic() + 60
    while _served(ports["learner"])[updates] <= then["learner"][updates]:
        assert time.monotonic() < deadline_s, "training does not go on"
        time.sleep(0.2)
    assert launcher.process.poll() is None
    assert "is started again" not in launcher.output()
    for stranger in strangers:
        stranger.close()
