from __future__ import annotations

import threading
import time

from tests.conftest import Eventually
from tests.soak.traffic import FullSpeed


def test_both_calls_go_on_until_the_stop(eventually: Eventually) -> None:
    speed = FullSpeed(lambda: 0.25, lambda: 0.5)
    eventually(lambda: len(speed.inserts) > 10 and len(speed.samples) > 10)
    assert not speed.over.is_set()
    assert speed.stop() == []
    assert set(speed.inserts) == {0.25}
    assert set(speed.samples) == {0.5}


def test_an_error_of_one_ends_both_and_is_told() -> None:
    calls = []

    def insert() -> float:
        calls.append(1)
        if len(calls) > 3:
            raise AssertionError("the ring broke")
        return 0.1

    speed = FullSpeed(insert, lambda: time.sleep(0.001) or 0.1)
    assert speed.over.wait(10.0)
    assert speed.stop() == ["insert number 4 failed: AssertionError: the ring broke"]


def test_a_call_that_does_not_end_is_told(eventually: Eventually) -> None:
    begun, release = threading.Event(), threading.Event()

    def insert() -> float:
        begun.set()
        return float(release.wait(30.0))

    speed = FullSpeed(insert, lambda: time.sleep(0.001) or 0.1)
    assert begun.wait(10.0)
    speed.over.set()
    eventually(lambda: not any(thread.name == "sample" for thread in threading.enumerate()))
    assert speed.stop(timeout_s=0.05) == ["the last insert does not end"]
    release.set()
    assert speed.stop() == []
