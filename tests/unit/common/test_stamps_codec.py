from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from services.common.batch import DrawnKeys, Stamps
from services.common.codec import decode_drawn, fill_drawn
from services.common.schema import SchemaError
from services.common.stamps_codec import PackedStamps, StampSource, decode_stamps, fill_stamps, join_stamps, last_bits
from shoal.v1 import replay_pb2

NAMES = ("a", "b")


def stamps_of(n: int, **changes: Any) -> Stamps:
    facts = {
        "actor_index": np.arange(n, dtype=np.uint32) % 2,
        "actor_names": NAMES,
        "known_version": np.arange(n, dtype=np.int64) + 2**40,
        "arrival_version": np.arange(n, dtype=np.int64) + 2**40 + 1,
        "sampling_version": 2**40 + 1000,
        "acting_s": np.linspace(0, 1, n, dtype=np.float32),
        "transit_s": np.linspace(0, 2, n, dtype=np.float32),
        "ring_s": np.linspace(0, 3, n, dtype=np.float32),
    }
    return Stamps(**{**facts, **changes})


def _same(one: Stamps, other: Stamps) -> None:
    for field in dataclasses.fields(Stamps):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), err_msg=field.name)


def _packed(stamps: Stamps) -> PackedStamps:
    return PackedStamps(
        source=StampSource(stamps.sampling_version, stamps.actor_names),
        actor_index=stamps.actor_index,
        known_version=np.array([last_bits(v) for v in stamps.known_version.tolist()], np.uint32),
        arrival_version=np.array([last_bits(v) for v in stamps.arrival_version.tolist()], np.uint32),
        acting_s=stamps.acting_s,
        transit_s=stamps.transit_s,
        ring_s=stamps.ring_s,
    )


def _message(stamps: Stamps) -> replay_pb2.SampledBatch:
    message = replay_pb2.SampledBatch()
    fill_stamps([message], _packed(stamps))
    return message


SOURCE = StampSource(2**40 + 1000, NAMES)


def test_stamps_come_back_as_they_were_in_24_bytes_an_item() -> None:
    message = _message(stamps_of(500))
    _same(decode_stamps(message, 500, SOURCE), stamps_of(500))
    assert message.ByteSize() < 24 * 500 + 50


@pytest.mark.parametrize("newest", [5, 2**31, 2**32 + 3, 2**40 + 1000])
def test_versions_are_told_by_their_last_bits_and_those_ahead_count_as_newest(newest: int) -> None:
    versions = [newest, newest + 7, newest - 5, max(0, newest - 2**31 + 1)]
    stamps = stamps_of(
        4, known_version=np.array(versions), arrival_version=np.array(versions[::-1]), sampling_version=newest
    )
    found = decode_stamps(_message(stamps), 4, StampSource(newest, NAMES))
    want = [newest, newest, newest - 5, max(0, newest - 2**31 + 1)]
    assert found.known_version.tolist() == want
    assert found.arrival_version.tolist() == want[::-1]


def test_what_does_not_fit_is_refused() -> None:
    message = _message(stamps_of(4))
    with pytest.raises(SchemaError, match="'actor_index' has 16 bytes; 3 items take 12"):
        decode_stamps(message, 3, SOURCE)
    with pytest.raises(SchemaError, match="of actor 1, but only 1 were named"):
        decode_stamps(message, 4, StampSource(9, ("a",)))
    message.transit_seconds = b""
    with pytest.raises(SchemaError, match="'transit_seconds' has 0 bytes"):
        decode_stamps(message, 4, SOURCE)


def test_parts_join_to_the_whole() -> None:
    whole = stamps_of(7)
    _same(join_stamps([whole.at(slice(0, 3)), whole.at(slice(3, 7))]), whole)
    assert whole.at(np.array([6, 0])).ring_s.tolist() == [3.0, 0.0]


def test_keys_travel_with_their_stamps() -> None:
    columns: Any = [np.arange(4), np.ones(4), np.ones(4), np.ones(4, np.int64), np.arange(4)]
    messages = [replay_pb2.SampledBatch(), replay_pb2.SampledBatch()]
    for message, part in zip(messages, DrawnKeys(*columns, stamps_of(4)).split(2)):
        assert part.stamps is not None
        fill_drawn(message, part)
    fill_stamps(messages, _packed(stamps_of(4)))
    joined = decode_drawn(messages, SOURCE)
    assert joined.stamps is not None
    _same(joined.stamps, stamps_of(4))
    assert decode_drawn(messages).stamps is None
