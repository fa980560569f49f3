"""The commands of a page of the docs, and the machines that they are for: what users type is what is tested."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Tuple

_HEADING = re.compile(r"^#+ (.*)$")
_WHERE = re.compile(r"^On (`[\w-]+`(?:(?:, | and )`[\w-]+`)*):$")


@dataclass(frozen=True)
class Step:
    """One block of commands."""

    heading: str  # of the section that it is in
    machines: Tuple[str, ...]
    script: str


def steps_of(page: Path) -> List[Step]:
    """Every block of `bash` on the page, in order.

    Raises:
        ValueError: the line before a block does not say "On `machine`:".
    """
    found: List[Step] = []
    heading, before = "", ""
    machines: Tuple[str, ...] = ()
    block: Optional[List[str]] = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if block is not None and line != "```":
            block.append(line)
        elif block is not None:
            found.append(Step(heading, machines, "\n".join(block)))
            block = None
        elif line == "```bash":
            where = _WHERE.match(before)
            if where is None:
                raise ValueError(f"{page.name}:{number}: say on which machine, as in 'On `replay`:'")
            machines, block = tuple(re.findall(r"`([\w-]+)`", where.group(1))), []
        elif line:
            title = _HEADING.match(line)
            heading, before = (title.group(1), "") if title else (heading, line)
    return found
