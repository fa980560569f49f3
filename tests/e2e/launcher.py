"""`shoal up` as a process, and a look at its children through /proc."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar

Found = TypeVar("Found")


def wait_for(look: Callable[[], Optional[Found]], what: str, timeout_s: float = 60.0) -> Found:
    """Poll until `look` finds something; an AssertionError names what never came."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {timeout_s} s")


def with_flags(usual: Sequence[str], flags: Sequence[str]) -> List[str]:
    """`--key VALUE` pairs: the usual ones and `flags`, which take the place of usual ones of the same key."""
    pairs = dict(zip(usual[::2], usual[1::2]))
    pairs.update(zip(flags[::2], flags[1::2]))
    return [word for pair in pairs.items() for word in pair]


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Launcher:
    """One `shoal up`."""

    def __init__(self, arguments: List[str], log: Path, environ: Optional[Dict[str, str]] = None) -> None:
        self.log = log
        self._stream = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "up", *arguments],
            stdout=self._stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environ or {})},
        )

    def children(self) -> Dict[str, int]:
        """Pids of the services by the names of their modules: replay, learner, helper-0, evaluator, actor-0, ..."""
        found: Dict[str, int] = {}
        task = Path(f"/proc/{self.process.pid}/task")
        for children in task.glob("*/children"):
            for pid in children.read_text().split():
                name = _service_name(int(pid))
                if name:
                    found[name] = int(pid)
        return found

    def wait_for_child(self, name: str, other_than: int = 0) -> int:
        """The pid of a running service; of its next life if `other_than` was the last."""

        def look() -> Optional[int]:
            pid = self.children().get(name)
            return pid if pid and pid != other_than else None

        return wait_for(look, f"the process of {name}")

    def wait(self, timeout_s: float) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout_s)
        finally:
            self._stream.flush()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self) -> None:
        """End whatever is left; harmless after the end."""
        children = list(self.children().values()) if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
        for pid in children:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self._stream.close()


def evaluations(folder: Path) -> List[Dict[str, Any]]:
    file = folder / "evaluations.jsonl"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def _service_name(pid: int) -> Optional[str]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return None
    if "--helper.name" in words:
        return words[words.index("--helper.name") + 1]
    if "services.actor" in words:
        return words[words.index("--actor.name") + 1]
    for module in ("services.replay", "services.learner", "services.actor.evaluator"):
        if module in words:
            return module.rpartition(".")[2]
    return None
