"""Which CPUs this process runs on."""

from __future__ import annotations

import os
from typing import Sequence

from services.common.errors import UserError


def use_cpus(cpus: Sequence[int]) -> None:
    """Keep the calling thread, and all that it starts from now on, on some CPUs.

    Args:
        cpus: their numbers; none: as the process was started.

    Raises:
        UserError: this system cannot, or does not let this process run on one of them.
    """
    if not cpus:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise UserError(f"actor.cpus = {list(cpus)}, but this system cannot bind a process to CPUs: leave it empty")
    allowed = os.sched_getaffinity(0)
    missing = sorted(set(cpus) - allowed)
    if missing:
        raise UserError(
            f"actor.cpus names {', '.join(map(str, missing))}, but this process may run on"
            f" {', '.join(map(str, sorted(allowed)))} alone: choose among them"
        )
    os.sched_setaffinity(0, cpus)
