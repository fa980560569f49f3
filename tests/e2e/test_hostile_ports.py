"""Strangers at each port of a whole run: every process goes on, and Prometheus and its peers are served."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional

import pytest

from services.common.metrics_server import MAX_READERS, SLOWEST_S
from tests.e2e.launcher import Launcher, wait_for
from tests.e2e.metrics_page import scrape
from tests.e2e.test_metrics import endpoints
from tests.integration import http2

NAMES = ["replay", "learner", "helper-0", "evaluator", "actor-0"]
AT_WORK = {
    "replay": "shoal_replay_acknowledged_steps_total",
    "learner": "shoal_learner_updates_total",
    "helper-0": "shoal_helper_pushes_accepted_total",
    "evaluator": "shoal_evaluator_evaluated_version",
    "actor-0": "shoal_actor_sent_steps_total",
}
RESIDENT = "process_resident_memory_bytes"
MOST_BYTES = 128 << 20  # that a process may take for the strangers at one of its ports


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
            return {
                name: float(value) for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", scrape(address), re.M)
            }
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
    _until_more(ports, dict.fromkeys(AT_WORK, 0.0))  # all of them have taken the memory that work takes
    lives = launcher.children()
    strangers = []
    for name, service in (("replay", "ReplayService"), ("learner", "ParameterService")):
        listens = re.search(r"address=(\S+)", (folder / "logs" / f"{name}.log").read_text())
        assert listens is not None
        strangers += _harass(listens.group(1), f"/shoal.v1.{service}/GetInfo")
    for name, address in ports.items():
        before = _served(address)
        strangers += _harass(address, "/metrics")
        assert _served(address)[RESIDENT] - before[RESIDENT] < MOST_BYTES, name
    _until_more(ports, {name: _served(ports[name])[metric] for name, metric in AT_WORK.items()})
    assert launcher.children() == lives, "a process was started again"
    for stranger in strangers:
        stranger.close()


def _until_more(ports: Dict[str, str], than: Dict[str, float]) -> None:
    """Wait until each process has done more than that."""

    def look() -> Optional[bool]:
        return all(_served(ports[name]).get(AT_WORK[name], 0.0) > value for name, value in than.items()) or None

    wait_for(look, "work of every process", 90)
