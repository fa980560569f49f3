"""Resident memory of a process, told apart: its own (heap) and what it maps from files."""

from __future__ import annotations

from pathlib import Path
from typing import Dict


def resident_bytes(pid: int) -> Dict[str, int]:
    """`heap` (anonymous pages) and `mapped` (the other resident pages) of process `pid`, in bytes.

    From /proc/PID/smaps_rollup of Linux.
    """
    sizes: Dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, value = line.split()[:2]
        sizes[name.rstrip(":")] = int(value) * 1024
    return {"heap": sizes["Anonymous"], "mapped": sizes["Rss"] - sizes["Anonymous"]}
