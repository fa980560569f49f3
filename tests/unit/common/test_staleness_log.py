from __future__ import annotations

import bisect
from pathlib import Path
from typing import List

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.errors import UserError
from services.common.staleness_log import (
    BOUNDS,
    NUM_BUCKETS,
    PARTS,
    TOTAL,
    ActorLag,
    LedgerRow,
    StalenessLog,
    quantile,
    read_rows,
    thin_out,
)


def bucket_of(lag: float) -> int:
    return bisect.bisect_left(BOUNDS, lag)


def row_of(lags: List[int], updates: int = 100, actor: str = "actor-0") -> LedgerRow:
    """A row whose lag is all in the ring."""
    row = LedgerRow(updates, 10.0, 500, items=len(lags), lost=1, refused=2)
    lag = ActorLag(most=max(lags, default=0))
    for each in lags:
        row.counts["ring"][bucket_of(each)] += 1
        row.counts[TOTAL][bucket_of(each)] += 1
        lag.counts[bucket_of(each)] += 1
    row.sum_updates["ring"] = sum(lags)
    row.sum_seconds["ring"] = 0.5 * len(lags)
    row.actors[actor] = lag
    return row


def test_a_row_comes_back_from_its_line() -> None:
    row = row_of([0, 5, 70_000, 10**6])
    assert LedgerRow.from_line(row.to_line()) == row
    assert "\n" not in row.to_line()
    assert row.most == 10**6


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:-5],
        lambda line: "",
        lambda line: "[1]",
        lambda line: line.replace('"items":2', '"items":"2"'),
        lambda line: line.replace('"counts":{', '"counts":{"more":[],', 1).replace("[0,", "[", 1),
        lambda line: line.replace('"ring":', '"rang":', 1),
        lambda line: line.replace('"bound":500', '"bound":500,"odd":1'),
    ],
)
def test_a_damaged_line_is_no_row(damage: object) -> None:
    line = damage(row_of([1, 2]).to_line())  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"no row|Expecting|Unterminated|delimiter"):
        LedgerRow.from_line(line)


def test_rows_add_up() -> None:
    row = row_of([1, 2], updates=10)
    row.add(row_of([300], updates=20, actor="actor-1"))
    assert (row.items, row.updates, row.lost, row.refused) == (3, 20, 2, 4)
    assert (row.sum_updates["ring"], row.sum_seconds["ring"]) == (303, 1.5)
    assert sum(row.counts[TOTAL]) == 3
    assert {name: lag.most for name, lag in row.actors.items()} == {"actor-0": 2, "actor-1": 300}


@settings(deadline=None)
@given(lags=st.lists(st.integers(0, 150_000), min_size=1, max_size=60), share=st.floats(0, 1))
def test_quantiles_lie_in_the_bucket_of_the_exact_one(lags: List[int], share: float) -> None:
    row = row_of(lags)
    exact = np.percentile(lags, 100 * share, method="inverted_cdf")
    found = row.quantile(TOTAL, share)
    low = BOUNDS[bucket_of(exact) - 1] if exact > 0 else 0
    assert low <= found <= max(lags)
    assert found <= (BOUNDS[bucket_of(exact)] if exact <= BOUNDS[-1] else max(lags))
    assert row.quantile(TOTAL, 1.0) == max(lags)


def test_nothing_counted_has_no_lag() -> None:
    assert quantile([0] * NUM_BUCKETS, 0.5, 0) == 0.0


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=40), most=st.integers(1, 12))
def test_thinning_out_keeps_sums_and_order(sizes: List[int], most: int) -> None:
    rows = [row_of([number] * size, updates=number) for number, size in enumerate(sizes)]
    thinned = thin_out([row_of([n] * s, updates=n) for n, s in enumerate(sizes)], most)
    assert len(thinned) <= most
    assert sum(row.items for row in thinned) == sum(sizes)
    assert sum(row.sum_updates["ring"] for row in thinned) == sum(row.sum_updates["ring"] for row in rows)
    ends = [row.updates for row in thinned]
    assert ends == sorted(ends)
    assert ends[-1] == len(sizes) - 1
    assert set(thinned[0].counts) == {*PARTS, TOTAL}


def test_a_log_goes_on_after_a_crash_in_mid_line(tmp_path: Path) -> None:
    file = tmp_path / "staleness.jsonl"
    assert read_rows(file) == []
    log = StalenessLog(file, 512)
    log.append(row_of([1], updates=1))
    log.append(row_of([2], updates=2))
    file.write_bytes(file.read_bytes()[:-20])
    assert [row.updates for row in read_rows(file)] == [1]
    again = StalenessLog(file, 512)
    again.append(row_of([3], updates=3))
    again.append(row_of([4], updates=4))
    assert [row.updates for row in read_rows(file)] == [1, 3, 4]


def test_a_long_run_has_a_small_file_that_holds_all_of_it(tmp_path: Path) -> None:
    file = tmp_path / "staleness.jsonl"
    log = StalenessLog(file, max_rows=8)
    for updates in range(1, 60):
        if updates == 30:
            log = StalenessLog(file, max_rows=8)  # a restart
        log.append(row_of([updates, 2 * updates], updates=updates))
        assert len(read_rows(file)) <= 8
    rows = read_rows(file)
    assert sum(row.items for row in rows) == 2 * 59
    assert [row.updates for row in rows] == sorted(row.updates for row in rows)
    assert rows[-1].updates == 59
    assert rows[0].items < 60  # the beginning is coarser, and not one row


def test_a_ledger_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*staleness"):
        StalenessLog(tmp_path / "missing" / "staleness.jsonl", 512).append(row_of([1]))
    with pytest.raises(ValueError, match="keep at least 2"):
        StalenessLog(tmp_path / "x", max_rows=1)
