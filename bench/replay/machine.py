"""The machine that was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, Dict


def describe() -> Dict[str, Any]:
    """Processor, cores, memory and load at the moment."""
    memory_kib = next(
        (int(line.split()[1]) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()), 0
    )
    return {
        "cpu": _model_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / 2**20, 1),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _model_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
