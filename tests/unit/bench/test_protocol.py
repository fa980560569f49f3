from __future__ import annotations

from typing import List

from bench.replay.protocol import time_inserts, time_round


def test_what_warms_up_is_not_timed() -> None:
    done: List[int] = []
    timing = time_round(lambda: done.append(1), 5, warm_up=2)
    assert (len(done), timing.count) == (7, 5)
    assert timing.seconds > 0.0


def test_inserts_are_counted_in_steps_and_are_enough() -> None:
    done: List[int] = []
    timing = time_inserts(lambda: done.append(1), 50, 120)
    assert timing.count == 150
    assert len(done) == 3 + 3  # three warm up
