"""No fork: a child that goes on with Python beside live gRPC threads hangs. Processes are started by exec alone."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import List

import pytest

from tests.source_names import Names

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(file for folder in ("services", "examples") for file in (ROOT / folder).rglob("*.py"))
FORKS = {"os.fork", "os.forkpty", "pty.fork", "pty.spawn", "multiprocessing", "torch.multiprocessing"}
# Python that runs in the child before the exec.
BEFORE_EXEC = "preexec_fn"


def forks_in(source: str) -> List[str]:
    """What in a module's source forks, or could."""
    tree = ast.parse(source)
    names = Names(tree)
    found = [name for name in names.imported if _forks(name)]
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and _forks(names.of(node)):
            found.append(names.of(node))
        if isinstance(node, ast.keyword) and node.arg == BEFORE_EXEC:
            found.append(BEFORE_EXEC)
    return found


def _forks(name: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in FORKS) or name.endswith("ProcessPoolExecutor")


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_source_forks(file: Path) -> None:
    assert forks_in(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os; os.fork()",
        "from os import fork",
        "import os as system; child = system.fork",
        "import pty; pty.spawn(x)",
        "import multiprocessing as mp; mp.Process(target=f).start()",
        "from multiprocessing import get_context",
        "import torch; torch.multiprocessing.spawn(f)",
        "from concurrent.futures import ProcessPoolExecutor",
        "import subprocess; subprocess.Popen(words, preexec_fn=f)",
        "__import__('os').fork()",
    ],
)
def test_what_forks_is_found(source: str) -> None:
    assert forks_in(source)


@pytest.mark.parametrize(
    "source",
    ["import os; os.execv(a, b)", "import subprocess; subprocess.Popen(words, pass_fds=(3,))", "lifecycle.spawn(f)"],
)
def test_what_starts_processes_by_exec_is_let_through(source: str) -> None:
    assert forks_in(source) == []
