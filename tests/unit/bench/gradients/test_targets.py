"""Targets are judged by what was measured, and say so where nothing was."""

from __future__ import annotations

import pytest

from bench.gradients.targets import PEER, break_even_mbit, verdicts
from bench.replay.rounds import Rates


def test_below_the_break_even_a_compressed_push_arrives_earlier_and_above_it_later() -> None:
    raw, sent, encode_s, decode_s = 1e6, 1e5, 2e-3, 1e-3
    speed = break_even_mbit(sent, raw, encode_s, decode_s) * 1e6

    def gain(bits_a_second: float) -> float:
        return raw * 8 / bits_a_second - (sent * 8 / bits_a_second + encode_s + decode_s)

    assert gain(speed) == pytest.approx(0.0, abs=1e-12)
    assert gain(0.9 * speed) > 0 > gain(1.1 * speed)


def test_what_was_not_measured_is_said_to_be() -> None:
    words = {verdict.word for verdict in verdicts("1 M", {}, {})}
    assert words == {"NOT MEASURED"}


@pytest.mark.parametrize(("ours", "words"), [(0.1, ["pass", "pass"]), (0.25, ["FAIL", "pass"]), (0.3, ["FAIL"] * 2)])
def test_bytes_are_judged_by_the_bound_and_by_the_peer(ours: float, words: list) -> None:
    qualities = {("s", "int8"): {"bytes_ratio": ours}, ("s", PEER): {"bytes_ratio": 0.27}}
    assert [verdict.word for verdict in verdicts("s", qualities, {})][:2] == words


def test_the_time_to_encode_is_compared_within_rounds() -> None:
    rates = Rates({"int8": [200.0, 20.0, 90.0], PEER: [100.0, 10.0, 100.0]})
    verdict = verdicts("s", {}, {("s", "encode"): rates})[2]
    assert (verdict.value, verdict.word) == (2.0, "pass")
