"""Services started by hand, without `shoal up`: in any order, on Python 3.8 too, and stopped by SIGTERM."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional

import pytest

from tests.e2e.launcher import evaluations, wait_for, with_flags

ROOT = Path(__file__).resolve().parents[2]
PYTHON38 = ROOT / ".venv-py38" / "bin" / "python"
RUN_FILE = ROOT / "configs" / "arm_reach.toml"
MODULES = {
    "replay": "services.replay",
    "learner": "services.learner",
    "evaluator": "services.actor.evaluator",
    "actor-0": "services.actor",
    "actor-1": "services.actor",
}


def free_ports(count: int) -> List[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Services:
    """Processes of one run, each with a log of its own."""

    def __init__(self, folder: Path) -> None:
        replay, learner = free_ports(2)
        self.folder = folder
        self.run_folder = folder / "runs" / "by-hand"
        self.processes: Dict[str, subprocess.Popen[bytes]] = {}
        self._flags = ["--run.name", "by-hand", "--run.folder", str(folder / "runs")]
        self._flags += ["--replay.addresses", f"127.0.0.1:{replay}", "--learner.address", f"127.0.0.1:{learner}"]
        for service in ("replay", "learner", "evaluator"):
            self._flags += [f"--{service}.metrics_port", "0"]

    def start(self, name: str, *flags: str, python: str = sys.executable) -> None:
        words = [python, "-m", MODULES[name], str(RUN_FILE), *with_flags(self._flags, flags)]
        if name.startswith("actor-"):
            words += ["--actor.name", name]
        with (self.folder / f"{name}.log").open("ab") as log:
            environ = {**os.environ, "OMP_NUM_THREADS": "1"}
            self.processes[name] = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environ, cwd=ROOT)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, name: str, timeout_s: float) -> int:
        return self.processes[name].wait(timeout_s)

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(5)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = Services(tmp_path)
    yield made
    made.stop()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_services_come_up_in_any_order(services: Services, seed: int) -> None:
    names = random.Random(seed).sample(list(MODULES), len(MODULES))
    for name in names:
        services.start(name, "--learner.max_updates", "300", "--evaluator.episodes", "10")
        time.sleep(0.3)
    for name in ("learner", "evaluator", "actor-0", "actor-1"):
        assert services.wait(name, 90) == 0, (names, name, services.log(name))
    services.processes["replay"].send_signal(signal.SIGTERM)
    assert services.wait("replay", 10) == 0
    assert evaluations(services.run_folder)[-1]["updates"] == 300


@pytest.mark.timeout(120)
def test_every_service_stops_within_ten_seconds_of_sigterm(services: Services) -> None:
    for name in MODULES:
        services.start(name)
    wait_for(lambda: evaluations(services.run_folder) or None, "a first evaluation", 60)
    for name in itertools.chain(["actor-0"], ["evaluator", "learner"], ["actor-1", "replay"]):
        began = time.monotonic()
        services.processes[name].send_signal(signal.SIGTERM)
        assert services.wait(name, 10) == 0, services.log(name)
        assert time.monotonic() - began < 10


@pytest.mark.timeout(120)
def test_every_service_ends_within_ten_seconds_of_the_last_update(services: Services) -> None:
    for name in MODULES:
        services.start(name, "--learner.max_updates", "300", "--evaluator.episodes", "4")
    wait_for(lambda: "training is finished" in services.log("learner") or None, "the last update", 90)
    began = time.monotonic()
    for name in ("learner", "evaluator", "actor-0", "actor-1"):
        assert services.wait(name, 10) == 0, services.log(name)
    assert time.monotonic() - began < 10
    # The replay serves whoever comes, until it is told.
    assert services.processes["replay"].poll() is None


@pytest.mark.timeout(240)
def test_an_actor_on_python_38_without_torch_trains_the_arm(services: Services) -> None:
    if not PYTHON38.exists():
        pytest.skip("NOT TESTED: no venv of Python 3.8; `make test38` makes one where there is such a Python")
    version = subprocess.run([str(PYTHON38), "-V"], stdout=subprocess.PIPE, check=True).stdout.decode()
    assert version.startswith("Python 3.8.")
    for name in ("replay", "learner", "evaluator"):
        services.start(name, "--learner.max_updates", "2500")
    for name in ("actor-0", "actor-1"):
        services.start(name, python=str(PYTHON38))
    assert services.wait("learner", 200) == 0, services.log("learner")

    def look() -> Optional[bool]:
        return max(e["success_rate"] for e in evaluations(services.run_folder)) >= 0.9 or None

    wait_for(look, "90 % success", 5)
    for name in ("actor-0", "actor-1"):
        assert services.wait(name, 15) == 0, services.log(name)


@pytest.mark.timeout(60)
def test_a_peer_of_another_run_is_refused_in_one_sentence(services: Services) -> None:
    services.start("replay")
    services.start("actor-0", "--run.name", "another")
    assert services.wait("actor-0", 30) == 2
    assert "belongs to run 'another', this service to run 'by-hand'" in services.log("actor-0")
    assert "Traceback" not in services.log("actor-0")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--env.factory", "no.such.module:make"], "cannot be imported"),
        (["--env.factory", "os:getcwd"], "could not be built"),
        (["--env.factory", "CartPole-v9"], "did you mean"),
        (["--env.factory", "CartPole-v1", "--env.kwargs", "{}"], "td3 needs continuous actions"),
        (["--actor.index", "7"], "the index runs from 0 to count - 1"),
    ],
)
def test_a_wrong_environment_is_one_sentence(services: Services, flags: List[str], sentence: str) -> None:
    services.start("actor-0", *flags)
    assert services.wait("actor-0", 30) == 2
    log = services.log("actor-0")
    assert sentence in log
    assert "Traceback" not in log
