"""What a test of the deployment needs of the machine it runs on, said loudly where it is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import List

import pytest

HERE = Path(__file__).parent
TIMEOUT_S = 1500  # of one test, with the set-up before it, which may make a root file system


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Everything here is one mark: `make deploy-test` runs it, `make test` does not."""
    for item in items:
        if HERE in Path(str(item.fspath)).parents:
            item.add_marker(pytest.mark.deploy)
            # By a signal, which lets fixtures take down what they set up; a thread would end the process.
            item.add_marker(pytest.mark.timeout(TIMEOUT_S, method="signal"))


@pytest.fixture(scope="session", autouse=True)
def _on_linux() -> None:
    if sys.platform != "linux":
        pytest.fail("NOT TESTED: the deployment; it takes Linux")
