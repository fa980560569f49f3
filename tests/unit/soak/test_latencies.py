from __future__ import annotations

from typing import List

import numpy as np
import pytest

from tests.soak.latencies import Window, Windows, is_settled, judge, measure, noise_of

ROUNDS, CALLS = 12, 400


def _windows(factor: float = 1.0, *, tail: float = 1.0, noise: float = 0.02, seed: int = 0) -> List[Window]:
    """Windows of calls of about 2 ms; `tail` multiplies the slowest hundredths, `noise` differs between windows."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(ROUNDS):
        took = 2e-3 * factor * rng.lognormal(0.0, noise) * rng.lognormal(0.0, 0.1, CALLS)
        took[rng.random(CALLS) < 0.03] *= 3.0 * tail
        made.append(Window(took.tolist(), took.tolist()))
    return made


def test_alike_replays_have_no_fault() -> None:
    verdict = judge({"fresh": _windows(), "old": _windows(seed=1)})
    assert (verdict.faults, verdict.not_tested) == ([], [])
    assert len(verdict.rows) == 5
    assert is_settled({"fresh": _windows(), "old": _windows(seed=1)})


def test_an_old_replay_that_got_slower_is_a_fault() -> None:
    verdict = judge({"fresh": _windows(), "old": _windows(1.3, seed=1)})
    assert {fault[:10] for fault in verdict.faults} == {"insert p50", "sample p50"}
    assert not is_settled({"fresh": _windows(), "old": _windows(1.3, seed=1)})


def test_an_old_replay_with_a_longer_tail_is_a_fault() -> None:
    verdict = judge({"fresh": _windows(), "old": _windows(tail=3.0, seed=1)})
    assert {fault[:10] for fault in verdict.faults} == {"insert p99", "sample p99"}


def test_a_regression_in_bursts_excuses_nothing() -> None:
    slow, usual = _windows(4.0, seed=1), _windows(seed=2)
    old = [slow[number] if number % 2 else usual[number] for number in range(ROUNDS)]
    windows: Windows = {"fresh": _windows(), "old": old}
    assert noise_of(old, "insert", 0.5) > 3.0
    assert judge(windows).not_tested == []
    assert any(fault.startswith("insert p50") for fault in judge(windows).faults)


def test_what_a_noisy_machine_hides_is_not_tested_and_what_it_cannot_hide_is_a_fault() -> None:
    fresh = _windows()
    for window in fresh[::2]:
        window.insert = [1.4 * took for took in window.insert]
    hidden = judge({"fresh": fresh, "old": _windows(1.2, seed=1)})
    assert not is_settled({"fresh": fresh, "old": fresh})
    assert [line[:10] for line in hidden.not_tested] == ["insert p50"]
    assert all(not fault.startswith("insert") for fault in hidden.faults)
    seen = judge({"fresh": fresh, "old": _windows(3.0, seed=1)})
    assert any(fault.startswith("insert p50") for fault in seen.faults)


class Failing:
    """A replay that fails after a while."""

    def __init__(self) -> None:
        self.left = 3

    def insert(self) -> float:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("gone")
        return 0.001

    def sample(self) -> float:
        return 0.001


def test_a_window_whose_calls_fail_is_no_window() -> None:
    with pytest.raises(RuntimeError, match="insert number 4 failed: RuntimeError: gone"):
        measure(Failing(), 5.0)
