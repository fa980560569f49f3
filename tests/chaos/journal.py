"""What actors were told about their chunks, a line each in a file of their life: it outlives them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import List


@dataclass(frozen=True)
class Answer:
    """The replay's answer to one Insert, as the actor got it."""

    actor: str
    life: int  # of the actor's environment: what each of its observations bears too
    lane_group: int
    sequence: int
    first_step: int
    num_steps: int
    num_lanes: int
    acknowledged: bool
    at_s: float  # by the machine's monotonic clock
    resent: bool = False  # nobody needed it: the harness sent the chunk once more

    @property
    def num_items(self) -> int:
        """Steps of all lanes."""
        return self.num_steps * self.num_lanes


class JournalWriter:
    """The journal of one life."""

    def __init__(self, folder: Path, actor: str, life: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{actor}-{life:06x}.jsonl"
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)

    def add(self, answer: Answer) -> None:
        """One system call: a kill leaves the whole line or nothing of it."""
        os.write(self._descriptor, (json.dumps(asdict(answer)) + "\n").encode())


def read_journals(folder: Path, names: str = "*.jsonl") -> List[Answer]:
    """The answers of all lives, a life's in their order; a line that is not whole is left out.

    Args:
        folder: of the journals.
        names: pattern of the files that are wanted.
    """
    answers: List[Answer] = []
    for file in sorted(folder.glob(names)):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        answers += [Answer(**json.loads(line)) for line in lines if line.endswith("\n")]
    return answers
