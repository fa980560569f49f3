from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from services.common.errors import UserError
from services.learner.done_updates import DoneUpdates

KILLED = """
    import os, signal, sys
    from pathlib import Path
    from services.learner.done_updates import DoneUpdates

    done = DoneUpdates(Path(sys.argv[1]))
    for updates in range(1, 1235):
        done.note(updates)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_life_leaves_its_last_update(tmp_path: Path) -> None:
    file = tmp_path / "run" / "updates_done"
    assert DoneUpdates(file).updates == 0
    words = [sys.executable, "-c", textwrap.dedent(KILLED), str(file)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(words, check=False, env=environ, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert DoneUpdates(file).updates == 1234


@pytest.mark.parametrize("content", [b"", b"12", bytes(100), b"\xff" * 8])
def test_a_file_that_is_not_whole_says_nothing(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "updates_done"
    file.write_bytes(content)
    done = DoneUpdates(file)
    assert done.updates == 0
    done.note(7)
    assert DoneUpdates(file).updates == 7
    assert file.stat().st_size == 8


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder must be")
    with pytest.raises(UserError, match="cannot write"):
        DoneUpdates(tmp_path / "run" / "updates_done")
