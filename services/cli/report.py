"""The evaluation that ends a run: a process whose output is the user's, on the terminal itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Mapping

from services.cli.modules import REPORT
from services.cli.plan import child_environ
from services.cli.stop_signals import StopSignals
from services.cli.supervisor import KILL_S, TICK_S


def run_report(folder: Path, environ: Mapping[str, str], signals: StopSignals) -> int:
    """Evaluate the run in `folder` and return the exit code of that, or that of a signal."""
    lifeline, kept = os.pipe()
    sys.stdout.flush()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", REPORT, str(folder)],
            stdin=subprocess.DEVNULL,
            env=child_environ(environ, lifeline, threads=os.cpu_count() or 1),
            pass_fds=(lifeline,),
            start_new_session=True,
        )
        exit_code = _wait(process, signals)
    finally:
        os.close(lifeline)
        os.close(kept)
    return signals.exit_code if signals.first is not None else exit_code


def _wait(process: subprocess.Popen[bytes], signals: StopSignals) -> int:
    asked_s = 0.0
    while process.poll() is None:
        if signals.first is not None and not asked_s:
            asked_s = time.monotonic()
            process.terminate()
        if asked_s and (signals.count > 1 or time.monotonic() - asked_s >= KILL_S):
            process.kill()
        time.sleep(TICK_S)
    exit_code = process.wait()
    return exit_code if exit_code >= 0 else 128 - exit_code
