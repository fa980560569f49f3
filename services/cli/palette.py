"""One colour a process, the same before its log lines and in the live view."""

from __future__ import annotations

import re

ROLE_COLOURS = {"replay": "magenta", "learner": "yellow", "evaluator": "green", "shoal": "bold"}
ACTOR_COLOURS = ("cyan", "bright_blue", "bright_cyan", "blue", "turquoise2", "sky_blue2")


def colour_of(process: str) -> str:
    """The rich style of a process by its name."""
    if process in ROLE_COLOURS:
        return ROLE_COLOURS[process]
    digits = re.search(r"\d+$", process)
    return ACTOR_COLOURS[(int(digits.group()) if digits else 0) % len(ACTOR_COLOURS)]
