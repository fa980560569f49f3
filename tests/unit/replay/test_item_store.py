from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.replay.item_store import Intake, ItemStore
from services.replay.sampler_settings import SamplerSettings
from services.replay.step_counters import StepCounters


def _store(schema: Any, **changes: Any) -> ItemStore:
    values = {"capacity": 64, "n_step": 3, "discount": 0.5, "sampling": SamplerSettings()}
    return ItemStore(schema=schema, **{**values, **changes})


def _insert(store: ItemStore, chunk: Any, keys: Any = None, *, follows_gap: bool = False) -> Any:
    B = chunk.num_lanes
    keys = np.full((store.n_step, B), -1, np.int64) if keys is None else keys
    keys = store.insert(chunk, keys, Intake(np.zeros(B, np.bool_), 0, follows_gap, 0, 5.0))
    assert store.check_valid() is None
    return keys


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_step": 0}, "n_step is 0"),
        ({"discount": 1.5}, "discount is 1.5"),
        ({"discount": float("nan")}, "discount is nan"),
        ({"capacity": 0}, "capacity is 0"),
    ],
)
def test_settings_out_of_range_are_refused(schema: Any, changes: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        _store(schema, **changes)


def test_windows_go_on_across_chunks(schema: Any, make_chunk: Any) -> None:
    store = _store(schema)
    keys = _insert(store, make_chunk(T=2, B=2))
    assert keys.tolist() == [[-1, -1], [0, 1], [2, 3]]
    keys = _insert(store, make_chunk(T=2, B=2, sequence=1), keys)
    assert keys.tolist() == [[2, 3], [4, 5], [6, 7]]
    assert store.num_items == 2
    assert store.ring.bootstrap_key[:2].tolist() == [6, 7]
    store.close(keys)
    assert store.check_valid() is None
    assert (store.num_items, store.counters.lost_tail, store.counters.unripe) == (6, 2, 0)


def test_the_first_priority_is_that_of_the_actors_critics(schema: Any, make_chunk: Any) -> None:
    store = _store(schema, n_step=1)
    value = np.arange(8, dtype=np.float32).reshape(4, 2)
    _insert(store, make_chunk(T=4, B=2, ends=[(1, 0)], time_outs=[(2, 1)], q_taken=3.0, value=value, final_value=10.0))
    expected = {
        0: abs(1 + 0.5 * 2 - 3),
        1: abs(1 + 0.5 * 3 - 3),
        2: abs(1 - 3),  # terminated: no value
        3: abs(1 + 0.5 * 5 - 3),
        4: abs(1 + 0.5 * 6 - 3),
        5: abs(1 + 0.5 * 10 - 3),  # timed out: the value of the true final observation
    }
    np.testing.assert_allclose(store.ring.priority[:6], np.array(list(expected.values())) + 1e-6)


def test_a_terminal_end_needs_no_value_of_its_final_observation(schema: Any, make_chunk: Any) -> None:
    store = _store(schema, n_step=1)
    _insert(store, make_chunk(T=1, B=1, ends=[(0, 0)], q_taken=3.0, value=0.0, final_value=np.nan))
    assert store.ring.priority[0] == pytest.approx(2.0 + 1e-6)


def test_without_critics_new_items_get_the_largest_resident_priority(schema: Any, make_chunk: Any) -> None:
    store = _store(schema, n_step=1, capacity=8)
    keys = _insert(store, make_chunk(T=4, B=1))
    assert store.ring.priority[:3].tolist() == [1.0] * 3
    store.update_priorities(np.array([0, 1, 2]), np.array([0.2, 9.0, 0.3]))
    keys = _insert(store, make_chunk(T=1, B=1, sequence=4, first_step=4), keys)
    assert store.ring.priority[3] == 9.0 + 1e-6
    store.update_priorities(np.array([1, 3]), np.array([0.1, 0.1]))
    keys = _insert(store, make_chunk(T=1, B=1, sequence=5, first_step=5), keys)
    assert store.ring.priority[4] == 0.3 + 1e-6  # the largest that is there, not the largest that ever was
    store.update_priorities(np.array([0]), np.array([50.0]))
    keys = _insert(store, make_chunk(T=3, B=1, sequence=2, first_step=6), keys)
    assert store.ring.oldest_key == 1
    assert store.ring.priority[5] == 0.3 + 1e-6  # 50 was overwritten by this very chunk


def test_bad_updates_harm_nobody_and_draws_follow_the_priorities_after_repair(schema: Any, make_chunk: Any) -> None:
    store = _store(schema, n_step=1)
    _insert(store, make_chunk(T=11, B=1))
    keys = np.arange(10, dtype=np.int64)
    bad = np.array([np.nan, -1.0, 0.0, np.inf, 1e308, 1e-320, 2.0, -np.inf, 3.0, 4.0])
    answer = store.update_priorities(keys, bad)
    assert answer.outcome.tolist() == [3, 3, 1, 3, 1, 1, 1, 3, 1, 1]
    assert (answer.applied, answer.rejected, answer.stale, answer.superseded, answer.clamped) == (6, 4, 0, 0, 1)
    assert store.check_valid() is None
    assert store.sampler.tree.total == pytest.approx(store.sampler.tree.leaves(np.arange(64)).sum())
    td_error = 0.5 * np.arange(1.0, 11.0)
    store.update_priorities(keys, td_error)
    rng = np.random.default_rng(1)
    counts = np.zeros(10)
    for _ in range(400):
        drawn = store.draw(rng, 4, 16)
        np.add.at(counts, drawn.keys, 1)
    chance = (td_error + 1e-6) ** 0.6
    chance /= chance.sum()
    expected = chance * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 9 + 4 * np.sqrt(18)
    assert np.abs((counts - expected) / np.sqrt(expected)).max() < 4.0
    np.testing.assert_allclose(drawn.probability, chance[drawn.keys])
    assert store.ring.times_sampled[:10].tolist() == counts.tolist()


def test_a_late_update_leaves_the_new_item_alone(schema: Any, make_chunk: Any) -> None:
    store = _store(schema, n_step=1, capacity=6)
    keys = _insert(store, make_chunk(T=6, B=1))
    _insert(store, make_chunk(T=3, B=1, sequence=2, first_step=6), keys)
    before = store.ring.priority.copy()
    answer = store.update_priorities(
        np.array([0, 2, -1, 8, 9, 10**9]), np.full(6, 99.0)
    )  # gone, gone, open, never were
    assert answer.outcome.tolist() == [2] * 6
    assert store.ring.priority.tolist() == before.tolist()
    with pytest.raises(ValueError, match="must be of one length"):
        store.update_priorities(np.array([1, 2]), np.array([1.0]))


def test_a_draw_copies_the_right_rows_and_counts_itself(schema: Any, make_chunk: Any) -> None:
    store = _store(schema, n_step=2, capacity=16)
    _insert(store, make_chunk(T=4, B=2, time_outs=[(3, 0)]))
    drawn = store.draw(np.random.default_rng(0), 3, 8)
    whole = store.copy_rows(drawn)
    seen: Any = {}
    for batch, keys in zip(whole.split(8), drawn.split(8)):
        boots = keys.bootstrap_keys
        assert len(batch) == 8
        assert batch.num_items == store.num_items == 6
        assert batch.observation["policy"].tolist() == [[key // 2, key % 2] for key in batch.keys]
        for i, key in enumerate(batch.keys.tolist()):
            seen[key] = seen.get(key, 0) + 1
            assert batch.times_sampled[i] == seen[key]
            final = key in (4, 6)
            assert boots[i] == (8 if final else key + 4)
            assert batch.next_observation["policy"][i].tolist() == ([-7, 0] if final else [key // 2 + 2, key % 2])
            assert batch.discount[i] == (0.5 if key == 6 else 0.25)
            assert batch.n_step_return[i] == (1.0 if key == 6 else 1.5)
        assert batch.policy_version.tolist() == [7] * 8
    taken = whole.observation["policy"]
    before = taken.copy()
    store.ring.observation["policy"][:] = 0.0
    assert taken.tolist() == before.tolist()


def test_with_exponent_zero_draws_are_uniform(schema: Any, make_chunk: Any) -> None:
    store = _store(schema, n_step=1, sampling=SamplerSettings(priority_exponent=0.0))
    _insert(store, make_chunk(T=9, B=1))
    store.update_priorities(np.arange(8), 1000.0 * np.arange(8.0))
    batch = store.draw(np.random.default_rng(0), 1, 8)
    assert batch.probability.tolist() == [0.125] * 8
    assert sorted(batch.keys.tolist()) == list(range(8))


def test_counters_notice_a_step_that_is_missing() -> None:
    assert StepCounters(acknowledged=3, resident=3, items=2, unripe=1).check_valid() is None
    assert "accounted for" in str(StepCounters(acknowledged=3, resident=2).check_valid())
    assert "came to something" in str(StepCounters(acknowledged=3, resident=3, items=2).check_valid())
