"""`shoal up` with helpers: trains to its bar, whoever is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import pytest

from tests.e2e.launcher import Launcher, evaluations, wait_for

Up = Callable[..., Launcher]
REACH = "configs/arm_reach.toml"
HELPERS = ("--helper.count", "2", "--gradients.lease_s", "2")


def succeeds(launcher: Launcher, folder: Path, timeout_s: float = 500) -> None:
    assert launcher.wait(timeout_s) == 0, launcher.output()
    result: Dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert result["success_rate"] >= 0.9
    assert result["updates"] >= 5000
    versions = [e["version"] for e in evaluations(folder)]
    assert versions == sorted(set(versions)), "a version was used twice"
    assert "Traceback" not in launcher.output()


def log_of(folder: Path, name: str) -> str:
    return (folder / "logs" / f"{name}.log").read_text()


def wait_until_helped(folder: Path, updates: int) -> None:
    """Training is under way, and both helpers take part."""

    def look() -> Optional[bool]:
        helped = (folder / "logs" / "learner.log").exists() and log_of(folder, "learner").count("a helper joins") >= 2
        return (helped and any(e["updates"] >= updates for e in evaluations(folder))) or None

    wait_for(look, f"an evaluation at update {updates} with two helpers", 240)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["helper-1", "learner"])
def test_training_with_helpers_survives_a_kill(up: Up, tmp_path: Path, victim: str) -> None:
    launcher = up(REACH, "--run.name", "killed", *HELPERS)
    folder = tmp_path / "runs" / "killed"
    wait_until_helped(folder, 500)
    pid = launcher.children()[victim]
    os.kill(pid, signal.SIGKILL)
    assert launcher.wait_for_child(victim, other_than=pid) != pid
    succeeds(launcher, folder)
    for name in ("helper-0", "helper-1"):
        assert "no more help is needed" in log_of(folder, name)
        assert (folder / "helpers" / f"{name}.safetensors").stat().st_size > 1000
    # Who was killed takes part again; whose chief was killed drops what it had computed and helps the next one.
    if victim == "learner":
        assert all(log_of(folder, name).count("helping the chief") >= 2 for name in ("helper-0", "helper-1"))
    else:
        assert log_of(folder, "learner").count("helper=helper-1") >= 2


@pytest.mark.timeout(300)
def test_ctrl_c_stops_everything_within_ten_seconds_and_helpers_keep_their_residual(up: Up, tmp_path: Path) -> None:
    launcher = up(REACH, "--run.name", "stopped", *HELPERS)
    folder = tmp_path / "runs" / "stopped"
    wait_until_helped(folder, 100)
    began = time.monotonic()
    launcher.process.send_signal(signal.SIGINT)
    launcher.wait(12)
    assert time.monotonic() - began < 10
    assert "killing" not in launcher.output()
    for name in ("helper-0", "helper-1"):
        assert "helping stops early" in log_of(folder, name)
        assert (folder / "helpers" / f"{name}.safetensors").stat().st_size > 1000
