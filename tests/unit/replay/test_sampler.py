from __future__ import annotations

from typing import Any, Callable, List, Optional

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.replay.heard_versions import HeardVersions
from services.replay.item_store import Intake, ItemStore
from services.replay.items import StepOutcome
from services.replay.priorities import UpdateOutcome
from services.replay.sampler import occurrence
from services.replay.sampler_settings import SamplerSettings

VISITS = {"priority_rule": "td_error_visits", "td_weight": 0.6}
FRESH = {"freshness_half_life_updates": 50.0}
KINDS: List[Any] = [
    {},
    {"selector": "uniform"},
    {"selector": "uniform", **FRESH},
    VISITS,
    FRESH,
    {**VISITS, **FRESH},
    {"max_times_sampled": 3},
    {"max_times_sampled": 3, **VISITS, **FRESH},
    {"selector": "uniform", "max_times_sampled": 2},
    {"selector": "fifo", "max_times_sampled": 1},
    {"selector": "fifo", "max_times_sampled": 3},
]
BAD = [np.nan, -1.0, 0.0, np.inf, 1e308, 1e-320, -np.inf, 2.0]


@pytest.fixture
def fill(schema: Any, make_chunk: Any) -> Callable[..., ItemStore]:
    """A store with `num_items` items of one step each, of versions 1, 2, 3, ... that are 10 updates apart."""

    def make(num_items: int, capacity: Optional[int] = None, **sampling: Any) -> ItemStore:
        store = ItemStore(
            capacity=capacity or num_items + 1,
            schema=schema,
            n_step=1,
            discount=0.5,
            sampling=SamplerSettings(**sampling),
            history=HeardVersions([(1, 10), (100_000, 1_000_000)]),
        )
        chunk = make_chunk(T=num_items + 1, B=1)
        chunk.policy_version[:] = 1 + np.arange(num_items + 1)
        _insert(store, chunk)
        return store

    return make


def _insert(store: ItemStore, chunk: Any, keys: Any = None) -> Any:
    B = chunk.num_lanes
    keys = np.full((store.n_step, B), -1, np.int64) if keys is None else keys
    keys = store.insert(chunk, keys, Intake(np.zeros(B, np.bool_), 0, False, 0, 5.0))
    assert store.check_valid() is None
    return keys


def _counts(store: ItemStore, num_draws: int, seed: int = 1) -> Any:
    """How often each key was drawn."""
    rng, counts = np.random.default_rng(seed), np.zeros(store.ring.capacity)
    for _ in range(num_draws // 64):
        np.add.at(counts, store.draw(rng, 4, 16).keys, 1)
    return counts


def _fits(counts: Any, chance: Any) -> bool:
    """Whether draws follow `chance`: strata make them less spread than multinomial ones, so this is one-sided."""
    counts = counts[: len(chance)]
    expected = chance / chance.sum() * counts.sum()
    freedom = len(chance) - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    largest_z = np.abs((counts - expected) / np.sqrt(expected)).max()
    return bool(chi_square < freedom + 4.0 * np.sqrt(2.0 * freedom) and largest_z < 4.5)


# Selectors


def test_prioritized_draws_follow_the_priorities_and_nothing_else(fill: Any) -> None:
    store, td_error = fill(50), np.random.default_rng(0).random(50) ** 2
    store.update_priorities(np.arange(50), td_error)
    chance = (td_error + 1e-6) ** 0.6
    counts = _counts(store, 20_000)
    assert _fits(counts, chance)
    assert not _fits(counts, np.ones(50))
    assert not _fits(counts, chance**1.2)
    batch = store.draw(np.random.default_rng(0), 1, 16)
    np.testing.assert_allclose(batch.probability, (chance / chance.sum())[batch.keys])


def test_uniform_draws_ignore_the_priorities(fill: Any) -> None:
    store = fill(50, selector="uniform")
    store.update_priorities(np.arange(50), 100.0 * np.arange(50.0))
    assert _fits(_counts(store, 20_000), np.ones(50))
    batch = store.draw(np.random.default_rng(0), 1, 16)
    assert batch.probability.tolist() == [1 / 50] * 16
    np.testing.assert_allclose(batch.priority, 100.0 * batch.keys + 1e-6)
    assert store.sampler.priority_mass == 50.0


def test_a_queue_gives_each_item_once_and_in_order(fill: Any, make_chunk: Any) -> None:
    store = fill(20, capacity=40, selector="fifo", max_times_sampled=1)
    rng = np.random.default_rng(0)
    draw = store.draw(rng, 2, 6)
    assert draw.keys.tolist() == list(range(12))
    assert draw.probability.tolist() == [1 / 20] * 12
    assert draw.times_sampled.tolist() == [1] * 12
    assert store.check_valid() is None
    assert (store.num_items, store.num_resident_items, store.sampler.exhausted_total) == (8, 20, 12)
    with pytest.raises(ValueError, match="the items stand 8 more"):
        store.draw(rng, 1, 9)
    store.draw(rng, 1, 8)
    with pytest.raises(ValueError, match="the items stand 0 more"):
        store.draw(rng, 1, 1)
    _insert(store, make_chunk(T=5, B=1, sequence=1, first_step=21), np.array([[20]]))
    assert store.draw(rng, 1, 5).keys.tolist() == [20, 21, 22, 23, 24]
    assert store.check_valid() is None


def test_a_queue_skips_what_the_ring_has_overwritten(fill: Any, make_chunk: Any) -> None:
    store = fill(7, selector="fifo", max_times_sampled=2)
    rng = np.random.default_rng(0)
    assert store.draw(rng, 1, 3).keys.tolist() == [0, 1, 2]
    _insert(store, make_chunk(T=4, B=1, sequence=1, first_step=8), np.array([[7]]))
    assert store.draw(rng, 1, 4).keys.tolist() == [4, 5, 6, 7]
    assert store.draw(rng, 1, 10).keys.tolist() == [4, 5, 6, 7, 8, 9, 10, 8, 9, 10]
    assert (store.num_items, store.sampler.draws_left, store.check_valid()) == (0, 0, None)


# A limit of draws


@pytest.mark.parametrize("kind", [k for k in KINDS if k.get("max_times_sampled")])
def test_no_item_is_drawn_more_often_than_its_limit(fill: Any, kind: Any) -> None:
    store, most = fill(30, **kind), kind["max_times_sampled"]
    store.update_priorities(np.arange(30), 10.0 ** np.arange(30.0) / 1e20)
    counts, rng = np.zeros(30, np.int64), np.random.default_rng(0)
    while store.sampler.draws_left >= 14:
        draw = store.draw(rng, 2, 7)
        for key, times, p in zip(draw.keys, draw.times_sampled, draw.probability):
            counts[key] += 1
            assert times == counts[key] <= most
            assert p > 0.0
        assert store.check_valid() is None
        assert store.num_items == (counts < most).sum()
    assert store.sampler.draws_left == 30 * most - counts.sum() < 14
    assert store.sampler.exhausted_total == (counts == most).sum()


def test_what_a_limit_takes_away_falls_to_the_others_in_proportion(fill: Any) -> None:
    first = np.zeros(4)
    for seed in range(1500):
        store = fill(4, max_times_sampled=1, priority_exponent=1.0)
        store.update_priorities(np.arange(4), np.array([8.0, 2.0, 1.0, 1.0]))
        batch = store.draw(np.random.default_rng(seed), 1, 2)
        assert len(set(batch.keys.tolist())) == 2
        first[batch.keys] += 1
    # Item 0 fills the first stratum and a third of the second: without it 2, 1 and 1 share the rest.
    chance = np.array([1.0, 0.5, 0.25, 0.25])
    assert np.abs(first / 1500 - chance).max() < 0.05


# Freshness


def test_fresh_items_are_drawn_more_often_and_weights_correct_the_priority_alone(fill: Any) -> None:
    store, td_error = fill(50, **FRESH), np.random.default_rng(0).random(50) + 0.1
    store.update_priorities(np.arange(50), td_error)
    part = (td_error + 1e-6) ** 0.6
    counts = _counts(store, 20_000)
    assert _fits(counts, part * 2.0 ** (np.arange(50) * 10 / 50.0))
    assert not _fits(counts, part)
    batch = store.draw(np.random.default_rng(0), 1, 16)
    np.testing.assert_allclose(batch.probability, (part / part.sum())[batch.keys])
    np.testing.assert_allclose(store.sampler.priority_mass, part.sum())


def test_weights_at_beta_one_leave_the_lag_of_the_fresh_draws(fill: Any) -> None:
    store, rng = fill(50, **FRESH), np.random.default_rng(3)
    store.update_priorities(np.arange(50), rng.random(50) * np.linspace(3.0, 0.1, 50))
    weight, lag = 0.0, 0.0
    for _ in range(300):
        for batch in store.draw(rng, 4, 16).split(16):
            w = 1.0 / (store.num_items * batch.probability)
            weight, lag = weight + w.sum(), lag + (w * 10.0 * (50 - batch.keys - 1)).sum()
    factor = 2.0 ** (np.arange(50) * 10 / 50.0)
    expected = (factor * 10.0 * (49 - np.arange(50))).sum() / factor.sum()
    assert lag / weight == pytest.approx(expected, rel=0.05)  # about 58; uniform would be 245


def test_the_priority_sum_does_not_drift_and_rebases_change_no_chance(fill: Any, make_chunk: Any) -> None:
    store, rng = fill(40, capacity=64, **FRESH), np.random.default_rng(0)
    keys, version = np.array([[40]]), 41
    for sequence in range(200):
        chunk = make_chunk(T=2, B=1, sequence=sequence, first_step=41 + 2 * sequence)
        version += int(rng.integers(0, 90))  # up to 18 doublings a chunk
        chunk.policy_version[:] = version
        keys = _insert(store, chunk, keys)
        batch = store.draw(rng, 1, 16)
        store.update_priorities(batch.keys, 10.0 ** rng.uniform(-5, 5, 16))
    assert store.sampler.num_rebases > 20
    part = store.ring.priority[store.ring.priority > 0.0] ** 0.6
    np.testing.assert_allclose(store.sampler.priority_mass, part.sum(), rtol=1e-12)
    assert store.check_valid() is None


def test_items_of_any_age_are_drawn_where_nothing_newer_is_left(fill: Any, make_chunk: Any) -> None:
    store = fill(6, freshness_half_life_updates=0.01, max_times_sampled=1)
    store.sampler.rebuild()
    assert store.check_valid() is None
    assert sorted(store.draw(np.random.default_rng(0), 1, 6).keys.tolist()) == list(range(6))


def test_updates_that_a_crash_lost_count_as_fresh(schema: Any, make_chunk: Any) -> None:
    history = HeardVersions()
    store = ItemStore(
        capacity=8, schema=schema, n_step=1, discount=0.5, sampling=SamplerSettings(**FRESH), history=history
    )
    store.sampler.note_version(1, 0)
    store.sampler.note_version(2, 400)
    chunk = make_chunk(T=4, B=1)
    chunk.policy_version[:] = [1, 2, 2, 2]
    keys = _insert(store, chunk)
    store.sampler.note_version(1003, 350)  # the chief began again from an older checkpoint
    assert store.check_valid() is None
    chunk = make_chunk(T=2, B=1, sequence=1, first_step=4)
    chunk.policy_version[:] = 1003
    _insert(store, chunk, keys)
    leaves = store.sampler.tree.leaves(np.arange(5))
    assert leaves[1:].tolist() == [leaves[1]] * 4
    assert leaves[0] == leaves[1] / 2.0**7


# Visits


def test_an_item_that_was_drawn_falls_behind(fill: Any) -> None:
    store = fill(20, priority_rule="td_error_visits", td_weight=0.0, priority_exponent=1.0)
    leaves = store.sampler.tree.leaves
    assert leaves(np.arange(20)).tolist() == [1.0] * 20
    counts = _counts(store, 64)[:20]
    np.testing.assert_allclose(leaves(np.arange(20)), 1.0 / np.sqrt(counts + 1.0))  # without any update
    store.ring.times_sampled[1:20] = 10_000
    store.sampler.rebuild()
    counts = _counts(store, 64)
    assert 20 < counts[0] < 64  # it began ahead of all others and fell behind by itself
    batch = store.draw(np.random.default_rng(0), 1, 1)
    assert batch.priority[0] == pytest.approx(1.0 / np.sqrt(batch.times_sampled[0]))


def test_the_rule_with_visits_gives_the_chances_of_its_formula(fill: Any) -> None:
    store = fill(30, **VISITS, priority_exponent=0.5)
    rng = np.random.default_rng(0)
    store.ring.times_sampled[:30] = rng.integers(0, 50, 30)
    td_error = rng.random(30)
    store.update_priorities(np.arange(30), td_error)
    counts, times = np.zeros(30), store.ring.times_sampled[:30].copy()
    for _ in range(4000):
        store.ring.times_sampled[:30] = times
        store.sampler.rebuild()
        batch = store.draw(rng, 1, 4)
        np.add.at(counts, batch.keys, 1)
    p = 0.6 * (td_error + 1e-6) / (td_error + 1e-6).mean() + 0.4 / np.sqrt(times + 1)
    assert _fits(counts, p**0.5)
    np.testing.assert_allclose(batch.priority, p[batch.keys])


# Torture


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_comes_as_a_priority_does_harm(fill: Any, make_chunk: Any, kind: Any) -> None:
    store = fill(48, **kind)
    keys = _insert(store, make_chunk(T=8, B=1, sequence=1, first_step=49), np.array([[48]]))
    rng = np.random.default_rng(0)
    for _ in range(30):
        asked = rng.integers(-3, 70, 40)  # evicted, resident, open, never were, and many twice
        td_error = np.where(rng.random(40) < 0.7, rng.choice(BAD, 40), rng.random(40))
        before = store.ring.priority.copy()
        answer = store.update_priorities(asked, td_error)
        for i, (key, error, outcome) in enumerate(zip(asked.tolist(), td_error, answer.outcome)):
            good = np.isfinite(error) and error >= 0.0
            later = any(k == key and np.isfinite(e) and e >= 0 for k, e in zip(asked[i + 1 :], td_error[i + 1 :]))
            if not good:
                assert outcome == UpdateOutcome.REJECTED
            elif not 8 <= key < 56:
                assert outcome == UpdateOutcome.STALE
            else:
                assert outcome == (UpdateOutcome.SUPERSEDED if later else UpdateOutcome.APPLIED)
                if not later:
                    assert store.ring.priority[key % 49] == min(1e10, error + 1e-6)
        applied = asked[answer.outcome == UpdateOutcome.APPLIED]
        untouched = np.setdiff1d(np.arange(49), applied % 49)
        assert store.ring.priority[untouched].tolist() == before[untouched].tolist()
        assert store.check_valid() is None
        for tree in (store.sampler.tree, store.sampler._part_tree):
            np.testing.assert_allclose(tree.total, tree.leaves(np.arange(49)).sum(), rtol=1e-12)
    assert keys.tolist() == [[56]]


@pytest.mark.parametrize("kind", [{}, FRESH, VISITS, {**VISITS, **FRESH}])
def test_after_repair_the_draws_are_as_if_nothing_had_been(fill: Any, kind: Any) -> None:
    store, rng = fill(40, **kind), np.random.default_rng(2)
    for _ in range(20):
        store.update_priorities(rng.integers(0, 40, 30), rng.choice(BAD, 30))
    td_error = rng.random(40) + 0.05
    for _ in range(600):  # until the running mean has forgotten
        store.update_priorities(np.arange(40), td_error)
    assert store.check_valid() is None
    rule = kind.get("priority_rule")
    chance = (store.ring.priority[:40]) ** 0.6
    if rule:
        times = np.full(40, 10_000)
        store.ring.times_sampled[:40] = times  # so many that some more change nothing
        store.sampler.rebuild()
        chance = (0.6 * (td_error + 1e-6) / (td_error + 1e-6).mean() + 0.4 / np.sqrt(10_001)) ** 0.6
    if kind.get("freshness_half_life_updates"):
        chance = chance * 2.0 ** (np.arange(40) * 10 / 50.0)
    assert _fits(_counts(store, 12_800), chance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_update_on_a_reused_slot_leaves_the_new_item_alone(fill: Any, make_chunk: Any, kind: Any) -> None:
    store = fill(5, **kind)
    drawn = store.draw(np.random.default_rng(0), 1, 4).keys
    _insert(store, make_chunk(T=6, B=1, sequence=1, first_step=6), np.array([[5]]))
    before = (store.ring.priority.tolist(), store.ring.times_sampled.tolist(), store.sampler.tree.total)
    answer = store.update_priorities(drawn, np.full(4, 99.0))
    assert (answer.stale, answer.applied) == (4, 0)
    assert before == (store.ring.priority.tolist(), store.ring.times_sampled.tolist(), store.sampler.tree.total)
    assert store.ring.times_sampled[(np.arange(6, 11)) % 6].tolist() == [0] * 5


EVENT = st.sampled_from(["insert", "insert", "draw", "draw", "update", "version", "rebuild", "close"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(KINDS), capacity=st.integers(8, 40))
def test_columns_trees_and_counts_agree_whatever_happens(
    data: Any, kind: Any, capacity: int, fill: Any, make_chunk: Any
) -> None:
    store = fill(6, capacity=capacity, **kind)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    keys, step, version = np.array([[6]]), 7, 100_000
    for event in data.draw(st.lists(EVENT, min_size=5, max_size=30)):
        if event == "insert":
            chunk = make_chunk(T=int(rng.integers(1, 6)), B=1, first_step=step)
            chunk.policy_version[:] = rng.integers(0, version + 1)
            keys, step = _insert(store, chunk, keys), step + chunk.num_steps
        elif event == "draw" and store.num_items > 0 and store.sampler.draws_left >= 6:
            draw = store.draw(rng, 2, 3)
            assert (draw.probability > 0.0).all()
        elif event == "update":
            store.update_priorities(rng.integers(0, step + 3, 8), 10.0 ** rng.uniform(-12, 12, 8))
        elif event == "version":
            version += int(rng.integers(1, 1000))
            store.sampler.note_version(version, int(rng.integers(0, 2_000_000)))
        elif event == "rebuild":
            items = store.num_items, store.sampler.draws_left
            store.sampler.rebuild()
            assert items == (store.num_items, store.sampler.draws_left)
        elif event == "close":
            store.close(keys)
            keys = np.full_like(keys, -1)
        assert store.check_valid() is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"selector": "newest"}, "selector is 'newest'; it must be one of prioritized, uniform, fifo"),
        ({"priority_exponent": -0.1}, "priority_exponent is -0.1"),
        ({"max_times_sampled": -1}, "max_times_sampled is -1"),
        ({"selector": "fifo"}, "would draw the oldest items for ever"),
        ({"selector": "uniform", "priority_rule": "td_error_visits"}, "no effect on selector 'uniform'"),
        ({"selector": "fifo", "max_times_sampled": 1, **FRESH}, "no effect on selector 'fifo'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SamplerSettings(**changes)


def test_occurrences_count_up() -> None:
    assert occurrence(np.array([3, 1, 3, 3, 1])).tolist() == [1, 1, 2, 3, 2]


def test_rows_that_left_do_not_overflow_a_freshness_that_is_derived_anew(fill: Callable[..., ItemStore]) -> None:
    store = fill(8, freshness_half_life_updates=0.005)  # 2,000 doublings from one item to the next
    ring = store.ring
    ring.status[7], ring.priority[7] = StepOutcome.NO_STEP, 0.0
    store.sampler.rebuild()
    assert store.sampler.check_valid() is None
