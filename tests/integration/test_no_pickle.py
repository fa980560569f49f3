"""No pickle: not in the sources, and not in a process that trains. What is unpickled may run any code."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional

import numpy as np
import pytest

from tests.e2e.launcher import Launcher, wait_for
from tests.source_names import IMPORTERS, Names, text_of

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(file for folder in ("services", "proto", "examples") for file in (ROOT / folder).rglob("*.py"))
# Modules that pickle, or have no other use than to send pickled objects about; with whatever lies in them.
FORBIDDEN = {
    "pickle", "cPickle", "_pickle", "pickletools", "cloudpickle", "dill", "joblib", "marshal", "shelve", "copyreg",
    "multiprocessing", "torch.multiprocessing", "torch.package", "torch.distributed.rpc", "numpy.lib.npyio",
    "concurrent.futures.process",
}  # fmt: skip
# Names that load or write pickles.
LOADERS = {
    "torch.load", "torch.save", "torch.jit.load", "torch.serialization.load", "torch.hub.load_state_dict_from_url",
    "pandas.read_pickle", "concurrent.futures.ProcessPoolExecutor", "numpy.lib.format.read_array", "numpy.loads",
}  # fmt: skip
ANY_SOURCE = {"exec", "eval", "runpy.run_path", "runpy.run_module", "builtins.exec", "builtins.eval"}
NUMPY_LOAD = "numpy.load"  # with allow_pickle, its third argument
# Where a module is imported whose name is not in the source: environments, which are code of the user's.
ANY_MODULE = {
    "services/actor/envs/factory.py": "module_name",
    "services/actor/envs/isaac_lab.py": "module",
}

# Put into a process by the name that Python looks for at its start: it notes that it was loaded. Whatever is unpickled
# is noted, and ends the process; so does a fork that goes on with Python, which gRPC and CUDA do not stand.
HOOK = """
import os, pickle, sys
import _pickle

def write(name, what):
    descriptor = os.open(os.environ["PICKLES_ARE_NOTED_IN"] + name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, (what + chr(10)).encode())
    os.close(descriptor)

def note(what):
    write("", what)
    os._exit(99)

class Unpickler(pickle.Unpickler):
    def __init__(self, *args, **values):
        note("pickle.Unpickler")

def watch(event, args):
    if event in ("pickle.find_class", "os.fork", "os.forkpty"):
        note(f"{event} {args}")

sys.addaudithook(watch)
for module in (pickle, _pickle):
    module.load = lambda *args, **values: note("pickle.load")
    module.loads = lambda *args, **values: note("pickle.loads")
    module.Unpickler = Unpickler

import numpy
_load = numpy.load

def load(*args, **values):
    if values.get("allow_pickle") or len(args) > 2 and args[2]:
        note("numpy.load(allow_pickle=True)")
    return _load(*args, **values)

numpy.load = load
with open("/proc/self/cmdline") as stream:
    write(".hooked", stream.read().replace(chr(0), " "))
"""


def _is_forbidden(name: str) -> bool:
    return name in LOADERS or any(name == each or name.startswith(f"{each}.") for each in FORBIDDEN)


def faults_in(source: str, any_module: str = "") -> List[str]:
    """What in a module's source unpickles, or could.

    Args:
        source: of the module.
        any_module: the variable whose module may be imported, whatever it is.
    """
    tree = ast.parse(source)
    names = Names(tree)
    found = [name for name in names.imported if _is_forbidden(name)]
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and _is_forbidden(names.of(node)):
            found.append(names.of(node))
        if isinstance(node, ast.Call):
            found += _faults_of_call(node, names.of(node.func), any_module)
    return found


def _faults_of_call(call: ast.Call, name: str, any_module: str) -> List[str]:
    found = [name] if name in ANY_SOURCE else []
    if name in IMPORTERS:
        module = call.args[0] if call.args else ast.Constant("")
        if not text_of(module) and not (isinstance(module, ast.Name) and module.id == any_module):
            found.append(f"{name} of a module whose name is not in the source")
    values = {keyword.arg: keyword.value for keyword in call.keywords}
    allowed = values.get("allow_pickle")
    if allowed is not None and not (isinstance(allowed, ast.Constant) and allowed.value is False):
        found.append("allow_pickle")
    is_open = len(call.args) > 2 or None in values or any(isinstance(each, ast.Starred) for each in call.args)
    if name == NUMPY_LOAD and is_open:
        found.append(f"{name} with arguments that may allow pickles")
    return found


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_source_unpickles(file: Path) -> None:
    any_module = ANY_MODULE.get(file.relative_to(ROOT).as_posix(), "")
    assert faults_in(file.read_text(encoding="utf-8"), any_module) == []


@pytest.mark.parametrize("name", ANY_MODULE)
def test_no_more_is_let_through_than_is_there(name: str) -> None:
    (fault,) = faults_in((ROOT / name).read_text(encoding="utf-8"))
    assert fault == "importlib.import_module of a module whose name is not in the source"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "from pickle import loads as read",
        "import joblib.x",
        "def f():\n    import dill",
        "__import__('pickle').loads(x)",
        "import importlib; importlib.import_module('pickle')",
        "from importlib import import_module as load; load('_pickle')",
        "import importlib; importlib.import_module(f'pickle{x}')",
        "import importlib; importlib.import_module(name)",
        "import importlib as i; i.import_module(name=x)",
        "import builtins; builtins.__import__(name)",
        "import torch; torch.load(f)",
        "import torch as t; t.load(f, weights_only=True)",
        "from torch import load",
        "from torch import load as l; l(f)",
        "import torch; reader = torch.load",
        "import torch; getattr(torch, 'load')(f)",
        "import torch; torch.save(x, f)",
        "import torch.multiprocessing",
        "from torch import multiprocessing",
        "import multiprocessing; multiprocessing.Queue()",
        "from multiprocessing import Pool",
        "from multiprocessing.connection import Client",
        "from concurrent.futures import ProcessPoolExecutor",
        "import concurrent.futures; concurrent.futures.ProcessPoolExecutor()",
        "import pandas as pd; pd.read_pickle(f)",
        "import numpy as np; np.load(f, allow_pickle=True)",
        "import numpy as np; np.load(f, allow_pickle=x)",
        "import numpy as np; np.load(f, x, True)",
        "import numpy as np; np.load(f, **options)",
        "from numpy import load; load(*args)",
        "exec(text)",
        "import runpy; runpy.run_path(x)",
    ],
)
def test_what_unpickles_is_found(source: str) -> None:
    assert faults_in(source)


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np; np.load(f); np.load(f, allow_pickle=False)",
        "import torch; torch.no_grad(); model.load(f); model.eval()",
        "import importlib; importlib.import_module(f'services.agent.{name}')",
        "from concurrent.futures import ThreadPoolExecutor",
        "from safetensors.torch import load, save; load(f)",
        "import json; json.loads(x)",
    ],
)
def test_what_does_not_unpickle_is_let_through(source: str) -> None:
    assert faults_in(source) == []


def _hooked(tmp_path: Path) -> dict:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "proto")])
    return {**os.environ, "PYTHONPATH": path, "PICKLES_ARE_NOTED_IN": str(tmp_path / "pickles")}


@pytest.mark.parametrize(
    "statement",
    [
        "import pickle; pickle.loads(b'N.')",
        "from _pickle import loads; loads(b'N.')",
        "import io, pickle; pickle.Unpickler(io.BytesIO(b'N.')).load()",
        "import io, pickle; pickle._Unpickler(io.BytesIO(b'cos\\nsystem\\n.')).load()",
        "import numpy; numpy.load('x', allow_pickle=True)",
        "import os; os.fork()",
    ],
)
def test_the_hook_sees_it(statement: str, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", statement], env=_hooked(tmp_path), check=False)
    assert ended.returncode == 99
    assert re.search("pickle|fork", (tmp_path / "pickles").read_text())
    assert statement.partition(";")[0] in (tmp_path / "pickles.hooked").read_text()


MODULES = {
    "services.cli": "cli",
    "services.replay": "replay",
    "services.learner": "learner",
    "services.actor": "actor",
    "services.actor.evaluator": "evaluator",
}
FLAGS = {
    "run.name": "pickles",
    "learner.checkpoint_period_s": "0.5",
    "learner.address": "127.0.0.1:0",
    "learner.metrics_port": "0",
    "replay.addresses": '["127.0.0.1:0"]',
    "replay.metrics_port": "0",
    "replay.min_size_to_sample": "200",
    "evaluator.metrics_port": "0",
    "evaluator.episodes": "2",
    "report.episodes": "2",
    "report.video": "false",
    "actor.count": "1",
    "helper.count": "1",
}


@pytest.mark.timeout(300)
def test_nothing_is_unpickled_or_forked_while_a_run_trains_with_a_helper_and_is_resumed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    arguments = [word for key, value in FLAGS.items() for word in (f"--{key}", value)]
    arguments = [str(ROOT / "configs" / "cartpole.toml"), "--run.folder", str(tmp_path / "runs"), *arguments]
    folder, pickles = tmp_path / "runs" / "pickles", tmp_path / "pickles"

    def says(name: str, words: str) -> bool:
        log = folder / "logs" / f"{name}.log"
        return log.exists() and words in log.read_text()

    def checkpointed() -> Optional[bool]:
        assert first.process.poll() is None, first.output()
        is_helped = (folder / "helpers" / "helper-0.safetensors").exists() and _done(folder) > 20
        return (is_helped and any((folder / "checkpoints").glob("*.safetensors"))) or None

    first = Launcher([*arguments, "--learner.max_updates", "1000000"], tmp_path / "up.log", _hooked(tmp_path))
    try:
        wait_for(checkpointed, "a checkpoint of a run with a helper", 120)
        first.process.send_signal(signal.SIGINT)
        first.wait(30)
    finally:
        first.stop()
    assert not pickles.exists(), pickles.read_text()
    lives = _hooked_services(tmp_path)
    assert lives == {"replay": 1, "learner": 1, "helper": 1, "evaluator": 1, "actor": 1, "cli": 1}, first.output()

    more = str(_done(folder) + 60)
    second = Launcher([*arguments, "--learner.max_updates", more], tmp_path / "again.log", _hooked(tmp_path))
    try:
        assert second.wait(150) == 0, second.output()
    finally:
        second.stop()
    assert not pickles.exists(), pickles.read_text()
    assert {name for name, count in _hooked_services(tmp_path).items() if count >= 2} == set(lives)
    assert says("learner", "resumed updates=")
    assert says("helper-0", "resumed sequence=")


def _done(folder: Path) -> int:
    """Updates that the learner has done."""
    file = folder / "updates_done"
    return int(np.fromfile(file, "<i8", 1)[0]) if file.exists() else 0


def _hooked_services(tmp_path: Path) -> Dict[str, int]:
    """How many processes of each service have loaded the hook."""
    found: Dict[str, int] = {}
    for line in (tmp_path / "pickles.hooked").read_text().splitlines():
        for module, name in MODULES.items():
            if f"-m {module} " in f"{line} ":
                service = "helper" if name == "learner" and "--helper.name" in line else name
                found[service] = found.get(service, 0) + 1
    return found
