from __future__ import annotations

from typing import Any

import numpy as np

from services.learner.priority_outbox import PriorityOutbox


def _add(outbox: PriorityOutbox, table_id: int, *keys: int) -> None:
    outbox.add(table_id, np.array(keys), np.array(keys, np.float32) / 8)


def test_all_that_waits_goes_at_once_in_order() -> None:
    outbox = PriorityOutbox()
    _add(outbox, 5, 1, 2)
    _add(outbox, 5, 3)
    assert len(outbox) == 2
    updates: Any = outbox.take()
    assert updates.table_id == 5
    np.testing.assert_array_equal(np.frombuffer(updates.keys, np.int64), [1, 2, 3])
    np.testing.assert_array_equal(np.frombuffer(updates.td_error, np.float64), [0.125, 0.25, 0.375])
    assert len(outbox) == 0
    assert outbox.take() is None


def test_what_an_earlier_table_drew_is_left_out() -> None:
    outbox = PriorityOutbox()
    _add(outbox, 99, 1, 2)
    _add(outbox, 5, 1, 4)
    updates: Any = outbox.take()
    assert updates.table_id == 5
    np.testing.assert_array_equal(np.frombuffer(updates.keys, np.int64), [1, 4])
    assert outbox.take() is None
