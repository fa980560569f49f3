"""What helpers were told about their gradients, a line each in a file of their life; and what must not be said."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

# Of a helper's environment: where its journal lies, and the chance that a gradient is sent again.
FOLDER, RESENDS = "CHAOS_PUSHES", "CHAOS_RESENDS"


@dataclass(frozen=True)
class PushAnswer:
    """The chief's answer to one Push, as the helper got it."""

    life: int  # incarnation of the helper
    chief: int  # incarnation of the chief that its base is of
    sequence: int
    accepted: bool
    at_s: float  # by the machine's monotonic clock
    resent: bool = False  # nobody needed it: the harness sent the gradient once more
    behind: bool = False  # a resend behind a later one


class PushWriter:
    """The journal of one life."""

    def __init__(self, folder: Path, life: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{life:016x}.jsonl"
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)

    def add(self, answer: PushAnswer) -> None:
        """One system call: a kill leaves the whole line or nothing of it."""
        os.write(self._descriptor, (json.dumps(asdict(answer)) + "\n").encode())


def read_pushes(folder: Path) -> List[PushAnswer]:
    """The answers of all lives; a line that is not whole is left out."""
    answers: List[PushAnswer] = []
    for file in sorted(folder.glob("*.jsonl")):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        answers += [PushAnswer(**json.loads(line)) for line in lines if line.endswith("\n")]
    return answers


def push_faults(answers: Sequence[PushAnswer]) -> List[str]:
    """Gradients that were taken though they had had their answer, a sentence each.

    A resend of the gradient in flight, or of the last one, gets the answer of the first. One that comes behind a later
    gradient must not be taken: it was answered, and nobody keeps what it was answered with.
    """
    faults = [
        f"helper {push.life:016x} sent gradient {push.sequence} behind a later one, and it was taken"
        for push in answers
        if push.behind and push.accepted
    ]
    plain: Dict[Tuple[int, int, int], int] = {}
    for push in answers:
        if push.accepted and not push.resent:
            key = (push.life, push.chief, push.sequence)
            plain[key] = plain.get(key, 0) + 1
    twice = sum(count > 1 for count in plain.values())
    return [*faults, *([f"{twice} gradients were asked for again after they were taken"] if twice else [])]
