from __future__ import annotations

import threading
import time
from typing import List

import pytest

from services.learner.batch_queue import BatchQueue


def test_entries_come_out_in_their_order_and_never_more_than_fit() -> None:
    queue: BatchQueue[int] = BatchQueue(3)
    assert queue.reserve(2, 0.0)
    assert not queue.reserve(2, 0.0)  # the room is given, though nothing is in it yet
    assert queue.reserve(1, 0.0)
    queue.put([1])
    queue.put([2, 3])
    assert len(queue) == 3
    assert not queue.reserve(1, 0.0)
    assert [queue.get(0.0) for _ in range(4)] == [[1], [2], [3], []]
    assert queue.reserve(3, 0.0)


def test_room_that_was_not_needed_is_there_again() -> None:
    queue: BatchQueue[int] = BatchQueue(2)
    assert queue.reserve(2, 0.0)
    queue.put([1])
    timer = threading.Timer(0.05, queue.release, (1,))
    timer.start()
    assert queue.reserve(1, 10.0)
    timer.join()


def test_several_writers_and_readers_lose_nothing() -> None:
    queue: BatchQueue[int] = BatchQueue(8)
    taken: List[List[int]] = [[], []]
    most: List[int] = []

    def write(first: int, at_once: int) -> None:
        for at in range(first, first + 600, at_once):
            assert queue.reserve(at_once, 20.0)
            most.append(len(queue) + at_once)
            queue.put(list(range(at, at + at_once)))

    def read(into: List[int]) -> None:
        while len(into) < 600:
            into += queue.get(5.0)

    threads = [threading.Thread(target=write, args=args) for args in ((0, 6), (600, 1))]
    threads += [threading.Thread(target=read, args=(into,)) for into in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(taken[0] + taken[1]) == list(range(1200))
    assert max(most) <= 8
    assert len(queue) == 0


def test_a_reader_is_woken_by_what_comes() -> None:
    queue: BatchQueue[str] = BatchQueue(1)
    assert queue.reserve(1, 0.0)
    timer = threading.Timer(0.05, queue.put, (["batch"],))
    timer.start()
    assert queue.get(10.0) == ["batch"]
    timer.join()


def test_a_writer_waits_until_few_entries_are_left() -> None:
    queue: BatchQueue[int] = BatchQueue(3)
    assert queue.reserve(3, 0.0)
    queue.put([1, 2, 3])
    assert not queue.wait_for_fewer(3, 0.0)
    timer = threading.Timer(0.05, queue.get, (0.0,))
    timer.start()
    began = time.monotonic()
    assert queue.wait_for_fewer(3, 10.0)
    assert time.monotonic() - began < 5.0
    timer.join()


def test_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BatchQueue(0)
    queue: BatchQueue[int] = BatchQueue(2)
    for count in (0, 3):
        with pytest.raises(ValueError, match=f"room for {count} batches was asked of a queue of 2"):
            queue.reserve(count, 0.0)
