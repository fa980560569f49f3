from __future__ import annotations

import numpy as np

from services.learner.row_memory import MAX_SPARE, RowMemory


def test_a_block_is_used_again_when_no_array_views_it() -> None:
    memory = RowMemory()
    block = memory.take(5000)
    assert (block.shape, block.dtype, block.flags.writeable) == ((5000,), np.uint8, True)
    at = block.ctypes.data
    del block
    again = memory.take(3000)
    assert again.ctypes.data == at
    assert len(again) == 3000


def test_a_view_of_a_view_keeps_its_block() -> None:
    memory = RowMemory()
    block = memory.take(800)
    column = np.ndarray((10, 10), np.float64, buffer=block)
    column[:] = 7.0
    part = column[2:4].reshape(-1)[3:]
    del block, column
    other = memory.take(800)
    other[:] = 0
    assert part.tolist() == [7.0] * 17


def test_a_block_that_is_too_small_is_not_used() -> None:
    memory = RowMemory()
    memory.take(10)
    assert len(memory.take(1_000_000)) == 1_000_000


def test_few_blocks_are_kept() -> None:
    memory = RowMemory()
    blocks = [memory.take(100) for _ in range(MAX_SPARE + 3)]
    assert len({block.ctypes.data for block in blocks}) == MAX_SPARE + 3
    del blocks
    assert len(memory._spare) == MAX_SPARE
    assert len(memory.take(0)) == 0
