from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.replay.sampler_settings import SamplerSettings
from services.replay.table_view import PRIORITY_ROWS


def _spread(table: Any) -> Any:
    spread = table.spread_priorities()
    assert spread is not None
    return spread


def test_a_table_without_items_has_no_spread(make_table: Any) -> None:
    assert make_table().spread_priorities() is None


def test_items_of_one_priority_are_all_effective(make_table: Any, feed: Any) -> None:
    table = make_table(capacity=256)
    feed(table, 8)
    spread = _spread(table)
    assert spread.effective_items == pytest.approx(table.store.num_items)
    assert set(spread.quantiles) == {"p50", "p95", "max"}
    assert len(set(spread.quantiles.values())) == 1


@pytest.mark.parametrize("capacity", [256, 4 * PRIORITY_ROWS])
def test_the_estimates_are_those_of_the_formulas(make_table: Any, feed: Any, capacity: int) -> None:
    table = make_table(capacity=capacity, sampling=SamplerSettings(priority_exponent=0.6))
    for start in range(0, capacity, capacity // 4):
        feed(table, 1, actor=f"a{start}", T=capacity // 8, B=2)
    keys = np.arange(table.store.ring.oldest_key, table.store.ring.reserved)
    rng = np.random.default_rng(3)
    table.update_priorities(keys, rng.lognormal(0.0, 1.5, len(keys)))
    ring = table.store.ring
    p = ring.priority[ring.priority > 0]
    share = p**0.6 / (p**0.6).sum()
    spread = _spread(table)
    assert spread.effective_items == pytest.approx(1 / (share**2).sum(), rel=0.1)
    assert spread.quantiles["max"] == p.max()
    for name, percent in (("p50", 50), ("p95", 95)):
        low, high = np.percentile(p, [percent - 2, percent + 2])
        assert low <= spread.quantiles[name] <= high


def test_one_item_that_dominates_the_draws_is_not_overlooked(make_table: Any, feed: Any) -> None:
    table = make_table(capacity=4 * PRIORITY_ROWS, sampling=SamplerSettings(priority_exponent=1.0))
    feed(table, 1, T=2 * PRIORITY_ROWS, B=2)
    keys = np.arange(table.store.num_items)
    td_error = np.full(len(keys), 1e-3)
    td_error[12_345] = 1e3
    table.update_priorities(keys, td_error)
    share = 1e3 / td_error.sum()
    assert _spread(table).effective_items == pytest.approx(1 / share**2, rel=0.1)


def test_to_look_changes_no_draw(make_table: Any, feed: Any) -> None:
    tables = [make_table(), make_table()]
    for table in tables:
        feed(table, 3)
    tables[1].spread_priorities()
    drawn = [table.sample(2, 8, max_wait_s=0.0).drawn.keys for table in tables]
    assert np.array_equal(*drawn)


def test_the_age_of_the_oldest_row_and_what_was_inserted(
    make_table: Any, make_chunk: Any, feed: Any, clock: Any
) -> None:
    table = make_table()
    assert table.info().oldest_row_age_s == 0.0
    feed(table, 1)
    clock.now_s += 5
    feed(table, 1, actor="b")
    clock.now_s += 2
    info = table.info()
    assert info.oldest_row_age_s == 7.0
    assert info.inserted_bytes == 2 * sum(column.nbytes for _, column in make_chunk().columns())
    feed(table, 8, actor="c")  # 64 more rows, which is the capacity
    assert table.info().oldest_row_age_s == 0.0


def test_quarantined_lanes_are_counted(make_table: Any, make_chunk: Any) -> None:
    table = make_table()
    sick = make_chunk()
    sick.reward[0, 0] = np.inf
    table.insert("a", 1, sick, max_wait_s=0.0)
    table.insert("a", 1, sick, max_wait_s=0.0)  # again: a resend
    assert table.info().quarantined_lanes == 1
