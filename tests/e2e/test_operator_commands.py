"""The operator's commands on real processes: a run is drained, looked at, killed while it rests, and goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

from tests.e2e.launcher import Launcher, wait_for

ROOT = Path(__file__).resolve().parents[2]
REACH = "configs/arm_reach.toml"
Up = Callable[..., Launcher]


def shoal(*words: str, timeout_s: float = 120.0) -> Tuple[int, str]:
    """Exit code and output of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout.decode()


def top(folder: Path) -> Dict[str, Any]:
    code, text = shoal("top", str(folder), "--json")
    assert code in (0, 1), text
    facts: Dict[str, Any] = json.loads(text)
    return facts


def wait_for_updates(folder: Path, more_than: int, timeout_s: float = 120.0) -> int:
    def look() -> Optional[int]:
        if not (folder / "endpoints.json").exists():
            return None
        learner = top(folder)["learner"]
        return learner["updates"] if learner and learner["updates"] > more_than else None

    return wait_for(look, f"update {more_than}", timeout_s)


def equations(folder: Path) -> Dict[str, Dict[str, Any]]:
    """What `shoal audit` says, by the left side; all of it holds."""
    code, text = shoal("audit", str(folder), "--json")
    facts = json.loads(text)
    assert (code, facts["holds"]) == (0, True), text
    return {each["left"]: each for each in facts["equations"]}


def produced_is_acknowledged(folder: Path) -> int:
    """Nothing is buffered or dropped by any actor; returns the steps that the replay acknowledged."""
    found = equations(folder)
    actors = [each for left, each in found.items() if left.startswith("produced by")]
    assert len(actors) == 2
    for each in actors:
        assert each["right"].get("buffered", 0) == 0, each
        assert not any(term.startswith("dropped") for term in each["right"]), each
    return int(found["acknowledged"]["total"])


@pytest.mark.timeout(600)
def test_a_drained_run_rests_whoever_is_restarted_and_goes_on_when_it_is_undone(up: Up, tmp_path: Path) -> None:
    launcher = up(REACH, "--run.name", "drained", "--helper.count", "1", "--learner.max_updates", "1000000")
    folder = tmp_path / "runs" / "drained"
    wait_for_updates(folder, 100)
    for _ in range(3):
        equations(folder)  # while everything goes on
    code, text = shoal("drain", str(folder))
    assert code == 0, text
    assert "actors are at rest" in text
    assert re.search(r"the learner is at rest: checkpoint of [\d ]+ updates", text)
    assert text.rstrip().splitlines()[-1].startswith("it is safe to stop all services")
    steps = produced_is_acknowledged(folder)

    victim = launcher.children()["actor-0"]
    os.kill(victim, signal.SIGKILL)
    launcher.wait_for_child("actor-0", other_than=victim)

    def is_back() -> Optional[bool]:
        return {each["name"]: each["state"] for each in top(folder)["processes"]}.get("actor-0") == "at rest" or None

    wait_for(is_back, "the new actor's rest", 60)
    before = top(folder)
    time.sleep(3.0)
    after = top(folder)
    assert after["learner"]["drain"] == "drained"
    assert after["learner"]["updates"] == before["learner"]["updates"]
    assert equations(folder)["acknowledged"]["total"] == steps  # the restarted actor made no step
    waits = shoal("why", str(folder))[1]
    for words in ("actor-0 waits", "actor-1 waits", "learner waits", "helper-0 waits", "`shoal drain --undo`"):
        assert words in waits, waits

    assert shoal("drain", str(folder), "--undo")[0] == 0
    wait_for_updates(folder, after["learner"]["updates"] + 20)
    wait_for(lambda: equations(folder)["acknowledged"]["total"] > steps or None, "new steps", 60)
    assert launcher.process.poll() is None


@pytest.mark.timeout(600)
def test_what_was_drained_is_there_after_everything_was_killed(up: Up, tmp_path: Path) -> None:
    flags = ["--run.name", "killed", "--learner.max_updates", "1000000"]
    launcher = up(REACH, *flags)
    folder = tmp_path / "runs" / "killed"
    wait_for_updates(folder, 100)
    copy = tmp_path / "copy"
    code, text = shoal("drain", str(folder), "--snapshot", str(copy))
    assert code == 0, text
    assert (copy / "format.json").exists() or any(copy.iterdir())
    saved = int(re.findall(r"checkpoint of ([\d ]+) updates", text)[0].replace(" ", ""))
    assert saved == top(folder)["learner"]["updates"] >= 100
    steps = produced_is_acknowledged(folder)
    pids: List[int] = [launcher.process.pid, *launcher.children().values()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    launcher.wait(20)
    again = up(REACH, *flags)
    wait_for_updates(folder, saved + 20)  # a start goes on by itself
    resumed = re.findall(r"resumed +updates=(\d+) lost_updates=0 env_steps=(\d+)", again.output())
    assert resumed == [(str(saved), str(steps))]
    assert equations(folder)["acknowledged"]["total"] > steps


@pytest.mark.timeout(300)
def test_top_and_why_survive_a_learner_that_is_killed_and_say_so(up: Up, tmp_path: Path) -> None:
    flags = ["--actor.max_policy_age_s", "2", "--learner.max_updates", "1000000", "--actor.count", "1"]
    # Without a limit nothing else holds the actor: with one it would wait for samples that nobody draws.
    launcher = up(REACH, "--run.name", "away", "--replay.samples_per_insert", "0", *flags)
    folder = tmp_path / "runs" / "away"
    wait_for_updates(folder, 20)
    os.kill(launcher.children()["learner"], signal.SIGSTOP)
    try:
        code, text = shoal("top", str(folder), "--once")
        assert code == 1
        assert "▲ learner" in text
        assert "does not answer" in text
        assert "● replay" in text

        def look() -> Optional[str]:
            waits = shoal("why", str(folder))[1]
            return waits if "actor-0 waits" in waits and "parked: the chief" in waits else None

        waits = wait_for(look, "an actor that parks", 60)
        assert "every actor waits: no learner answers" in waits
        code, text = shoal("drain", str(folder), timeout_s=60)
        assert code == 2
        assert "no answer from a learner at" in text
    finally:
        os.kill(launcher.children()["learner"], signal.SIGCONT)
