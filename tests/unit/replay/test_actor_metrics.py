from __future__ import annotations

from typing import Dict

from hypothesis import given
from hypothesis import strategies as st

from services.common.chunk import ActorCounters
from services.replay.actor_metrics import FORGET_S, MAX_ACTORS, MAX_NAME, actor_families, known_reasons, shown_actors
from services.replay.table_info import ActorInfo


def _actor(name: str, silent_s: float = 1.0, **dropped: int) -> ActorInfo:
    return ActorInfo(name, 7, 100, silent_s, ActorCounters(120, 3, dropped), 5)


def _values(*actors: ActorInfo) -> Dict[str, float]:
    return {
        ",".join([sample.name[len("shoal_replay_actor_") :], *list(sample.labels.values())[1:]]): sample.value
        for family in actor_families("run", actors)
        for sample in family.samples
    }


def test_each_actor_has_its_series() -> None:
    assert _values(_actor("a", 2.5, buffer_full=20, weather=4)) == {
        "silent_seconds,a": 2.5,
        "acknowledged_steps_total,a": 100,
        "dropped_steps_total,a,buffer_full": 20,
        "dropped_steps_total,a,stopped": 0,
        "dropped_steps_total,a,other": 4,
    }


def test_there_are_never_more_than_so_many_and_those_heard_of_last_stay() -> None:
    actors = [_actor(f"actor-{number}", silent_s=number / 10) for number in range(2 * MAX_ACTORS)]
    assert list(shown_actors(actors)) == [f"actor-{number}" for number in range(MAX_ACTORS)]


def test_who_is_gone_is_forgotten() -> None:
    assert list(shown_actors([_actor("gone", FORGET_S + 1), _actor("there", FORGET_S)])) == ["there"]


def test_a_name_is_cut_and_no_series_comes_twice() -> None:
    shown = shown_actors([_actor("x" * 1000, 2.0), _actor("x" * 2000, 1.0)])
    assert list(shown) == ["x" * MAX_NAME]
    assert shown["x" * MAX_NAME].seconds_since_insert == 1.0


@given(st.dictionaries(st.text(max_size=20), st.integers(0, 10**9)))
def test_whatever_a_peer_calls_its_reasons_they_are_few_and_nothing_is_lost(dropped: Dict[str, int]) -> None:
    known = known_reasons(dropped)
    assert set(known) == {"buffer_full", "stopped", "other"}
    assert sum(known.values()) == sum(dropped.values())
    assert all(count >= 0 for count in known.values())
