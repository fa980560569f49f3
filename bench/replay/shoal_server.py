"""A real replay process, started as `shoal up` starts it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import List, Sequence

import tomli_w

from bench.replay.workload import PRIORITY_EXPONENT, Workload
from services.cli.plan import child_environ

RUN_ID = "bench"
N_STEP = 3
START_TIMEOUT_S = 30.0


class ShoalServer:
    """`python -m services.replay` with the allocation variables of `shoal up`; ends with this process at the latest."""

    def __init__(self, load: Workload, *, flags: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-bench-")
        file = Path(self._folder.name) / "bench.toml"
        settings = {
            "run": {"name": RUN_ID, "folder": self._folder.name},
            "replay": {
                "capacity": load.capacity,
                "n_step": N_STEP,
                "priority_exponent": PRIORITY_EXPONENT,
                "min_size_to_sample": 512,
            },
            "learner": {"batch_size": min(4096, load.capacity // 2)},
        }
        file.write_text(tomli_w.dumps(settings), encoding="utf-8")
        read, self._lifeline = os.pipe()
        self._log = Path(self._folder.name) / "replay.log"
        command: List[str] = [sys.executable, "-m", "services.replay", str(file)]
        command += ["--replay.addresses", "127.0.0.1:0", "--replay.metrics_port", "0", *flags]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environ(os.environ, read, threads=1),
                pass_fds=(read,),
            )
        os.close(read)
        self.pid = self._process.pid
        self.address = self._wait_for_address()

    def stop(self) -> None:
        os.close(self._lifeline)
        self._process.wait(20)
        self._folder.cleanup()

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            for word in self._log.read_text(encoding="utf-8").split():
                if word.startswith("address=127.0.0.1:"):
                    return word[len("address=") :]
            time.sleep(0.05)
        raise RuntimeError(f"the replay did not start:\n{self._log.read_text(encoding='utf-8')}")
