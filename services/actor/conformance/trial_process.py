"""Starts a trial as a process, waits for it while it does something, and says how it ended."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Tuple

from services.actor.conformance.finding import Finding, fault
from services.actor.conformance.trial import Trial

POLL_S = 0.05
LAST_WORDS_S = 2.0  # to print where a process that is ended hangs
MODULE = "services.actor.conformance.trial"


@dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    findings: Tuple[Finding, ...]
    calls: int  # of step
    is_complete: bool  # the process said all that it had to say


def run_trial(trial: Trial, file: Path, stall_s: float) -> Outcome:
    """Run a trial to its end. What the simulator prints goes to stderr.

    Args:
        trial: what to do.
        file: where it is written for the process.
        stall_s: a process whose stage does not change for so long is ended.
    """
    trial.save(file)
    process = subprocess.Popen([sys.executable, "-m", MODULE, str(file)], stdin=subprocess.DEVNULL, stdout=2)
    try:
        stalled = _wait(process, Path(trial.stage), stall_s)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    with contextlib.suppress(OSError, ValueError):
        result = json.loads(Path(trial.result).read_text(encoding="utf-8"))
        findings = [Finding.from_dict(data) for data in result["findings"]]
        if stalled or process.returncode != 0:
            findings.append(_ended(process.returncode, Path(trial.stage), stalled))
        return Outcome(tuple(findings), int(result["calls"]), is_complete=True)
    return Outcome((_ended(process.returncode, Path(trial.stage), stalled),), 0, is_complete=False)


def _wait(process: subprocess.Popen[bytes], stage: Path, stall_s: float) -> Optional[float]:
    """Wait for the end, or until nothing happens; returns for how long nothing happened, or None."""
    last, since = b"", time.monotonic()
    while process.poll() is None:
        now = _read(stage)
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > stall_s:
            process.send_signal(signal.SIGABRT)  # its fault handler prints where it hangs
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LAST_WORDS_S)
            return stall_s
        time.sleep(POLL_S)
    return None


def _ended(code: int, stage: Path, stalled: Optional[float]) -> Finding:
    where = _read(stage).decode("utf-8", "replace").strip() or "the start of Python"
    if stalled is not None:
        return fault(
            "process", f"it did not return from {where} for {stalled:g} s, and was ended", "see the traceback above"
        )
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return fault(
        "process",
        f"it ended {how} in {where}",
        "let the environment raise an exception instead, and see what it printed above",
    )


def _read(stage: Path) -> bytes:
    try:
        return stage.read_bytes()
    except OSError:
        return b""
