"""Namespaces of the harness's own: networks, mounts and processes that end with it and touch nobody else's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Dict, List, Sequence

from typing_extensions import Self

from services.common.errors import EXIT_CRASH

INSIDE = "SHOALCHAOS_INSIDE"  # set in the namespaces; no SHOAL_ variable, which services would read
NAMESPACES = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
MEMORY_CONTROLLER = Path("/sys/fs/cgroup/memory")  # version 1
UNIFIED = Path("/sys/fs/cgroup")  # version 2

# What a scenario may need of the machine.
NAMESPACE, CGROUP = "namespaces", "a memory cgroup"


def refusal() -> str:
    """Why this machine gives no namespaces; empty if it does, or if the harness is in them already."""
    if is_inside():
        return ""
    if shutil.which("unshare") is None:
        return "there is no `unshare` here"
    tried = subprocess.run([*_unshare(), "true"], capture_output=True, text=True, check=False)
    return f"this machine gives no namespaces: {tried.stderr.strip()}" if tried.returncode != 0 else ""


def enter(module: str, arguments: Sequence[str]) -> int:
    """Run `module` inside of namespaces and return its exit code; whatever ends this process ends all in there."""
    lifeline, held = os.pipe()
    command = [*_unshare(), sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, env={**os.environ, INSIDE: str(lifeline)}, pass_fds=[lifeline]) as process:
        os.close(lifeline)
        try:
            return process.wait()
        finally:
            os.close(held)


def _follow(lifeline: int) -> None:
    """End when the other end of a pipe is closed; as the first process of its namespace it takes all others along."""
    os.read(lifeline, 1)
    os._exit(EXIT_CRASH)


def _unshare() -> List[str]:
    return ["unshare", *(["--map-root-user"] if os.geteuid() != 0 else []), *NAMESPACES]


def is_inside() -> bool:
    """Whether the harness runs in namespaces of its own."""
    return bool(os.environ.get(INSIDE))


def prepare() -> None:
    """Make the namespaces fit to work in: a loopback, a place for names of networks, an end with whoever began."""
    lifeline = int(os.environ[INSIDE])
    os.set_inheritable(lifeline, False)
    threading.Thread(target=_follow, args=(lifeline,), name="lifeline", daemon=True).start()
    run("ip", "link", "set", "lo", "up")
    run("mount", "--make-rprivate", "/")
    Path("/run/netns").mkdir(parents=True, exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")


def lacking(why_no_namespaces: str = "") -> Dict[str, str]:
    """What cannot be had here, with the reason, by the names above."""
    found: Dict[str, str] = {}
    if why_no_namespaces:
        found[NAMESPACE] = why_no_namespaces
    elif shutil.which("ip") is None or shutil.which("tc") is None:
        found[NAMESPACE] = "there is no `ip` and `tc` (iproute2) here"
    try:
        with MemoryGroup(f"shoal-chaos-try-{os.getpid()}"):
            pass
    except OSError as error:
        found[CGROUP] = f"no memory cgroup can be made here ({error.strerror})"
    return found


class MemoryGroup:
    """A cgroup that bounds memory, of version 1 or 2; removed at the end."""

    def __init__(self, name: str) -> None:
        self._is_old = (MEMORY_CONTROLLER / "memory.limit_in_bytes").exists()
        self._folder = (MEMORY_CONTROLLER if self._is_old else UNIFIED) / name

    def __enter__(self) -> Self:
        self._folder.mkdir()
        if not self._limit_file.exists():
            self._folder.rmdir()
            raise OSError(95, "the memory controller is not there")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._folder.rmdir()

    @property
    def _limit_file(self) -> Path:
        return self._folder / ("memory.limit_in_bytes" if self._is_old else "memory.max")

    @property
    def members(self) -> Path:
        """The file that a process number is written to."""
        return self._folder / "cgroup.procs"

    def used_bytes(self) -> int:
        """Memory that its processes take now."""
        return int((self._folder / ("memory.usage_in_bytes" if self._is_old else "memory.current")).read_text())

    def limit(self, num_bytes: int) -> None:
        """Bound the memory of all of its processes together; -1: no bound."""
        no_bound = "-1" if self._is_old else "max"
        self._limit_file.write_text(str(num_bytes) if num_bytes >= 0 else no_bound)


def run(*command: str) -> None:
    """Run a command; an error is a RuntimeError with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
