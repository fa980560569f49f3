"""A run of `shoal up` on fixed ports, and a Prometheus that scrapes all of it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Dict, List, Optional

from tests.e2e.launcher import Launcher, wait_for
from tests.e2e.prometheus import Prometheus

ROOT = Path(__file__).resolve().parents[2]
ACTORS = 2


def _ports_in_a_row(count: int) -> int:
    """The first of some free ports: actors count up from the one that they are given."""
    for first in range(20_000, 30_000, count):
        held: List[socket.socket] = []
        try:
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        else:
            return first
        finally:
            for each in held:
                each.close()
    raise AssertionError("no ports are free")


class MonitoredRun:
    """Starts both; the run goes on until it is stopped.

    Args:
        folder: for the run's folder, logs, and Prometheus' data.
        file: the run file, by its name in configs/.
        num_helpers: of the learner.
        flags: further flags of `shoal up`.
    """

    def __init__(self, folder: Path, *flags: str, file: str = "arm_reach.toml", num_helpers: int = 1) -> None:
        first = _ports_in_a_row(3 + num_helpers + ACTORS)
        ports: Dict[str, List[int]] = {"replay": [first], "learner": [first + 1], "evaluator": [first + 2]}
        ports["helper"] = [first + 3 + index for index in range(num_helpers)]
        ports["actor"] = [first + 3 + num_helpers + index for index in range(ACTORS)]
        arguments = [str(ROOT / "configs" / file)]
        arguments += ["--run.name", "watched", "--run.folder", str(folder / "runs"), "--report.video", "false"]
        arguments += ["--learner.max_updates", "1000000", "--helper.count", str(num_helpers)]
        arguments += ["--actor.count", str(ACTORS), "--evaluator.episodes", "10"]
        for service, at in ports.items():
            arguments += [f"--{service}.metrics_port", str(at[0])] if at else []
        self.folder = folder / "runs" / "watched"
        self.launcher = Launcher([*arguments, *flags], folder / "up.log")
        self.prometheus: Optional[Prometheus] = None
        try:
            helpers, actors = ([f"{role}-{i}" for i in range(len(ports[role]))] for role in ("helper", "actor"))
            for name in ("replay", "learner", "evaluator", *helpers, *actors):
                self.launcher.wait_for_child(name)
            targets = {service: [f"127.0.0.1:{port}" for port in at] for service, at in ports.items()}
            self.prometheus = Prometheus(folder / "prometheus", targets)
        except BaseException:
            self.stop()
            raise

    def wait_for(self, condition: str, timeout_s: float = 120.0) -> None:
        """Until a PromQL condition holds for some series."""
        prometheus = self.prometheus
        assert prometheus is not None

        def holds() -> Optional[bool]:
            assert self.launcher.process.poll() is None, self.launcher.output()
            return bool(prometheus.now(condition)) or None

        wait_for(holds, condition, timeout_s)

    def stop(self) -> None:
        """End both."""
        if self.prometheus is not None:
            self.prometheus.stop()
        self.launcher.stop()
