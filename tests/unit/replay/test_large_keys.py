"""Keys, counters and versions beyond 2^32 and 2^53: where a uint32 or a float64 would lose them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.common.sample_codec import decode_batch, decode_drawn, pack_batch, pack_drawn
from services.common.stamps_codec import PackedStamps, StampSource, last_bits
from services.replay.inspection import InspectOrder
from services.replay.rate_limiter import RateLimiter, Stock, make_limiter
from services.replay.sampler import MAX_TIMES
from services.replay.table import TableSettings

BASES = [2**31 - 20, 2**32 - 20, 2**53 - 20, 2**61]


def _advance(table: Any, base: int) -> None:
    """Let the ring's next key be `base`, as after so many rows."""
    table.store.ring.reserve_up_to(base)
    table.store.ring.commit()


@pytest.mark.parametrize("selector", [{}, {"priority_exponent": 1.0}])
@pytest.mark.parametrize("base", BASES)
def test_a_table_does_the_same_whatever_its_first_key_is(base: int, selector: Any, make_table: Any, feed: Any) -> None:
    low, high = make_table(seed=3), make_table(seed=3)
    base -= base % 64  # the same slots
    _advance(low, 64)
    _advance(high, base)
    for table in (low, high):
        feed(table, 20)
        assert table.check_valid() is None
    for _ in range(5):
        drawn = [table.sample(2, 8, max_wait_s=0.0) for table in (low, high)]
        one, other = (result.drawn for result in drawn)
        assert (other.keys - base == one.keys - 64).all()
        assert (other.bootstrap_keys - base == one.bootstrap_keys - 64).all()
        assert (other.probability == one.probability).all()
        rows = [result.batch for result in drawn]
        assert (rows[0].observation["policy"] == rows[1].observation["policy"]).all()
        assert (rows[0].next_observation["policy"] == rows[1].next_observation["policy"]).all()
        stamps = [result.stamps.resolve() for result in drawn]
        assert (stamps[0].acting_s == stamps[1].acting_s).all()
        for table, result in zip((low, high), drawn):
            outcome = table.update_priorities(result.drawn.keys, np.linspace(0, 1, 16))
            assert outcome.stale == 0
        assert decode_drawn(pack_drawn(other).join()).keys.tolist() == other.keys.tolist()
        assert decode_batch(pack_batch(rows[1]).join(), 5).keys.tolist() == other.keys.tolist()
    assert low.check_valid() is None
    assert high.check_valid() is None


@pytest.mark.parametrize("base", BASES)
def test_a_ring_comes_back_with_keys_beyond_any_float(base: int, make_durable: Any, make_chunk: Any) -> None:
    durable = make_durable()
    table = durable.table
    _advance(table, base)
    table._journal.roll()
    for sequence in range(12):
        table.insert("a", 1, make_chunk(sequence=sequence, ends=[(2, 1)]), max_wait_s=0.0)
    table.set_newest(2**40, 2**41)
    keys = sorted(item.key for item in table.inspector.find(InspectOrder.HIGHEST_PRIORITY, 1000))
    assert min(keys) >= base
    again = durable.reopen()
    assert sorted(item.key for item in again.inspector.find(InspectOrder.HIGHEST_PRIORITY, 1000)) == keys
    assert again.newest_version == 2**40
    assert again.insert("a", 1, make_chunk(sequence=12), max_wait_s=0.0).status == 1
    assert again.check_valid() is None


@pytest.mark.parametrize("base", BASES)
def test_counters_of_steps_go_on_beyond_any_float(base: int, make_durable: Any, make_chunk: Any) -> None:
    durable = make_durable()
    table = durable.table
    for name in ("acknowledged", "overwritten", "items"):
        setattr(table.store.counters, name, base)
    table._admission.enter("a", 1, 0.0)
    table._admission.actors["a"].acknowledged_steps = base
    table._journal.roll()
    for sequence in range(3):
        table.insert("a", 1, make_chunk(sequence=sequence), max_wait_s=0.0)
    assert table.store.counters.acknowledged == base + 24
    assert table.check_valid() is None
    assert durable.reopen().store.counters.acknowledged == base + 24


@pytest.mark.parametrize("base", [2**32, 2**53, 2**61])
def test_sequences_and_steps_of_a_life_go_on(base: int, make_durable: Any, make_chunk: Any) -> None:
    durable = make_durable()
    first = make_chunk(sequence=base, first_step=base)
    assert durable.table.insert("a", 1, first, max_wait_s=0.0).next_sequence == base + 1
    again = durable.reopen()
    assert again.insert("a", 1, first, max_wait_s=0.0).status == 2  # known
    follows = make_chunk(sequence=base + 1, first_step=base + 4)
    assert again.insert("a", 1, follows, max_wait_s=0.0).status == 1
    assert again.store.counters.lost_tail == 0  # it follows without a gap
    assert again.check_valid() is None


@pytest.mark.parametrize("base", [0, 2**32, 2**53])
@pytest.mark.parametrize("samples_per_insert", [0.5, 1.0, 32.0])
def test_the_limiter_holds_its_ratio_at_any_count(samples_per_insert: float, base: int) -> None:
    settings = TableSettings(
        capacity=10_000,
        samples_per_insert=samples_per_insert,
        error_buffer=512.0,
        min_size_to_sample=10,
        max_chunk_steps=8,
        max_batch_size=16,
        max_num_batches=1,
    )
    limiter: RateLimiter = make_limiter(settings)
    limiter.restore(base, int(base * samples_per_insert))
    stock = Stock(num_items=5000, num_resident=5000, num_expired=0, num_draws=np.inf, is_full=True)
    inserted = sampled = 0
    for _ in range(20_000):
        can_insert, can_sample = limiter.can_insert(8, stock), limiter.can_sample(16, stock)
        assert can_insert or can_sample, "a deadlock"
        if can_insert:
            limiter.insert(8, stock, stock)
            inserted += 8
        if can_sample:
            limiter.sample(16)
            sampled += 16
    assert abs(sampled - samples_per_insert * inserted) <= 2 * 512.0


@pytest.mark.parametrize("newest", [5, 2**32 - 1, 2**32, 2**32 + 5, 2**53 + 1])
def test_versions_travel_as_their_last_bits(newest: int) -> None:
    known = np.array([newest, newest - 1, max(0, newest - 1000)], np.int64)
    bits = (known & 0xFFFFFFFF).astype(np.uint32)
    zeros, floats = np.zeros(3, np.uint32), np.zeros(3, np.float32)
    packed = PackedStamps(StampSource(newest, ("a",)), zeros, bits, bits, floats, floats, floats)
    assert packed.unpack().known_version.tolist() == known.tolist()
    assert last_bits(newest) < 2**32


def test_draws_of_an_item_are_counted_to_what_the_column_holds(make_table: Any, feed: Any) -> None:
    table = make_table()
    feed(table, 2)
    table.store.ring.times_sampled[:] = MAX_TIMES - 1
    for _ in range(3):
        drawn = table.sample(1, 8, max_wait_s=0.0).drawn
        assert (drawn.times_sampled == MAX_TIMES).all()
    assert (table.store.ring.times_sampled >= 0).all()
