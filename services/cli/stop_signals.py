"""The launcher's signals: they are counted, and the main loop acts on them."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any, Callable, Dict, Optional, Type

from typing_extensions import Self

SAME_REQUEST_S = 0.5  # a terminal that closes, or a script, may send two signals for one wish


class StopSignals:
    """Counts SIGINT, SIGTERM and SIGHUP while it is entered; the old handlers come back at the end.

    Signals within 0.5 s of one that was counted are the same request.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.first: Optional[signal.Signals] = None
        self.count = 0
        self._clock = clock
        self._counted_s = 0.0
        self._before: Dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 plus the number of the first signal, as a shell has it."""
        return 128 + (self.first or 0)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # under nohup the run outlives its terminal
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, _frame: Optional[FrameType]) -> None:
        # Plain numbers and no locks: a handler runs between any two instructions of the main thread.
        now_s = self._clock()
        if self.first is not None and now_s - self._counted_s < SAME_REQUEST_S:
            return
        self.first = self.first or signal.Signals(number)
        self._counted_s = now_s
        self.count += 1
