from __future__ import annotations

from typing import Any, List, Set

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.replay.item_queue import ItemQueue


@given(data=st.data(), capacity=st.integers(1, 400))
def test_it_gives_the_live_keys_in_the_order_of_their_coming(data: Any, capacity: int) -> None:
    live: Set[int] = set()
    queue = ItemQueue(capacity, lambda keys: np.array([key in live for key in keys.tolist()], np.bool_))
    order: List[int] = []
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for _ in range(12):
        fresh = rng.permutation(int(rng.integers(0, capacity - len(live) + 1))) + len(order)
        queue.push(fresh)
        order += fresh.tolist()
        live |= set(fresh.tolist())
        wanted = int(rng.integers(1, capacity + 2))
        expected = [key for key in order if key in live][:wanted]
        assert queue.oldest(wanted).tolist() == expected
        assert queue.oldest(wanted).tolist() == expected  # looking takes nothing
        live -= set(expected[: int(rng.integers(0, wanted + 1))])
        live -= {key for key in list(live) if rng.random() < 0.3}
    queue.clear()
    assert queue.oldest(3).tolist() == []
