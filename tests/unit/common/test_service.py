from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Takes as long to be taken down as a large library on a starved machine.
LIBRARY = """
import time
class Module:
    def __del__(self, sleep=time.sleep):
        sleep(60)
library = Module()
"""
PROCESS = (
    LIBRARY
    + """
import sys
from services.common.errors import Crash, Fenced, UserError
from services.common.rpc import Refused, Stopped
from services.common.service import end_process, main
def run(config, lifecycle, log):
    print("run", config.run.name, config.run.seed, config.helper.chief, flush=True)
    how = sys.argv[1]
    if how == "stopped": raise Stopped
    if how == "crash": raise ZeroDivisionError("mended by a restart")
    if how == "simulator": raise Crash("the environment ended the process")
    if how == "fenced": raise Fenced("a newer life")
    if how == "log":
        log.debug("a detail")
        log.info("a fact")
    if how == "thread":
        def fail(): raise Fenced("heard from a thread")
        lifecycle.spawn("worker", fail)
        lifecycle.stopping.wait(5)
        raise Stopped
    if how.startswith("in a stop"):
        import os, signal
        os.kill(os.getpid(), signal.SIGTERM)
        lifecycle.stopping.wait(5)
        if how == "in a stop, refused": raise Refused("the token was withdrawn")
        if how == "in a stop, fenced in a thread":
            def fail(): raise Fenced("heard from a thread")
            lifecycle.spawn("worker", fail).join()
        if how == "in a stop, refused after a crash in a thread":
            def fail(): raise Crash("the last checkpoint is not written")
            lifecycle.spawn("worker", fail).join()
            raise Refused("the token was withdrawn")
        if how == "in a stop, the disk is full": raise UserError("no space is left")
    if how == "exit functions":
        import atexit, multiprocessing, tempfile, threading
        sys.argv = [""]  # which the child is not to read
        folder = tempfile.TemporaryDirectory()
        atexit.register(lambda: print("exit function, thread ended:", not thread.is_alive()))
        thread = threading.Thread(target=time.sleep, args=(0.2,))
        thread.start()
        child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), daemon=True)
        child.start()
        library.folder = folder  # they live as long as the process
        library.child = child
        print(folder.name, child.pid)
flags = {"--chief": "--helper.chief"}
end_process(main("demo", run, sys.argv[2:], short_flags=flags, name_of=lambda _config: "helper"))
"""
)


def _run(how: str, *arguments: str) -> Any:
    return subprocess.run(
        [sys.executable, "-c", PROCESS, how, *arguments], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("return", 0, ""),
        ("stopped", 0, ""),
        ("crash", 1, "ZeroDivisionError: mended by a restart"),
        ("simulator", 1, "shoal demo: the environment ended the process"),
        ("fenced", 3, "shoal demo: a newer life"),
        ("thread", 3, "shoal demo: heard from a thread"),
        ("in a stop", 0, ""),
        ("in a stop, refused", 0, ""),
        ("in a stop, fenced in a thread", 0, ""),
        ("in a stop, refused after a crash in a thread", 1, "shoal demo: the last checkpoint is not written"),
        ("in a stop, the disk is full", 2, "shoal demo: no space is left"),
    ],
)
def test_exit_codes(how: str, code: int, said: str, tmp_path: Path) -> None:
    file = tmp_path / "arm.toml"
    file.write_text("[run]\nseed = 4\n")
    ended = _run(how, str(file))
    assert ended.returncode == code
    assert ended.stdout.startswith("run arm 4 \n")  # the file's stem names a run without a name
    assert said in ended.stderr
    assert ("Traceback" in ended.stderr) == (how == "crash")


def test_a_refusal_in_a_stop_is_told() -> None:
    said = _run("in a stop, refused").stdout
    assert "warning a last call was refused reason='the token was withdrawn'" in said
    assert said.endswith("stopped reason=SIGTERM\n")


def test_what_relies_on_the_end_of_a_process_is_done() -> None:
    ended = _run("exit functions")
    assert (ended.returncode, ended.stderr) == (0, "")
    words = next(line for line in ended.stdout.splitlines() if line.startswith("/")).split()
    assert not Path(words[0]).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(words[1]), 0)
    assert ended.stdout.endswith("exit function, thread ended: True\n")


MODULES = ["services.replay", "services.learner", "services.actor", "services.actor.evaluator"]


@pytest.mark.parametrize("module", MODULES)
def test_every_service_ends_without_taking_its_modules_down(module: str) -> None:
    probe = f"{LIBRARY}import runpy, sys\nsys.argv[1:] = ['--help']\n"
    probe += f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    ended = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage: shoal ")


def test_a_mistake_in_the_run_file_is_told_without_a_traceback() -> None:
    ended = _run("return", "--run.sed", "4")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "shoal demo: flag --run.sed: unknown key 'run.sed'; did you mean 'run.seed'?\n"


def test_help_needs_no_run_file() -> None:
    ended = _run("crash", "--help")
    assert ended.returncode == 0
    assert ended.stdout.startswith("usage: shoal demo [FILE.toml] [--chief VALUE] [--section.key VALUE ...]")


@pytest.mark.parametrize("flags", [("--chief", "127.0.0.1:99"), ("--chief=127.0.0.1:99",)])
def test_a_short_flag_stands_for_its_key(flags: Any) -> None:
    assert _run("return", *flags).stdout.startswith("run shoal 1 127.0.0.1:99\n")
    twice = _run("return", *flags, "--helper.chief", "127.0.0.1:98")
    assert (twice.returncode, twice.stderr) == (
        2,
        "shoal demo: flag --helper.chief is given twice; leave one of them out\n",
    )


def test_each_service_has_the_level_that_the_run_file_gives_it() -> None:
    assert "a detail" not in _run("log").stdout
    assert "a detail" in _run("log", "--log.level", "debug").stdout
    assert "a detail" in _run("log", "--log.levels.helper", "debug").stdout  # as the process calls itself
    assert "a detail" not in _run("log", "--log.level", "debug", "--log.levels.helper", "info").stdout
    assert "a detail" not in _run("log", "--log.levels.replay", "debug").stdout
    (line,) = (line for line in _run("log", "--log.style", "json").stdout.splitlines() if "a fact" in line)
    assert json.loads(line)["service"] == "helper"


def test_a_level_of_no_service_is_refused() -> None:
    ended = _run("log", "--log.levels.learnr", "debug")
    assert ended.returncode == 2
    assert "unknown key 'log.levels.learnr': it must be 'replay', 'learner'" in ended.stderr
