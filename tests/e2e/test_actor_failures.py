"""`shoal up` with simulators that break down: the actor's process ends, and supervision starts it again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

from tests.e2e.launcher import Launcher, wait_for

Up = Callable[..., Launcher]
SMALL = [
    "--env.lanes",
    "4",
    "--actor.count",
    "1",
    "--td3.hidden_sizes",
    "[8]",
    "--learner.batch_size",
    "16",
    "--replay.min_size_to_sample",
    "100",
    "--learner.max_updates",
    "1000000",
    "--evaluator.enabled",
    "false",
    "--replay.samples_per_insert",
    "0",
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("how", "noted"),
    [
        ("sys.exit", r"actor-0 ended \(exit code 1\); starting it again"),
        ("os._exit", r"actor-0 ended \(exit code 7\); starting it again"),
    ],
)
def test_a_simulator_that_ends_its_process_is_started_again(up: Up, tmp_path: Path, how: str, noted: str) -> None:
    kwargs = f'{{ how = "{how}", after = 400 }}'
    launcher = up(
        "configs/arm_reach.toml",
        "--run.name",
        "breaking",
        "--env.factory",
        "tests.failing_envs:make_ending",
        "--env.kwargs",
        kwargs,
        *SMALL,
    )

    def restarted_twice() -> Optional[bool]:
        assert launcher.process.poll() is None, launcher.output()
        return True if len(re.findall(noted, launcher.output())) >= 2 else None

    wait_for(restarted_twice, "the second restart", 90)
    log: Any = (tmp_path / "runs" / "breaking" / "logs" / "actor-0.log").read_text()
    if how == "sys.exit":
        assert "the environment ended the process: sys.exit(0) in step" in log
        assert "Traceback" not in log
