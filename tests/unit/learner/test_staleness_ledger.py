from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np

from services.common.staleness_log import OTHERS, TOTAL
from services.learner.staleness import Lag
from services.learner.staleness_ledger import MAX_ACTORS, ROW_PERIOD_S, Ledger
from tests.fakes import FakeClock
from tests.unit.common.test_staleness_log import bucket_of
from tests.unit.learner.test_staleness import stamps_of


def _ledger(clock: FakeClock, **changes: Any) -> Ledger:
    return Ledger(**{"bound": 500, "clock": clock, "wall_clock": lambda: 77.0, **changes})


def _batch(ring: List[int], names: Tuple[str, ...] = ("a", "b"), actors: Any = None, lost: int = 0) -> Any:
    n = len(ring)
    lag = Lag(
        updates=np.array([[0] * n, [1] * n, ring, [2] * n], np.int64),
        seconds=np.array([[0.1] * n, [0.2] * n, [4.0] * n, [0.0] * n]),
        is_lost=np.arange(n) < lost,
    )
    index = np.arange(n) % len(names) if actors is None else actors
    return lag, stamps_of([0] * n, [0] * n, 0, actor_names=names, actor_index=np.asarray(index, np.uint32))


def test_a_row_sums_what_came_since_the_last(clock: FakeClock) -> None:
    ledger = _ledger(clock)
    ledger.add(*_batch([10, 300], lost=1), 1)
    ledger.add(*_batch([20, 30]), 0)
    assert ledger.close_row(40) is None  # not yet
    clock.now_s += ROW_PERIOD_S
    row = ledger.close_row(50)
    assert row is not None
    assert (row.updates, row.wall_s, row.bound, row.items, row.lost, row.refused) == (50, 77.0, 500, 4, 1, 1)
    assert row.sum_updates == {"acting": 0, "in_flight": 4, "ring": 360, "prefetch": 8}
    assert row.sum_seconds == {"acting": 0.4, "in_flight": 0.8, "ring": 16.0, "prefetch": 0.0}
    assert sum(row.counts[TOTAL]) == 4
    assert row.counts["ring"][bucket_of(300)] == 1
    assert row.counts[TOTAL][bucket_of(303)] == 1
    assert {name: (sum(lag.counts), lag.most) for name, lag in row.actors.items()} == {"a": (2, 23), "b": (2, 303)}
    clock.now_s += ROW_PERIOD_S
    assert ledger.close_row(60) is None  # nothing came
    ledger.add(*_batch([5]), 0)
    last = ledger.close_row(61, is_last=True)
    assert last is not None
    assert (last.items, last.refused) == (1, 0)


def test_the_lag_of_actors_is_that_of_the_last_seconds(clock: FakeClock) -> None:
    ledger = _ledger(clock)
    ledger.add(*_batch([97, 97, 97, 9997], names=("a",)), 0)
    p50, p95, most = ledger.actor_lags()["a"]
    assert 63 <= p50 <= 100 < p95 <= most == 10_000
    ledger.close_row(1, is_last=True)
    ledger.add(*_batch([7], names=("a",)), 0)
    assert ledger.actor_lags()["a"][2] == 10_000  # what is under way would jump about
    ledger.close_row(2, is_last=True)
    assert ledger.actor_lags()["a"][2] == 10


def test_an_actor_that_comes_later_is_told_apart(clock: FakeClock) -> None:
    ledger = _ledger(clock)
    ledger.add(*_batch([1], names=("a",)), 0)
    ledger.add(*_batch([1, 2], names=("c", "a")), 0)
    row = ledger.close_row(1, is_last=True)
    assert row is not None
    assert {name: sum(lag.counts) for name, lag in row.actors.items()} == {"a": 2, "c": 1}


def test_actors_beyond_the_bound_are_counted_together(clock: FakeClock) -> None:
    ledger = _ledger(clock)
    names = tuple(f"actor-{number}" for number in range(MAX_ACTORS + 30))
    ledger.add(*_batch(list(range(len(names))), names=names), 0)
    row = ledger.close_row(1, is_last=True)
    assert row is not None
    assert len(row.actors) == MAX_ACTORS + 1
    assert sum(row.actors[OTHERS].counts) == 30
    assert row.actors[OTHERS].most == len(names) + 2


def test_totals_go_on_over_rows(clock: FakeClock) -> None:
    ledger = _ledger(clock)
    for _ in range(2):
        ledger.add(*_batch([10, 20], lost=2), 1)
        ledger.close_row(1, is_last=True)
    totals = ledger.totals()
    assert totals.updates.sum(axis=1).tolist() == [4] * 4
    assert totals.sum_updates.tolist() == [0, 4, 60, 8]
    assert totals.seconds.sum() == 16
    np.testing.assert_allclose(totals.sum_seconds, [0.4, 0.8, 16.0, 0.0])
    assert (totals.lost, totals.refused) == (4, 2)
