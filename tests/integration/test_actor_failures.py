"""An actor whose replay or chief is away, another or refuses it, with real servers: what it does, says, and loses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List

import numpy as np
import pytest

from services.actor.evaluator.__main__ import run as evaluate
from services.common.chunk import Chunk
from services.common.config.load import load
from services.common.errors import EXIT_USER, UserError
from services.common.lifecycle import Lifecycle
from tests.acting_parties import (
    CHUNK_STEPS,
    LANES,
    Peers,
    flags_of,
)
from tests.conftest import Eventually
from tests.fakes import FakeLog


def _stands_still(count: Callable[[], int], seconds: float = 0.4) -> bool:
    before = count()
    time.sleep(seconds)
    return count() == before


def _while_alive(process: subprocess.Popen[str], holds: Callable[[], Any]) -> None:
    """Wait until something holds, for as long as the process needs to start on a busy machine."""
    while not holds():
        assert process.poll() is None, "the process has ended"
        time.sleep(0.005)


def test_a_replay_that_is_away_holds_the_actor_and_costs_nothing(
    peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    acting = make_acting()
    eventually(lambda: len(peers.replay.chunks) > 5)
    peers.go("replay")
    eventually(lambda: acting.metric("buffer_depth_chunks") == 2)
    eventually(lambda: _stands_still(acting.produced))
    assert acting.actor.parameters._download._waiting_for().startswith("waiting for the replay at 127.0.0.1:")
    peers.come("replay")
    before = acting.produced()
    eventually(lambda: acting.produced() > before + 100)
    acting.finish()
    info = peers.replay.info()
    assert info.steps.acknowledged == acting.produced()
    assert (acting.metric("dropped_buffer_full_steps_total"), acting.metric("dropped_stopped_steps_total")) == (0, 0)
    assert info.steps.lost_tail == 0


def test_a_replay_that_is_away_costs_the_oldest_chunks_which_are_counted(
    peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    acting = make_acting(**{"actor.on_full": "drop_oldest"})
    eventually(lambda: len(peers.replay.chunks) > 5)
    peers.go("replay")
    eventually(lambda: acting.metric("dropped_buffer_full_steps_total") > 5 * LANES * CHUNK_STEPS)
    before = acting.produced()
    eventually(lambda: acting.produced() > before)
    peers.come("replay")
    known = len(peers.replay.chunks)
    eventually(lambda: len(peers.replay.chunks) > known + 5)
    acting.finish()
    info = peers.replay.info()
    dropped = acting.metric("dropped_buffer_full_steps_total") + acting.metric("dropped_stopped_steps_total")
    assert acting.produced() == info.steps.acknowledged + dropped
    (counters,) = [its.counters for its in info.actors]
    lost = sum(counters.dropped_steps.values())
    assert counters.dropped_steps["buffer_full"] > 0
    assert counters.produced_steps == info.steps.acknowledged + lost + counters.buffered_steps
    assert info.steps.lost_tail % LANES == 0  # in each lane the last step before a gap, unless it ended an episode


def test_a_chief_that_is_away_parks_the_actor_when_its_parameters_are_too_old(
    peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    acting = make_acting(**{"actor.max_policy_age_s": 0.5})
    eventually(lambda: len(peers.replay.chunks) > 5)
    parked = "parked: the parameters are too old"
    peers.go("chief")
    eventually(lambda: acting.actor.parameters.waiting_for)  # no answer of the chief is on its way any more
    eventually(lambda: acting.actor.parameters.parked_for)
    # It may have parked and gone on before, on a machine that stalls: the last word counts.
    eventually(lambda: [e for e in acting.log.events() if e in (parked, "acting goes on")][-1:] == [parked])
    assert _stands_still(acting.produced)
    assert acting.metric("policy_age_seconds") > 0.5
    # The replay, which is there, is told: people ask it while the chief is away.
    eventually(lambda: peers.replay.info().actors[0].waiting_for.startswith("parked: the chief has not confirmed"))
    peers.come("chief")
    before = acting.produced()
    eventually(lambda: acting.produced() > before + 100)
    assert "acting goes on" in acting.log.events("info")
    eventually(lambda: peers.replay.info().actors[0].waiting_for == "")
    acting.finish()
    assert peers.replay.info().steps.acknowledged == acting.produced()


def test_the_actor_outlives_both(peers: Peers, make_acting: Any, eventually: Eventually) -> None:
    acting = make_acting()
    eventually(lambda: len(peers.replay.chunks) > 5)
    peers.go("replay", "chief")
    eventually(lambda: acting.metric("buffer_depth_chunks") == 2)
    eventually(lambda: _stands_still(acting.produced))
    peers.come("chief", "replay")
    before = acting.produced()
    eventually(lambda: acting.produced() > before + 100)
    acting.finish()
    assert peers.replay.info().steps.acknowledged == acting.produced()


def test_lane_groups_fill_one_replay_and_all_adds_up(peers: Peers, make_acting: Any, eventually: Eventually) -> None:
    acting = make_acting(**{"actor.lane_groups": 2})
    eventually(lambda: acting.produced() > 400)
    acting.finish()
    info = peers.replay.info()
    by_group = {group: [c for c in peers.replay.chunks if c.lane_group == group and c.num_steps] for group in (0, 1)}
    for chunks in by_group.values():
        assert all(chunk.num_lanes == LANES // 2 for chunk in chunks)
        firsts = [chunk.first_step for chunk in chunks]
        assert firsts == np.cumsum([0] + [chunk.num_steps for chunk in chunks])[:-1].tolist()
        assert chunks[-1].final.cut.any()  # each group's running episodes are cut at the stop
    produced = sum(chunk.num_valid for chunks in by_group.values() for chunk in chunks)
    assert info.steps.acknowledged == acting.produced() == produced
    assert (info.steps.items, info.steps.lost_tail) == (produced, 0)
    (counters,) = [its.counters for its in info.actors]
    assert (counters.produced_steps, counters.buffered_steps) == (produced, 0)
    assert acting.metric("exploration_min") == pytest.approx(0.05)
    assert acting.metric("exploration_max") == pytest.approx(0.8)


def test_the_same_seed_makes_the_same_steps_in_each_lane_group(
    peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    lives: List[Dict[int, List[Chunk]]] = []
    for name in ("actor-0", "actor-0", "actor-1"):
        peers.replay.chunks.clear()
        acting = make_acting(**{"actor.lane_groups": 2, "actor.name": name})
        eventually(lambda: min(sum(c.lane_group == g for c in peers.replay.chunks) for g in (0, 1)) > 4)
        acting.finish()
        whole = [chunk for chunk in peers.replay.chunks if chunk.num_steps == CHUNK_STEPS]
        lives.append({group: [c for c in whole if c.lane_group == group][:4] for group in (0, 1)})
    first, again, other = lives
    for group in (0, 1):
        for one, same, different in zip(first[group], again[group], other[group]):
            np.testing.assert_array_equal(one.action, same.action)
            np.testing.assert_array_equal(one.q_taken, same.q_taken)
            assert (one.action != different.action).any()
    assert (first[0][0].action != first[1][0].action).any()


@pytest.mark.parametrize(
    ("hidden_sizes", "difference"),
    [
        ("[9]", r"'policy\.0\.weight' is \(6, 8\) there, and \(6, 9\) here"),
        ("[8, 8]", r"'policy\.1\.weight' is \(8, 1\) there, and \(8, 8\) here"),
    ],
)
@pytest.mark.parametrize(
    ("who", "changes"),
    [
        ("actor", {}),
        ("actor", {"actor.index": None}),  # it asks the chief for one, on another thread than later for parameters
        ("evaluator", {"evaluator.metrics_port": 0, "evaluator.nice": 0}),
    ],
)
def test_a_chief_of_other_networks_is_a_mistake_to_mend(
    who: str, changes: Dict[str, Any], hidden_sizes: str, difference: str, peers: Peers, make_acting: Any
) -> None:
    told = rf"the chief's parameters do not fit this {who}: {difference}; start both with the same run file"
    values = {"td3.hidden_sizes": hidden_sizes, **changes}

    def live() -> None:
        if who == "evaluator":
            evaluate(load(None, flags_of(peers, **values)).config, Lifecycle(), FakeLog())
            return
        acting = make_acting(**values)
        acting._thread.join(15)
        acting.finish()

    with pytest.raises(UserError, match=told) as caught:
        live()
    assert caught.value.exit_code == EXIT_USER
    assert [chunk.num_valid for chunk in peers.replay.chunks if chunk.num_valid] == []  # nothing was acted


def test_an_actor_whose_token_was_withdrawn_ends_as_asked(peers: Peers) -> None:
    command = [sys.executable, "-m", "services.actor", *flags_of(peers, **{"actor.name": "actor-0"})]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            _while_alive(process, lambda: len(peers.replay.chunks) > 2)
            peers.replay.knows_tokens = False
            _while_alive(process, lambda: peers.replay.num_refused)
            process.terminate()
            said, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    assert 'warning the last chunks wait for the replay reason="this service does not know the caller\'s token"' in said
    dropped = int(said.partition("steps are dropped at the stop steps=")[2].split()[0])
    acknowledged = int(said.partition("info    steps acknowledged=")[2].split()[0])
    assert dropped >= LANES
    assert acknowledged == peers.replay.info().steps.acknowledged
    assert said.endswith("stopped reason=SIGTERM\n")
