"""What small files hold, read anew when they were replaced: secrets are changed without a restart."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Callable, Generic, List, Optional, Sequence, Tuple, TypeVar

from services.common.errors import UserError
from services.common.log import Log

RECHECK_S = 1.0  # a file that was replaced is noticed within this

Value = TypeVar("Value")
_State = List[Tuple[int, int, int]]  # of each file


class Renewed(Generic[Value]):
    """The value of some files. A replacement that cannot be used leaves the last good value in force, and is said."""

    def __init__(
        self,
        files: Sequence[Path],
        read: Callable[[], Value],
        *,
        name: str,
        clock: Callable[[], float],
        recheck_s: float = RECHECK_S,
        log: Optional[Log] = None,
    ) -> None:
        """Read them.

        Args:
            files: that the value is made of.
            read: makes the value; raises UserError where it cannot.
            name: of the option that names the files, for the log.
            clock: monotonic.
            recheck_s: between two looks at the files; 0: at each call.
            log: where a replacement is said.

        Raises:
            UserError: as `read`.
        """
        self._files = list(files)
        self._read = read
        self._name = name
        self._clock = clock
        self._recheck_s = recheck_s
        self._log = log
        self._lock = threading.Lock()
        self._checked_at = clock()
        state = self._state()
        self._value = read()
        self._seen: Optional[_State] = state if state == self._state() else None  # None: replaced meanwhile
        self._said = ""
        self.problem = ""  # why the present files are not in force, one sentence

    def value(self) -> Value:
        """The value that counts now."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._checked_at >= self._recheck_s:
                self._checked_at = now_s
                self._look()
            return self._value

    def _look(self) -> None:
        state = self._state()
        if state == self._seen:
            self.problem = self._said = ""  # or the earlier files are back
            return
        try:
            value = self._read()
        except UserError as error:
            self._fail(str(error))
            return
        if state is None or state != self._state():
            return  # replaced while it was read: the next look takes it
        self._value, self._seen, self.problem, self._said = value, state, "", ""
        if self._log is not None:
            self._log.info(f"the replaced {self._name} is in force")

    def _fail(self, problem: str) -> None:
        self.problem = problem
        if self._log is not None and problem != self._said:
            self._said = problem
            self._log.warning(f"the replaced {self._name} cannot be used: the earlier one stays in force", why=problem)

    def _state(self) -> Optional[_State]:
        """None: one of them is not there."""
        try:
            found = [file.stat() for file in self._files]
        except OSError:
            return None
        return [(each.st_ino, each.st_mtime_ns, each.st_size) for each in found]
