"""`shoal learner`: the chief as a process."""

from __future__ import annotations

import sys

from services.common.config.run import RunConfig
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.service import main
from services.learner.chief import Chief


def run(config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
    """Build the parts, start, run, stop in reverse."""
    with Chief(config, lifecycle, log) as chief:
        chief.train()
        chief.say_farewell()


if __name__ == "__main__":
    sys.exit(main("learner", run, sys.argv[1:]))
