"""Who may import whom: the contracts of pyproject.toml, kept by import-linter."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINTER = shutil.which("lint-imports", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(LINTER is None, reason="NOT TESTED: import-linter is not here; Python 3.10 and newer have it")
def test_nobody_imports_what_it_must_not() -> None:
    assert LINTER is not None
    linted = subprocess.run(
        [LINTER], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True
    )
    assert linted.returncode == 0, linted.stdout
    assert "0 broken" in linted.stdout
