from __future__ import annotations

from typing import Any

from services.replay.refusal import why_refused
from services.replay.table_info import TableSettings


def test_only_what_can_never_be_right_is_refused(make_chunk: Any) -> None:
    settings = TableSettings(capacity=10, samples_per_insert=1.0, max_chunk_steps=7, max_version_lead=100)
    assert why_refused(make_chunk(T=3, B=2), settings, 0) is None
    large = why_refused(make_chunk(T=3, B=3, time_outs=[(0, 0), (1, 1)]), settings, 0)
    assert large is not None
    assert (large.word, large.sentence.count("11 rows and the table only 10")) == ("too_large", 1)
    many = why_refused(make_chunk(T=4, B=2), settings, 0)
    assert many is not None
    assert many.word == "too_many_steps"


def test_a_version_from_the_future_is_refused_once_the_newest_is_known(make_chunk: Any) -> None:
    settings = TableSettings(capacity=100, max_version_lead=100)
    chunk = make_chunk(T=2, B=1)
    chunk.policy_version[:] = [7, 151]
    assert why_refused(chunk, settings, 51) is None
    ahead = why_refused(chunk, settings, 50)
    assert ahead is not None
    assert ahead.word == "version_ahead"
    assert "version 151, but the chief's newest is 50, and a step may be at most 100 ahead" in ahead.sentence
    assert why_refused(chunk, settings, 0) is None  # a replay that was restarted has heard of none
    assert why_refused(make_chunk(T=0), settings, 1) is None
