from __future__ import annotations

import json
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.learner.version_history import RESOLUTION, VersionHistory, VersionRecord
from tests.fakes import FakeClock

MIN_ROWS = 16  # small, so that rows are left out soon


def _filled(
    steps: List[Tuple[int, int, float]], clock: FakeClock, min_rows: int = MIN_ROWS
) -> Tuple[VersionHistory, Any, Any, Any]:
    """A history of versions with given gaps of version, updates and seconds, and the truth about it."""
    history = VersionHistory(clock=clock, wall_clock=clock, min_rows=min_rows)
    version = updates = 0
    rows = []
    for versions_more, updates_more, seconds_more in steps:
        version, updates = version + versions_more, updates + updates_more
        clock.now_s += seconds_more
        history.append(version, updates)
        assert history.check_valid() == ""
        rows.append((version, updates, clock.now_s))
    versions, known_updates, times = (np.array(column) for column in zip(*rows))
    return history, versions.astype(np.int64), known_updates.astype(np.int64), times


gaps = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 500), st.floats(0, 100)), min_size=1, max_size=300)


@settings(max_examples=60, deadline=None)
@given(gaps)
def test_new_versions_are_exact_and_old_ones_within_their_share_of_lag_and_age(
    steps: List[Tuple[int, int, float]],
) -> None:
    clock = FakeClock()
    history, versions, updates, times = _filled(steps, clock)
    facts = history.look_up(versions)
    assert facts.is_known.all()
    exact = slice(-MIN_ROWS // 2, None)
    np.testing.assert_array_equal(facts.updates[exact], updates[exact])
    lag, age_s = updates[-1] - updates, clock() - times
    assert (np.abs(facts.updates - updates) <= lag / RESOLUTION).all()
    assert (np.abs(facts.age_s - age_s) <= age_s / RESOLUTION + 1e-9).all()


@settings(max_examples=30, deadline=None)
@given(gaps, st.integers(0, 300))
def test_a_history_that_was_saved_and_read_goes_on_as_the_same(steps: List[Tuple[int, int, float]], cut: int) -> None:
    clock = FakeClock()
    history, versions, _, _ = _filled(steps, clock)
    text = json.dumps(history.records())
    again = VersionHistory(
        [VersionRecord(*row) for row in json.loads(text)], clock=clock, wall_clock=clock, min_rows=MIN_ROWS
    )
    assert again.check_valid() == ""
    asked = np.concatenate([versions, versions + 1, versions[:cut]])
    for mine, its in zip(vars(history.look_up(asked)).values(), vars(again.look_up(asked)).values()):
        np.testing.assert_allclose(mine, its, atol=2e-3)  # ages are kept in milliseconds


def test_memory_grows_by_the_logarithm_of_the_run() -> None:
    clock = FakeClock()
    rows = []
    for versions in (10_000, 20_000, 40_000):
        history, _, _, _ = _filled([(1, 20, 0.5)] * versions, clock, min_rows=4096)
        rows.append(len(history))
    assert max(rows) < 8192
    assert len(json.dumps(history.records())) < 500_000


def test_versions_and_updates_must_rise(clock: FakeClock) -> None:
    history = VersionHistory(clock=clock, wall_clock=clock)
    history.append(5, 10)
    for version, updates in ((5, 10), (4, 10), (6, 9)):
        with pytest.raises(ValueError, match="comes after a later one"):
            history.append(version, updates)
    history.append(6, 10)  # the last set of a run may have the updates of the one before
    assert len(history) == 2
    with pytest.raises(ValueError, match="does not rise"):
        VersionHistory([VersionRecord(5, 10), VersionRecord(4, 10)])


def test_a_version_between_two_lives_is_not_known_and_counts_as_the_newest(clock: FakeClock) -> None:
    history = VersionHistory([VersionRecord(1, 0), VersionRecord(2, 20)], clock=clock, wall_clock=clock)
    history.append(1001, 20)
    history.append(1002, 40)
    facts = history.look_up(np.array([0, 2, 3, 1000, 1001, 1002, 1003]))
    assert facts.is_known.tolist() == [False, True, False, False, True, True, False]
    assert facts.updates.tolist() == [40, 20, 40, 40, 20, 40, 40]
    assert facts.age_s[[0, 2, 3, 6]].tolist() == [0, 0, 0, 0]


def test_ages_go_on_while_the_chief_is_away_and_no_clock_set_back_makes_them_younger(clock: FakeClock) -> None:
    wall = FakeClock()
    wall.now_s = 1.7e9
    first = VersionHistory(clock=clock, wall_clock=wall)
    first.append(1, 0)
    clock.now_s, wall.now_s = clock.now_s + 10, wall.now_s + 10
    records = first.records()
    assert records == [VersionRecord(1, 0, 10.0, 1.7e9, is_thinned=False)]
    assert first.published_at_s(1) == 1.7e9
    for away_s, age_s in ((100.0, 110.0), (-500.0, 10.0)):
        monotonic, later = FakeClock(), FakeClock()
        monotonic.now_s, later.now_s = 3.0, wall.now_s + away_s  # another boot: its monotonic clock began anew
        second = VersionHistory(records, clock=monotonic, wall_clock=later)
        assert second.look_up(np.array([1])).age_s.tolist() == [age_s]
        assert second.published_at_s(1) == 1.7e9
        assert second.published_at_s(2) == 0.0


def test_pairs_of_an_older_checkpoint_are_read(clock: FakeClock) -> None:
    pairs: Any = [(1, 0), [1001, 40]]
    history = VersionHistory(pairs, clock=clock, wall_clock=clock)
    assert history.look_up(np.array([1, 1001])).updates.tolist() == [0, 40]


def test_look_ups_beside_publishing_are_never_torn(tmp_path: Path) -> None:
    import threading

    history = VersionHistory(min_rows=32)
    history.append(1, 20)
    done = threading.Event()
    wrong: List[Any] = []

    def read() -> None:
        while not done.is_set():
            facts = history.look_up(np.arange(1, 50, dtype=np.int64))
            right = facts.updates[facts.is_known] == 20 * np.arange(1, 50)[facts.is_known]
            if not right.all():
                wrong.append(facts)

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(2, 3000):
        history.append(version, 20 * version)
    done.set()
    reader.join()
    assert wrong == []
