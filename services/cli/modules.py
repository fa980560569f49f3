"""The modules that run as processes, by the name of their command, and how this process becomes one of them."""

from __future__ import annotations

import os
import sys
from typing import NoReturn, Sequence

SERVICES = {
    "replay": "services.replay",
    "learner": "services.learner",
    "actor": "services.actor",
    "evaluator": "services.actor.evaluator",
}
REPORT = "services.actor.evaluator.report"
INSPECT_FOLDER = "services.replay.inspect_folder"
DOCTOR = {"env": "services.actor.conformance", "lane": "services.actor.conformance.lane"}


def become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Turn this process into `python -m module`; signals and supervision then meet the service itself.

    One thread of linear algebra, unless the user wants more: numpy takes all cores otherwise, which others share.
    """
    sys.stdout.flush()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 (no shell is wanted)
