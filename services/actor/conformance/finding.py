"""What the doctor has to say: one finding a check."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any, Dict, Mapping


class Level(str, enum.Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # training goes on, and may be worse for it
    FAULT = "fault"  # training is wrong, or does not begin


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    check: str  # what was looked at, a few words
    level: Level
    what: str  # was found, a sentence without its full stop
    fix: str = ""  # what to do about it; empty where all is well

    def line(self) -> str:
        """For the terminal."""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{self.level.value:<8} {self.check:<19} {self.what}{fix}"

    def to_dict(self) -> Dict[str, Any]:
        """As plain JSON types."""
        return {**asdict(self), "level": self.level.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """The inverse of `to_dict`."""
        return cls(**{**data, "level": Level(data["level"])})


def ok(check: str, what: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, what)


def warning(check: str, what: str, fix: str) -> Finding:
    """Something is worth a look."""
    return Finding(check, Level.WARNING, what, fix)


def fault(check: str, what: str, fix: str) -> Finding:
    """Something must be mended."""
    return Finding(check, Level.FAULT, what, fix)
