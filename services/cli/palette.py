"""One colour a process, the same before its log lines and in the live view."""

from __future__ import annotations

import re

HELPER_COLOURS = ("bright_yellow", "gold3", "khaki1", "orange3")
ROLE_COLOURS = {"replay": "magenta", "learner": "yellow", "evaluator": "green", "shoal": "bold"}
ACTOR_COLOURS = ("cyan", "bright_blue", "bright_cyan", "blue", "turquoise2", "sky_blue2")


def colour_of(process: str) -> str:
    """The rich style of a process by its name."""
    if process in ROLE_COLOURS:
        return ROLE_COLOURS[process]
    digits = re.search(r"\d+$", process)
    colours = HELPER_COLOURS if process.startswith("helper") else ACTOR_COLOURS
    return colours[(int(digits.group()) if digits else 0) % len(colours)]
