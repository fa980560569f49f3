from __future__ import annotations

from pathlib import Path
from typing import Callable, Iterator, List

import pytest

from tests.e2e.launcher import Launcher, with_flags

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    for item in items:
        if "e2e" in Path(str(item.fspath)).parts:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Start `shoal up` with runs in a temporary folder; everything is ended after the test."""
    started: List[Launcher] = []

    def start(file: str, *flags: str) -> Launcher:
        usual = ["--run.folder", str(tmp_path / "runs"), "--report.video", "false"]
        started.append(Launcher([str(ROOT / file), *with_flags(usual, flags)], tmp_path / f"up-{len(started)}.log"))
        return started[-1]

    yield start
    for launcher in started:
        launcher.stop()
