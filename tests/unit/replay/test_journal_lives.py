"""Random lives of a table: every step is accounted for."""

from __future__ import annotations

from typing import Any, List, Optional

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.replay.admission import InsertStatus
from services.replay.sampler_settings import SamplerSettings
from tests.table_states import STAGES, Killed, draw_chunk, kill_at, state_of

EVENT = st.sampled_from(
    ["insert", "insert", "insert", "gap", "restart", "close", "silence", "sick", "sample", "resend", "reopen", "kill",
     "boot", "copy", "version", "version", "roll", "roll"]
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    capacity=st.integers(16, 60),
    n_step=st.integers(1, 5),
    bound=st.sampled_from([None, 0, 30]),
    most=st.sampled_from([0, 4]),
)
def test_every_step_is_accounted_for_whatever_happens_and_however_often_it_comes_back(
    data: Any,
    capacity: int,
    n_step: int,
    bound: Optional[int],
    most: int,
    make_durable: Any,
    make_chunk: Any,
    clock: Any,
) -> None:
    boot = ["boot"]
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("services.replay.ring_folder.boot_id", lambda: boot[0])
        sampling = SamplerSettings(max_lag_updates=bound, max_times_sampled=most)
        durable = make_durable(capacity=capacity, n_step=n_step, max_actor_silence_s=50.0, sampling=sampling)
        _live(data, durable, make_chunk, clock, boot)


def _live(data: Any, durable: Any, make_chunk: Any, clock: Any, boot: List[str]) -> None:
    lives = {name: [1, 0, 0] for name in ("a", "b")}  # incarnation, sequence, first step
    for number, event in enumerate(data.draw(st.lists(EVENT, min_size=5, max_size=30))):
        table = durable.table
        name = data.draw(st.sampled_from(["a", "b"]))
        life = lives[name]
        clock.now_s += 100.0 if event == "silence" else 1.0
        if event == "close":
            table.close_actor(name, life[0])
        elif event == "sample":
            for batch in table.sample(2, 8, max_wait_s=0.0).batches:
                table.update_priorities(batch.keys, np.abs(batch.n_step_return).astype(np.float64))
        elif event == "version":
            known = table.store.history
            table.set_newest(known.newest_version + 1, known.newest_updates + data.draw(st.integers(0, 20)))
        elif event == "silence":
            table.expire_actors()
        elif event == "roll":
            for _ in range(data.draw(st.integers(1, 2))):
                table._journal.roll()
        elif event == "reopen":
            before = state_of(table)
            assert state_of(durable.reopen()) == before
            table = durable.reopen(n_step=data.draw(st.integers(1, 5)))
            durable.settings["n_step"] = table.settings.n_step
        elif event == "boot":
            boot[0] = f"boot {number}"
            durable.reopen()
        elif event == "copy":
            target = durable.path.with_name(f"{durable.path.name}-{number}")
            table.snapshot(target)
            durable.drop()
            durable.path = target
            acknowledged = table.store.counters.acknowledged
            assert durable.open().store.counters.acknowledged == acknowledged
        else:
            _insert(data, durable, make_chunk, event, name, life)
        assert durable.table.check_valid() is None
    durable.drop()


def _insert(data: Any, durable: Any, make_chunk: Any, event: str, name: str, life: List[int]) -> None:
    table = durable.table
    chunk = draw_chunk(data, make_chunk, event, life)
    chunk.policy_version[:] = data.draw(st.integers(0, table.newest_version))
    before_steps = table.info().steps.acknowledged
    if event == "kill":
        with pytest.MonkeyPatch.context() as patches:
            kill_at(data.draw(st.sampled_from(STAGES)), patches)
            try:
                table.insert(name, life[0], chunk, max_wait_s=0.0)
            except Killed:
                pass
        table = durable.reopen()
        assert table.store.counters.acknowledged in (before_steps, before_steps + chunk.num_valid)
    status = table.insert(name, life[0], chunk, max_wait_s=0.0).status
    assert status in ((InsertStatus.APPLIED, InsertStatus.DUPLICATE)[: 1 + (event == "kill")])
    assert table.info().steps.acknowledged == before_steps + chunk.num_valid
    life[1] += 1
    life[2] += chunk.num_steps
    if event == "resend":
        assert table.insert(name, life[0], chunk, max_wait_s=0.0).status is InsertStatus.DUPLICATE
