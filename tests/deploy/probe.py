"""What a service could do if somebody else's code ran in it: run in place of one, it writes what it got away with."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict

STATE = Path("/var/lib/shoal")


def _may(act: Callable[[], object]) -> str:
    """`yes`, or the name of the error."""
    try:
        act()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return "yes"


def _write(folder: str) -> None:
    file = Path(folder) / f"probe-{os.getpid()}"
    file.touch()
    file.unlink()


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def _write_and_execute() -> None:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()


def _raw_socket() -> None:
    with contextlib.closing(socket.socket(socket.AF_PACKET, socket.SOCK_RAW)):
        pass


def main() -> None:
    found: Dict[str, str] = {f"writes to {path}": _may(lambda p=path: _write(p)) for path in sys.argv[1:]}
    found.update(
        {
            "user": str(os.getuid()),
            "groups": str(sorted(set(os.getgroups()) | {os.getgid()})),
            "mounts": _may(lambda: _call("mount", b"none", b"/tmp", b"tmpfs", 0, None)),
            "unshares": _may(lambda: _call("unshare", 0x10000000)),  # CLONE_NEWUSER
            "traces": _may(lambda: _call("ptrace", 16, 1, 0, 0)),  # PTRACE_ATTACH to systemd
            "opens a raw socket": _may(_raw_socket),
            "maps memory to write and execute": _may(_write_and_execute),
            "lists /root": _may(lambda: list(Path("/root").iterdir())),
            "sees process 1": str(Path("/proc/1").exists()),
            "devices": " ".join(sorted(path.name for path in Path("/dev").iterdir())),
            "becomes root": subprocess.run(["su", "-c", "id -u"], capture_output=True, text=True, check=False).stdout,
        }
    )
    (STATE / "probe.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
