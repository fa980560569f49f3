from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import UserError
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.replay import footprint
from services.replay.footprint import in_words, row_bytes, rows_for, total_bytes
from services.replay.ring import Ring

ARM = Schema((TensorSpec("policy", "float32", (23,)),), ActionSpec((-1.0,) * 7, (1.0,) * 7))


def test_a_row_takes_what_its_columns_take() -> None:
    ring = Ring(10, ARM)
    names = ("action", "reward", "flags", "policy_version", "q_taken", "value", "inserted_s", "actor", "status")
    made = ("n_step_return", "discount", "bootstrap_key", "priority", "times_sampled")
    taken = sum(ring.column(name).nbytes for name in (*names, *made, "observation.policy"))
    assert 10 * row_bytes(ARM) == taken


def test_a_step_takes_less_than_with_its_next_observation_beside_it() -> None:
    twice = row_bytes(ARM) + ARM.observation[0].num_bytes - 8  # which would need no bootstrap key
    tree = 16 * (1 << 20)
    assert total_bytes(1_000_000, ARM) <= 0.85 * (1_000_000 * twice + tree)


@given(st.integers(1 << 22, 1 << 40))
def test_a_budget_is_used_and_never_passed(budget: int) -> None:
    rows = rows_for(budget, ARM)
    assert total_bytes(rows, ARM) <= budget < total_bytes(rows + 1, ARM)


def test_a_budget_for_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"replay\.memory = 1000 bytes holds not one row \(182 bytes"):
        rows_for(1000, ARM)


def test_bytes_are_said_in_words() -> None:
    assert [in_words(n) for n in (5, 2048, 3 << 20, 3 << 29, 1 << 50)] == [
        "5 bytes",
        "2.0 KiB",
        "3.0 MiB",
        "1.5 GiB",
        "1024.0 TiB",
    ]


def test_a_table_larger_than_memory_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "available_memory_bytes", lambda: 3 << 30)
    footprint.refuse_more_than_memory(10, 3 << 30)
    with pytest.raises(UserError, match=r"of 11 rows takes 3\.0 GiB, and this machine has 3\.0 GiB of memory left"):
        footprint.refuse_more_than_memory(11, (3 << 30) + 1)


def test_this_machine_has_some_memory() -> None:
    assert 1 << 20 < footprint.available_memory_bytes() < 1 << 50
