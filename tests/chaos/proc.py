"""What /proc knows: processes of a test by a mark in their environment, and what a process holds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List

MARK = "CHAOS_TRIAL"  # not SHOAL_…, which services take for a key of the run file


@dataclass(frozen=True)
class Footprint:
    """What a process holds at an instant."""

    threads: int
    files: int  # open descriptors, sockets included
    mappings: int

    def beyond(self, before: Footprint, slack: Footprint) -> List[str]:
        """What is more than before by more than the slack, a few words each."""
        grown = []
        for name in ("threads", "files", "mappings"):
            now, then, allowed = getattr(self, name), getattr(before, name), getattr(slack, name)
            if now > then + allowed:
                grown.append(f"{now} {name}, {then} before")
        return grown


def footprint(pid: int) -> Footprint:
    """What `pid` holds.

    Raises:
        OSError: there is no such process.
    """
    folder = Path(f"/proc/{pid}")
    return Footprint(
        threads=len(list((folder / "task").iterdir())),
        files=len(list((folder / "fd").iterdir())),
        mappings=(folder / "maps").read_bytes().count(b"\n"),
    )


def lowest_free_descriptor(pid: int) -> int:
    """The number that the next file of `pid` gets: a limit of this many lets it open nothing."""
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in itertools.count() if number not in taken)


def state(pid: int) -> str:
    """The state's letter: R, S, T (stopped), Z (a zombie); empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def busy_s(pid: int) -> float:
    """Seconds that a process's main thread has computed, or waited for a processor to compute; 0 if it is gone."""
    try:
        computed, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return (int(computed) + int(waited)) / 1e9


def marked_processes(mark: str) -> Dict[int, str]:
    """Living processes that were started with `mark`: number -> command."""
    found: Dict[int, str] = {}
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            is_ours = wanted in (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if is_ours and state(int(entry.name)) not in ("Z", ""):
            found[int(entry.name)] = command.strip()
    return found


def mounts() -> List[str]:
    """Where something is mounted."""
    return sorted(line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
