"""No pickle: not in the sources, and not in a process that trains. What is unpickled may run any code."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Iterator, List

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(file for folder in ("services", "proto", "examples") for file in (ROOT / folder).rglob("*.py"))
FORBIDDEN = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
LOADERS = {"torch.load", "np.load", "numpy.load", "pd.read_pickle"}

# Put into a process by the name that Python looks for at its start: whatever is unpickled is noted, and ends it.
HOOK = """
import os, pickle, sys

def note(what):
    with open(os.environ["PICKLES_ARE_NOTED_IN"], "a") as stream:
        stream.write(what + chr(10))
    os._exit(99)

sys.addaudithook(lambda event, args: note(f"{event} {args}") if event == "pickle.find_class" else None)
pickle.load = lambda *args, **values: note("pickle.load")
pickle.loads = lambda *args, **values: note("pickle.loads")

import numpy
_load = numpy.load

def load(*args, **values):
    if values.get("allow_pickle") or len(args) > 2 and args[2]:
        note("numpy.load(allow_pickle=True)")
    return _load(*args, **values)

numpy.load = load
"""


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def faults_in(source: str) -> List[str]:
    """What in a module's source unpickles, or could."""
    tree = ast.parse(source)
    found: List[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.partition(".")[0] in FORBIDDEN]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FORBIDDEN:
            found.append(str(node.module))
    for call in _calls(tree):
        values = {keyword.arg: keyword.value for keyword in call.keywords}
        allowed = values.get("allow_pickle")
        if allowed is not None and not (isinstance(allowed, ast.Constant) and allowed.value is False):
            found.append("allow_pickle")
        name = ast.unparse(call.func) if sys.version_info >= (3, 9) else ""
        if name == "torch.load" or (name in LOADERS and len(call.args) > 2):
            found.append(name)
    return found


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_source_unpickles(file: Path) -> None:
    assert faults_in(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.x",
        "np.load(f, allow_pickle=True)",
        "np.load(f, x, True)",
    ],
)
def test_what_unpickles_is_found(source: str) -> None:
    if sys.version_info >= (3, 9) or "True)" not in source or "allow" in source:
        assert faults_in(source)


def _hooked(tmp_path: Path) -> dict:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "proto")])
    return {**os.environ, "PYTHONPATH": path, "PICKLES_ARE_NOTED_IN": str(tmp_path / "pickles")}


@pytest.mark.parametrize(
    "statement",
    [
        "import pickle; pickle.loads(b'N.')",
        "import io, pickle; pickle.Unpickler(io.BytesIO(b'cos\\nsystem\\n.')).load()",
    ],
)
def test_the_hook_sees_it(statement: str, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", statement], env=_hooked(tmp_path), check=False)
    assert ended.returncode == 99
    assert "pickle" in (tmp_path / "pickles").read_text()


@pytest.mark.timeout(300)
def test_nothing_is_unpickled_while_a_run_trains(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    flags = {
        "run.folder": str(tmp_path / "runs"),
        "run.name": "pickles",
        "learner.max_updates": "60",
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
    }
    arguments = [word for key, value in flags.items() for word in (f"--{key}", value)]
    command = [sys.executable, "-m", "services.cli", "up", str(ROOT / "configs" / "cartpole.toml"), *arguments]
    ended = subprocess.run(
        command, env=_hooked(tmp_path), cwd=str(tmp_path), capture_output=True, text=True, timeout=280, check=False
    )
    pickles = tmp_path / "pickles"
    assert not pickles.exists(), pickles.read_text()
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert list((tmp_path / "runs").rglob("*.safetensors"))
