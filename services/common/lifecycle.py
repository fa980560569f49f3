"""How a process lives and ends: one stop event, signals, the launcher's lifeline, threads whose errors are heard."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import secrets
import signal
import sys
import threading
import time
from typing import Any, Callable, List, Mapping, Optional

from services.common.errors import UserError

LIFELINE_VARIABLE = "_SHOAL_LIFELINE"  # file descriptor of the read end of the launcher's pipe
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOP_BUDGET_S = 9.5  # a stop that takes longer is a hang: the process says where and ends


class Lifecycle:
    """One stop event for a whole process.

    `start` it once in the main thread. Whatever asks for the end (a signal, the launcher's death, a failed thread)
    sets `stopping`; the main loop returns; parts are stopped in reverse order of their start.
    """

    def __init__(self) -> None:
        self.incarnation = secrets.randbits(63) | 1  # never 0, which is how a peer without one would look
        self.stopping = threading.Event()
        self.reason = ""
        self.was_asked = False  # whether the stop came from outside, by a signal or the launcher's end
        self._failure: Optional[BaseException] = None
        self._threads: List[threading.Thread] = []
        self._on_stop: List[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._has_budget = False
        self._stopped_at_s = 0.0

    def start(self, environ: Mapping[str, str]) -> None:
        """Take over SIGTERM and SIGINT, and watch the launcher's lifeline if `environ` names one.

        From here on a stop has a budget: a process that overdraws it says where its threads are, and ends.
        """
        self._has_budget = True
        # The handlers do nothing: one that took locks could meet the main thread inside of the same lock. Python writes
        # the signal's number to a pipe instead, and a thread stops the process.
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda _got, _frame: None)
        threading.Thread(target=self._watch_signals, args=(read,), name="signals", daemon=True).start()
        if LIFELINE_VARIABLE in environ:
            descriptor = int(environ[LIFELINE_VARIABLE])
            threading.Thread(target=self._watch_lifeline, args=(descriptor,), name="lifeline", daemon=True).start()

    def stop(self, reason: str, *, asked: bool = False) -> None:
        """Ask the process to end; the first reason is kept, and whether it came from outside (`asked`)."""
        with self._lock:
            if self.stopping.is_set():
                return
            self.reason, self.was_asked, self._stopped_at_s = reason, asked, time.monotonic()
            self.stopping.set()
            callbacks = list(self._on_stop)
        if self._has_budget:
            threading.Thread(target=_end_hang, name="stop-budget", daemon=True).start()
        for callback in callbacks:
            callback()

    def last_s(self, most_s: float) -> float:
        """The deadline of a last call: `most_s`, or in a stop no more than a quarter of what is left of its budget.

        A call that was under way when the stop came may have waited for most of it; several calls, and what is written
        after them, are to fit into the rest.
        """
        if not self.stopping.is_set():
            return most_s
        left_s = STOP_BUDGET_S - (time.monotonic() - self._stopped_at_s)
        return min(most_s, max(0.0, left_s) / 4)

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the stop is asked for; it wakes what waits and must not block."""
        with self._lock:
            if not self.stopping.is_set():
                self._on_stop.append(callback)
                return
        callback()

    def spawn(self, name: str, target: Callable[[], Any]) -> threading.Thread:
        """Run `target` on a thread; its exception stops the process and is raised again by `join`."""

        def run() -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001 (handed to the main loop, which raises it)
                self.fail(error, f"thread {name} failed: {error}")

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def fail(self, error: BaseException, reason: str = "") -> None:
        """Stop the process because of `error`, which `check` raises; the first is kept, but refusals give way."""
        with self._lock:
            if self._failure is None or (_is_refusal(self._failure) and not _is_refusal(error)):
                self._failure = error
        self.stop(reason or str(error))

    def check(self) -> None:
        """Raise the error that stopped the process, if there is one."""
        if self._failure is not None:
            raise self._failure

    def join(self) -> None:
        """Wait for all threads, then raise the first failure."""
        for thread in self._threads:
            thread.join()
        self.check()

    def _watch_signals(self, descriptor: int) -> None:
        while True:
            for number in os.read(descriptor, 64):
                if number in STOP_SIGNALS:
                    self.stop(signal.Signals(number).name, asked=True)

    def _watch_lifeline(self, descriptor: int) -> None:
        # A pipe and not PR_SET_PDEATHSIG: that one fires when the launcher's *thread* ends.
        with contextlib.suppress(OSError):
            while os.read(descriptor, 64):
                pass
        self.stop("the launcher is gone", asked=True)


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, UserError) and error.is_refusal


def _end_hang() -> None:
    threading.Event().wait(STOP_BUDGET_S)
    print(f"shoal: did not stop within {STOP_BUDGET_S} s; the threads are at:", file=sys.stderr)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(70)
