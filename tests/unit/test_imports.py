"""What may be imported where: every module by this interpreter, and torch by no process that can do without it."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

import services
import shoal.v1

ROOT = Path(services.__file__).parent
# Torch is imported inside of functions: an actor without it imports all that it needs, and flags are parsed at once.
PACKAGES = (
    "services.common",
    "services.actor",
    "services.replay",
    "services.cli",
    "services.agent",
    "services.learner",
)
PROCESSES = (
    "services.replay",
    "services.learner",
    "services.actor",
    "services.actor.evaluator",
    "services.actor.conformance",
    "services.cli",
)


def _modules(package: str) -> List[str]:
    folder = ROOT.joinpath(*package.split(".")[1:])
    found = [m.name for m in pkgutil.walk_packages([str(folder)], f"{package}.")]
    assert found, f"{package} has no modules"
    return [package, *found]


def _run(*arguments: str) -> str:
    ended = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_imported(package: str) -> None:
    for module in _modules(package):
        importlib.import_module(module)


def test_generated_code_is_imported() -> None:
    modules = [m.name for m in pkgutil.iter_modules(shoal.v1.__path__, "shoal.v1.")]
    assert "shoal.v1.replay_pb2_grpc" in modules
    for module in modules:
        importlib.import_module(module)


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_module_imports_no_torch(package: str) -> None:
    # A finder that refuses torch proves it even where torch is not installed. The processes' __main__ are among them.
    program = (
        "import importlib, importlib.abc, sys\n"
        "class Refuse(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise AssertionError('torch is imported')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        f"for name in {_modules(package)!r}:\n"
        "    importlib.import_module(name)\n"
    )
    _run("-c", program)


@pytest.mark.parametrize("algorithm", ["td3", "dqn"])
def test_a_policy_is_built_without_torch(algorithm: str) -> None:
    program = (
        "import sys\n"
        "from services.agent.registry import policy_class\n"
        f"policy_class({algorithm!r})\n"
        "print('torch' in sys.modules)\n"
    )
    assert _run("-c", program) == "False\n"


def test_a_users_own_folder_of_the_name_does_not_swallow_ours(tmp_path: Path) -> None:
    mine = tmp_path / "services"
    mine.mkdir()
    (mine / "__init__.py").write_text("")
    (mine / "own.py").write_text("")
    program = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "import services.common.codec, services.actor.loop, services\n"
        "print(services.__file__, len(list(services.__path__)), sep='\\n')\n"
    )
    assert _run("-c", program).splitlines() == [str(ROOT / "__init__.py"), "1"]


def test_services_is_a_regular_package() -> None:
    # A namespace package would be joined with any folder of that name on the path.
    assert Path(services.__file__).name == "__init__.py"
    for package in PACKAGES:
        assert ROOT.joinpath(*package.split(".")[1:], "__init__.py").exists(), package


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_has_a_main_that_is_among_them(process: str) -> None:
    package = ".".join(process.split(".")[:2])
    assert f"{process}.__main__" in _modules(package)


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_starts_with_python_m(process: str) -> None:
    assert "usage: shoal" in _run("-m", process, "--help")
