"""`shoal actor`: parse the config, build the parts, start, run, stop in reverse."""

from __future__ import annotations

import sys

from services.actor.actor import Actor
from services.actor.cpus import use_cpus
from services.common.config.run import RunConfig
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.service import end_process, main


def run(config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
    """An actor's life."""
    use_cpus(config.actor.cpus)
    actor = Actor(config, lifecycle, log)
    try:
        actor.run()
    finally:
        actor.stop()


if __name__ == "__main__":
    end_process(main("actor", run, sys.argv[1:]))
