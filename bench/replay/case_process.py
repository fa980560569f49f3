"""A case in its process, asked line by line, never waited for without an end."""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from typing import IO, Any, Dict

from bench.replay.cases import CaseSpec
from services.cli.plan import ALLOCATION

REPOSITORY = Path(__file__).resolve().parents[2]


class CaseFailed(RuntimeError):
    """The case ended, said that it failed, or did not answer in time; the message is for the table."""


class CaseProcess:
    """One case; every case gets the same environment, with the allocation variables of `shoal up`."""

    def __init__(self, spec: CaseSpec, log: IO[bytes]) -> None:
        environ = {
            **os.environ,
            **ALLOCATION,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'proto'}",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._spec = spec
        self._process = subprocess.Popen(
            [str(spec.python), "-m", spec.module],
            cwd=REPOSITORY,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )

    def call(self, call: str, timeout_s: float, **arguments: Any) -> Dict[str, Any]:
        """Ask for one call and wait for its answer.

        Raises:
            CaseFailed: there is none.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # noqa: S101, PT018 (both are pipes)
        try:
            stdin.write(json.dumps({"call": call, **arguments}).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise CaseFailed("its process ended; the log has its last words") from None
        if not select.select([stdout], [], [], timeout_s)[0]:
            self._process.kill()
            raise CaseFailed(f"no answer to {call} within {timeout_s:.0f} s")
        line = stdout.readline()
        if not line:
            raise CaseFailed("its process ended; the log has its last words")
        answer = json.loads(line)
        if "error" in answer:
            raise CaseFailed(str(answer["error"]))
        result: Dict[str, Any] = answer["answer"]
        return result

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
