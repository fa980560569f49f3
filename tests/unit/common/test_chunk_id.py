from __future__ import annotations

from services.common.chunk_id import chunk_id


def test_a_chunk_is_named_by_actor_life_and_sequence() -> None:
    assert chunk_id("actor-0", 0x1F3A, 217) == "actor-0/0000000000001f3a/217"


def test_sequences_of_other_lane_groups_are_told_apart() -> None:
    assert chunk_id("actor-0", 0x1F3A, 217, lane_group=3) == "actor-0/0000000000001f3a/3.217"
