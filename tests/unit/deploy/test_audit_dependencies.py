"""`make audit-dependencies` with a pip-audit that stands in: what it is asked, and what is made of its answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "deploy" / "make" / "audit_dependencies.sh"
LOCKED = sorted(file.name for file in (ROOT / "deploy" / "constraints").glob("image-*.txt"))

# Knows the arguments that pip-audit has, and answers by what it is asked about. Begun by a shell, as pip's own scripts
# are, since a path with a space cannot stand in the first line.
STAND_IN = f"""#!/bin/sh
'''exec' "{sys.executable}" "$0" "$@"
' '''
import argparse, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--path")
parser.add_argument("--requirement")
parser.add_argument("--disable-pip", action="store_true")
parser.add_argument("--require-hashes", action="store_true")
parser.add_argument("--progress-spinner", choices=["on", "off"])
options = parser.parse_args()
what = options.requirement or "site"
if options.requirement:
    assert options.disable_pip and options.require_hashes, "pip would resolve the list anew"
    assert "--hash=" in pathlib.Path(options.requirement).read_text()
else:
    assert (pathlib.Path(options.path) / "pytest").is_dir()
with open("asked", "a") as stream:
    stream.write(what + chr(10))
if pathlib.Path("offline").exists() or what.endswith("unreachable.txt"):
    print("ERROR:pip_audit: connection refused", file=sys.stderr)
    sys.exit(1)
if what.endswith("weak.txt"):
    print("Found 1 known vulnerability in 1 package")
    sys.exit(1)
print("No known vulnerabilities found")
if what == "site":
    print("shoal      Dependency not found on PyPI and could not be audited: shoal (0.1)")
if what.endswith("passed-over.txt"):
    print("Name       Skip Reason")
    print("numpy      Dependency not found on PyPI and could not be audited: numpy (2.0)")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "deploy" / "constraints").mkdir(parents=True)
    (tmp_path / ".venv-audit" / "bin").mkdir(parents=True)
    tool = tmp_path / ".venv-audit" / "bin" / "pip-audit"
    tool.write_text(STAND_IN)
    tool.chmod(0o755)
    return tmp_path


def _lock(checkout: Path, *names: str) -> None:
    for name in names:
        (checkout / "deploy" / "constraints" / name).write_text("numpy==2.0 --hash=sha256:00\n")


def _audit(checkout: Path) -> Tuple[int, List[str]]:
    ended = subprocess.run(
        ["bash", str(SCRIPT), sys.executable],
        cwd=checkout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    return ended.returncode, ended.stdout.splitlines()


def test_the_venv_and_every_images_list_are_asked_about(checkout: Path) -> None:
    assert len(LOCKED) >= 3
    _lock(checkout, *LOCKED)
    code, lines = _audit(checkout)
    assert (code, lines[-1]) == (0, f"no weakness is known in: the packages of this venv {_paths(*LOCKED)}")
    assert (checkout / "asked").read_text().split() == ["site", *_paths(*LOCKED).split()]


def test_a_weakness_in_one_image_is_named_and_fails(checkout: Path) -> None:
    _lock(checkout, "image-sound.txt", "image-weak.txt")
    code, lines = _audit(checkout)
    assert (code, lines[-1]) == (1, f"WEAKNESSES ARE KNOWN in: {_paths('image-weak.txt')}")


def test_what_could_not_be_asked_is_said_last_and_is_no_success(checkout: Path) -> None:
    _lock(checkout, "image-sound.txt")
    (checkout / "offline").touch()
    code, lines = _audit(checkout)
    assert code == 3
    assert lines[-1] == (
        "NOT TESTED: the database of weaknesses could not be asked about: the packages of this venv "
        f"{_paths('image-sound.txt')} (is there a network?)"
    )


def test_one_list_that_could_not_be_asked_about_hides_no_weakness_and_no_success(checkout: Path) -> None:
    _lock(checkout, "image-sound.txt", "image-unreachable.txt", "image-weak.txt")
    code, lines = _audit(checkout)
    assert code == 1
    assert [line.partition(":")[0] for line in lines[-3:]] == [
        "no weakness is known in", "WEAKNESSES ARE KNOWN in", "NOT TESTED",
    ]  # fmt: skip
    assert _paths("image-unreachable.txt") in lines[-1]


def test_a_package_that_the_database_does_not_know_is_no_sound_one(checkout: Path) -> None:
    _lock(checkout, "image-passed-over.txt")
    code, lines = _audit(checkout)
    assert code == 3
    assert lines[-2] == "no weakness is known in: the packages of this venv"
    assert (
        f"NOT TESTED: the database of weaknesses could not be asked about: {_paths('image-passed-over.txt')} (numpy)"
        in (lines[-1])
    )


def test_without_pip_audit_nothing_was_tested(checkout: Path) -> None:
    _lock(checkout, "image-sound.txt")
    (checkout / ".venv-audit" / "bin" / "pip-audit").unlink()
    no_venv = checkout / "python"
    no_venv.write_text("#!/bin/sh\nexit 1\n")
    no_venv.chmod(0o755)
    ended = subprocess.run(
        ["bash", str(SCRIPT), str(no_venv)], cwd=checkout, stdout=subprocess.PIPE, text=True, check=False
    )
    assert ended.returncode == 3
    assert ended.stdout.splitlines()[-1].startswith("NOT TESTED: ")


def test_elsewhere_than_in_a_checkout_it_says_so(tmp_path: Path) -> None:
    ended = subprocess.run(
        ["bash", str(SCRIPT), sys.executable], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False
    )
    assert (ended.returncode, "run this from the checkout" in ended.stderr) == (2, True)


def _paths(*names: str) -> str:
    return " ".join(f"deploy/constraints/{name}" for name in names)
