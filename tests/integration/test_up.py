"""`shoal up` as a process, with small stand-ins where the services themselves do not matter."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

LAUNCHER = """
import sys
from services.cli import modules
modules.SERVICES.update({name: "stand_in_" + name for name in modules.SERVICES})
modules.REPORT = "stand_in_report"
from services.cli.__main__ import main
sys.exit(main())
"""

# Notes its start when it can be stopped, so that a test can count lives and find who is still there.
HEAD = """
import json, os, sys, time
from pathlib import Path
from services.common.lifecycle import Lifecycle
name = sys.argv[sys.argv.index("--actor.name") + 1] if "--actor.name" in sys.argv else {role!r}
lives = Path({folder!r}) / "lives.jsonl"
life = sum(json.loads(line)["name"] == name for line in lives.read_text().splitlines()) if lives.exists() else 0
lifecycle = Lifecycle()
lifecycle.start(os.environ)
{early}
print("12:00:00 info    hello from", name, flush=True)
with lives.open("a") as stream:
    stream.write(json.dumps(dict(name=name, pid=os.getpid(), time=time.monotonic(), argv=sys.argv)) + chr(10))
"""

LOYAL = "lifecycle.stopping.wait()\n"
FINISHED = (
    "import pathlib; time.sleep(0.5); pathlib.Path('runs/a/progress.json').write_text('{\"is_finished\": true}')\n"
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
REPORT = "print('the final table', flush=True)\nsys.exit(5)\n"


class Up:
    """A launcher with its stand-ins, and what is known of them."""

    def __init__(self, folder: Path, launcher: Path) -> None:
        self.folder = folder
        self.launcher = launcher
        self.process = None
        self.processes = []
        self.output = ""

    def stand_in(self, role, body, early=""):
        head = HEAD.format(role=role, folder=str(self.folder), early=early)
        (self.folder / f"stand_in_{role}.py").write_text(head + body)

    def start(self, *words):
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.folder), *sys.path])}
        target = words or (str(self.folder / "reach.toml"), "--run.name", "a")
        self.process = subprocess.Popen(
            [sys.executable, str(self.launcher), "up", *target],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
            cwd=str(self.folder),
            start_new_session=True,
        )
        self.processes.append(self.process)
        return self

    def lives(self, name=None):
        file = self.folder / "lives.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if name in (None, line["name"])]

    def wait_for_lives(self, *names, lives=1):
        wait_until(lambda: all(len(self.lives(name)) >= lives for name in names), 20, self)
        return self

    def end(self, within_s=15.0):
        self.output, _ = self.process.communicate(timeout=within_s)
        return self.process.returncode

    def alive(self):
        return [line["name"] for line in self.lives() if is_running(line["pid"])]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, within_s, what=None):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what and (what.lives(), what.process.poll())
        time.sleep(0.02)


@pytest.fixture
def up(tmp_path):
    launcher = tmp_path / "launcher.py"
    launcher.write_text(LAUNCHER)
    (tmp_path / "reach.toml").write_text('[run]\nfolder = "runs"\n')
    made = Up(tmp_path, launcher)
    for role in ("replay", "learner", "actor", "evaluator"):
        made.stand_in(role, LOYAL)
    made.stand_in("report", REPORT)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()
    for line in made.lives():
        if is_running(line["pid"]):
            os.kill(line["pid"], signal.SIGKILL)


ALL = ("replay", "learner", "evaluator", "actor-0", "actor-1")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_all(up, number, code):
    up.start().wait_for_lives(*ALL)
    begun_s = time.monotonic()
    up.process.send_signal(number)
    assert up.end() == code
    assert time.monotonic() - begun_s < 10
    assert up.alive() == []
    assert f"{number.name}: stopping" in up.output
    assert "Traceback" not in up.output


def test_processes_are_asked_to_stop_in_order(up):
    body = LOYAL + "time.sleep(0.3); print('12:00:00 info    bye from', name, flush=True)\n"
    for role in ("replay", "learner", "actor", "evaluator"):
        up.stand_in(role, body)
    up.start().wait_for_lives(*ALL)
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130
    said = [line.split("bye from ")[1] for line in up.output.splitlines() if "bye from" in line]
    assert set(said[:3]) == {"actor-0", "actor-1", "evaluator"}
    assert said[3:] == ["learner", "replay"]


def test_who_does_not_stop_is_killed_within_ten_seconds_and_named(up):
    up.stand_in("actor", "time.sleep(60)\n", STUBBORN)
    up.start().wait_for_lives(*ALL)
    begun_s = time.monotonic()
    up.process.send_signal(signal.SIGINT)
    wait_until(lambda: up.alive() == [], 12, up)
    assert time.monotonic() - begun_s < 10.5  # the launcher's own end comes after it
    assert up.end() == 130
    assert "killing actor-0, actor-1: still there after 9.5 s" in up.output


def test_a_second_ctrl_c_kills_at_once(up):
    up.stand_in("replay", "time.sleep(60)\n", STUBBORN)
    up.start().wait_for_lives(*ALL)
    up.process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    begun_s = time.monotonic()
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130
    assert time.monotonic() - begun_s < 2
    assert up.alive() == []


def test_a_killed_launcher_leaves_nobody_behind(up):
    up.start().wait_for_lives(*ALL)
    assert len(up.alive()) == len(ALL)
    up.process.kill()
    wait_until(lambda: up.alive() == [], 10, up)


def test_after_a_killed_launcher_the_run_can_be_resumed_at_once(up):
    up.stand_in("replay", LOYAL + "time.sleep(1)\n")  # takes a while to stop
    up.start().wait_for_lives(*ALL)
    up.process.kill()
    up.process.wait()
    up.start(str(up.folder / "runs" / "a")).wait_for_lives(*ALL, lives=2)
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130
    assert "resuming run a" in up.output


@pytest.mark.parametrize("role", ["replay", "learner", "actor"])
def test_who_is_killed_comes_back_with_the_same_command(up, role):
    name = "actor-1" if role == "actor" else role
    up.start().wait_for_lives(*ALL)
    os.kill(up.lives(name)[0]["pid"], signal.SIGKILL)
    up.wait_for_lives(name, lives=2)
    first, second = up.lives(name)
    assert first["argv"] == second["argv"]
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130
    assert f"{name} ended (killed by SIGKILL); starting it again in 0.2 s" in up.output
    assert {other: len(up.lives(other)) for other in ALL if other != name} == dict.fromkeys(set(ALL) - {name}, 1)


def test_crashes_are_met_with_growing_patience(up):
    up.stand_in("actor", "raise ValueError('no camera') if name == 'actor-0' and life < 4 else None\n" + LOYAL)
    up.start().wait_for_lives("actor-0", lives=5)
    times = [line["time"] for line in up.lives("actor-0")]
    waits = [later - sooner for sooner, later in zip(times, times[1:])]
    assert [wait > floor for wait, floor in zip(waits, (0.2, 0.4, 0.8, 1.6))] == [True] * 4
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130
    assert "actor-0    | ValueError: no camera" in up.output
    assert "starting it again in 1.6 s" in up.output


def test_a_replay_that_ends_is_started_again(up):
    up.stand_in("replay", "sys.exit(0) if life == 0 else None\n" + LOYAL)
    up.start().wait_for_lives("replay", lives=2)
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130


@pytest.mark.parametrize("role", ["actor", "evaluator"])
def test_who_ends_before_training_is_finished_is_started_again_and_said(up, role):
    name = "actor-1" if role == "actor" else role
    up.stand_in(role, f"sys.exit(0) if name == {name!r} and life == 0 else None\n" + LOYAL)
    up.start().wait_for_lives(*ALL).wait_for_lives(name, lives=2)
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130
    assert f"{name} ended before training was finished (exit code 0); starting it again in 0.2 s" in up.output
    assert f"{name} is done" not in up.output


def test_who_ends_after_the_last_update_is_done(up):
    up.stand_in("learner", FINISHED + "time.sleep(1.5)\n")
    for role in ("actor", "evaluator"):
        up.stand_in(role, "while not Path('runs/a/progress.json').exists(): time.sleep(0.02)\ntime.sleep(0.1)\n")
    up.start()
    assert up.end() == 5
    assert "before training was finished" not in up.output
    assert [len(up.lives(name)) for name in ("actor-0", "actor-1", "evaluator")] == [1, 1, 1]


def test_the_users_mistake_stops_all(up):
    mistake = "print('shoal actor: env.factory names no module', file=sys.stderr); sys.exit(2)\n"
    up.stand_in("actor", f"if name == 'actor-0': {mistake}" + LOYAL)
    up.start()
    assert up.end() == 2
    assert up.output.splitlines()[-1] == "shoal: actor-0: env.factory names no module"
    assert up.alive() == []
    assert len(up.lives("actor-0")) == 1


def test_who_is_fenced_is_not_started_again(up):
    up.stand_in("actor", "sys.exit(3) if name == 'actor-0' else None\n" + LOYAL)
    up.start().wait_for_lives(*ALL)
    time.sleep(1.0)
    assert len(up.lives("actor-0")) == 1
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130
    assert "actor-0 was replaced by another of its name" in up.output


def test_finished_training_is_reported_and_the_reports_exit_code_is_the_end(up):
    up.stand_in("learner", FINISHED)
    up.stand_in("actor", "time.sleep(1.0)\n")
    up.stand_in("evaluator", "time.sleep(1.0)\n")
    up.start()
    assert up.end() == 5
    assert "learner is done" in up.output
    assert up.output.splitlines()[-1] == "the final table"
    assert up.lives("report")[0]["argv"][1:] == ["runs/a"]
    assert up.alive() == []


def test_a_learner_that_was_stopped_before_its_last_update_is_started_again(up):
    up.stand_in("learner", "time.sleep(0.3)\n")
    up.start()
    up.wait_for_lives("learner", lives=2)
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130
    assert up.lives("report") == []


def test_who_takes_its_time_but_stops_within_the_budget_is_not_killed(up):
    up.stand_in("actor", LOYAL + "time.sleep(5.0)\nprint('12:00:00 info    the last chunk is sent', flush=True)\n")
    up.start().wait_for_lives(*ALL)
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130
    assert "killing" not in up.output
    assert up.output.count("the last chunk is sent") == 2


def test_actors_that_do_not_hear_of_the_end_are_stopped(up):
    up.stand_in("learner", FINISHED)
    begun_s = time.monotonic()
    up.start()
    assert up.end(25) == 5
    assert 8 < time.monotonic() - begun_s < 20
    assert "still running 8 s after the learner: evaluator, actor-0, actor-1" in up.output


def test_ctrl_c_during_the_report(up):
    up.stand_in("learner", FINISHED)
    for role in ("actor", "evaluator"):
        up.stand_in(role, "")
    up.stand_in("report", LOYAL)
    up.start().wait_for_lives("report")
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130
    assert up.alive() == []


def test_every_process_has_its_log(up):
    up.start().wait_for_lives(*ALL)
    up.process.send_signal(signal.SIGINT)
    up.end()
    logs = up.folder / "runs" / "a" / "logs"
    assert {log.stem for log in logs.iterdir()} == {*ALL, "shoal"}
    assert "hello from actor-1" in (logs / "actor-1.log").read_text()
    assert "actor-1    | 12:00:00 info    hello from actor-1" in up.output


def test_the_same_run_is_not_started_twice(up):
    up.start().wait_for_lives(*ALL)
    second = subprocess.run(
        [sys.executable, str(up.launcher), "up", str(up.folder / "runs" / "a")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert second.returncode == 2
    assert second.stderr.startswith(f"shoal: run 'a' is running already, watched by process {up.process.pid}")
    assert len(up.lives()) == len(ALL)


def test_other_settings_do_not_resume(up):
    up.start().wait_for_lives(*ALL)
    up.process.send_signal(signal.SIGINT)
    up.end()
    up.start(str(up.folder / "runs" / "a"), "--env.lanes", "3")
    assert up.end() == 2
    assert up.output == (
        "shoal: run 'a' exists with other settings: env.lanes = 3 (was 16); set it back to resume it, "
        "or choose a new run.name\n"
    )


def test_a_busy_port_is_said_before_anything_starts(up):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        up.start(str(up.folder / "reach.toml"), "--learner.address", f"127.0.0.1:{port}")
        assert up.end() == 2
    assert f"shoal: learner.address: port {port} of 127.0.0.1 is busy" in up.output
    assert up.lives() == []


def test_children_see_the_config_file_and_no_overrides_of_the_environment(up, monkeypatch):
    monkeypatch.setenv("SHOAL_RUN__SEED", "77")
    up.stand_in(
        "actor", "print('seen:', [key for key in os.environ if key.startswith('SHOAL_')], flush=True)\n" + LOYAL
    )
    up.start().wait_for_lives(*ALL)
    log = up.folder / "runs" / "a" / "logs" / "actor-0.log"
    wait_until(lambda: log.exists() and "seen:" in log.read_text(), 10)
    up.process.send_signal(signal.SIGINT)
    up.end()
    assert "seen: []" in up.output
    assert "seed = 77" in (up.folder / "runs" / "a" / "config.toml").read_text()
    assert up.lives("replay")[0]["argv"][1] == "runs/a/config.toml"


def test_a_status_line_comes_without_a_terminal(up):
    up.start().wait_for_lives(*ALL)
    time.sleep(6.0)
    up.process.send_signal(signal.SIGINT)
    up.end()
    assert any(line.startswith("shoal      | 0:0") and " training" in line for line in up.output.splitlines())
