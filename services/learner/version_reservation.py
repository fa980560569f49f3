"""Numbers of versions that no life of the chief uses twice."""

from __future__ import annotations

import json
from pathlib import Path

from services.common.errors import UserError
from services.common.files import write_atomically

RESERVED_BLOCK = 1000  # versions written to disk ahead of their use


class VersionReservation:
    """Numbers for versions, reserved on disk in blocks before their use: no life of the chief reuses one."""

    def __init__(self, file: Path, at_least: int = 0) -> None:
        """Continue above what any earlier life may have used.

        Args:
            file: where the reservation is kept.
            at_least: the last version of the history: the file may have been lost while checkpoints were not.

        Raises:
            UserError: the file exists and cannot be read.
        """
        self._file = file
        self._reserved = 0
        if file.exists():
            try:
                self._reserved = int(json.loads(file.read_text(encoding="utf-8"))["reserved"])
            except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                raise UserError(
                    f"the version reservation {str(file)!r} cannot be read ({error!r}); restore it, or start a new run"
                ) from None
        self._next = max(self._reserved, at_least) + 1

    def take(self) -> int:
        """The next version; fsyncs a further block when the last is used up."""
        if self._next > self._reserved:
            self._reserved = self._next + RESERVED_BLOCK - 1
            write_atomically(self._file, json.dumps({"reserved": self._reserved}).encode())
        version, self._next = self._next, self._next + 1
        return version
