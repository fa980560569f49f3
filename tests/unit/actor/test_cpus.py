from __future__ import annotations

import os
import subprocess
import sys

import pytest

from services.actor import cpus
from services.actor.cpus import use_cpus
from services.common.errors import UserError

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="CPU affinity is Linux's")

SCRIPT = """
import os, threading
from services.actor.cpus import use_cpus
use_cpus({cpus})
threads = []
thread = threading.Thread(target=lambda: threads.append(os.sched_getaffinity(0)))
thread.start()
thread.join()
print(sorted(os.sched_getaffinity(0)), sorted(threads[0]))
"""


def test_the_process_and_its_later_threads_stay_on_the_cpus() -> None:
    one = max(os.sched_getaffinity(0))
    command = [sys.executable, "-c", SCRIPT.format(cpus=[one])]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert found.split("\n")[0] == f"[{one}] [{one}]"


def test_without_cpus_nothing_changes() -> None:
    before = os.sched_getaffinity(0)
    use_cpus(())
    assert os.sched_getaffinity(0) == before


def test_a_cpu_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"actor\.cpus names 4096, but this process may run on [\d, ]+ alone: choose"):
        use_cpus((min(os.sched_getaffinity(0)), 4096))


def test_a_system_that_cannot_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cpus.os, "sched_setaffinity")
    with pytest.raises(UserError, match=r"actor\.cpus = \[0\], but this system cannot bind a process to CPUs"):
        use_cpus((0,))
