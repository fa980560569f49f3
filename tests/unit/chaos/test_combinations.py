from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, List, Set

import pytest

from tests.chaos.combinations import combine, over_cables, over_tls, scenarios


def words_of(*faults: str) -> Set[str]:
    return {word for name in faults for word in name.split()}


def test_each_kind_of_fault_can_be_drawn() -> None:
    wanted = {"kill", "freeze", "cut", "isolate", "slow", "disk", "read-only", "damaged", "descriptors", "half-open"}
    assert wanted <= words_of(*over_cables())
    assert {"token", "certificate", "disk", "damaged", "descriptors"} <= words_of(*over_tls())
    assert all(scenario.resends > 0 for scenario in scenarios(quick=False))


def test_what_is_drawn_is_done_each_once_and_by_the_seed() -> None:
    def assert_short(seconds: float) -> None:
        assert 0 <= seconds <= 3

    def drawn(seed: int) -> List[str]:
        done: List[str] = []
        trial: Any = SimpleNamespace(rng=random.Random(seed), note=lambda _text: None, hold=assert_short)
        combine(trial, {name: lambda _trial, name=name: done.append(name) for name in "abcdefgh"}, 5)  # type: ignore[misc]
        return done

    assert len(set(drawn(1))) == 5
    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(5)}) > 1


def test_a_fault_that_breaks_off_breaks_off_the_combination() -> None:
    def fail(_trial: Any) -> None:
        raise RuntimeError("tc failed")

    trial: Any = SimpleNamespace(rng=random.Random(1), note=lambda _text: None, hold=lambda _seconds: None)
    with pytest.raises(RuntimeError, match="tc failed"):
        combine(trial, {"only": fail}, 1)
