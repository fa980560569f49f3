"""Targets are judged by what was measured, and say so where nothing was."""

from __future__ import annotations

from bench.replay.rounds import Rates
from bench.replay.targets import Verdict, limit_verdicts, ratio_verdicts


def test_a_bound_is_reached_from_its_own_side() -> None:
    assert [Verdict("", value, 2.0).word for value in (1.99, 2.0, None)] == ["FAIL", "pass", "NOT MEASURED"]
    assert [Verdict("", value, 2.0, at_least=False).word for value in (2.0, 2.01)] == ["pass", "FAIL"]


def test_a_column_that_lacks_one_of_two_cases_gives_no_ratio() -> None:
    rates = {
        ("small", "insert", 1000): Rates({"shoal": [310.0], "reverb": [10.0]}),
        ("small", "insert", 4096): Rates({"shoal": [310.0]}),
    }
    verdicts = ratio_verdicts(rates)
    assert [v.word for v in verdicts[:3]] == ["pass", "NOT MEASURED", "NOT MEASURED"]
    assert verdicts[0].value == 31.0


def test_limits_are_ratios_of_what_was_measured() -> None:
    measured = {"heap_1x_bytes": 100.0, "heap_20x_bytes": 110.0, "insert_1x_p50_ms": 2.0, "insert_50x_p50_ms": 2.0}
    measured.update({"insert_quiet_p99_ms": 2.0, "insert_snapshot_p99_ms": 4.1})
    words = {v.text: v.word for v in limit_verdicts(measured)}
    assert words["heap of the replay after 20 x capacity, over 1 x"] == "FAIL"
    assert words["p50 of an insert after 50 x capacity, over 1 x"] == "pass"
    assert words["p99 of an insert during a snapshot, over quiet"] == "FAIL"
    assert words["p99 of an insert after 50 x capacity, over 1 x"] == "NOT MEASURED"
