"""`shoal learner`: the chief, or with `--chief` a helper, as a process."""

from __future__ import annotations

import sys

from services.common.config.run import RunConfig
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.service import end_process, main
from services.learner.chief import Chief
from services.learner.helper import Helper


def run(config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
    """Build the parts, start, run, stop in reverse."""
    if config.helper.chief:
        with Helper(config, lifecycle, log) as helper:
            helper.contribute()
        return
    with Chief(config, lifecycle, log) as chief:
        chief.train()
        chief.say_farewell()


def name_of(config: RunConfig) -> str:
    """What this process is called in its log."""
    return "helper" if config.helper.chief else "learner"


if __name__ == "__main__":
    end_process(main("learner", run, sys.argv[1:], short_flags={"--chief": "--helper.chief"}, name_of=name_of))
