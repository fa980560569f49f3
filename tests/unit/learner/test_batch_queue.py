from __future__ import annotations

import threading
from typing import List

import pytest

from services.learner.batch_queue import BatchQueue


def test_entries_come_out_in_their_order_and_never_more_than_fit() -> None:
    queue: BatchQueue[int] = BatchQueue(3)
    assert queue.put([1, 2], 0.0) == []
    assert queue.put([3, 4, 5], 0.0) == [4, 5]
    assert len(queue) == 3
    assert queue.put([4, 5], 0.0) == [4, 5]
    assert [queue.get(0.0) for _ in range(4)] == [[1], [2], [3], []]


def test_several_writers_and_readers_lose_nothing() -> None:
    queue: BatchQueue[int] = BatchQueue(4)
    taken: List[List[int]] = [[], []]

    def write(first: int) -> None:
        for at in range(first, first + 600, 6):
            left = list(range(at, at + 6))
            while left:
                left = queue.put(left, 5.0)

    def read(into: List[int]) -> None:
        while len(into) < 600:
            into += queue.get(5.0)

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 600)]
    threads += [threading.Thread(target=read, args=(into,)) for into in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(taken[0] + taken[1]) == list(range(1200))
    assert len(queue) == 0


def test_a_reader_is_woken_by_what_comes() -> None:
    queue: BatchQueue[str] = BatchQueue(1)
    timer = threading.Timer(0.05, queue.put, (["batch"], 0.0))
    timer.start()
    assert queue.get(10.0) == ["batch"]
    timer.join()


def test_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BatchQueue(0)
