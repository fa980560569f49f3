from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.message_bounds import MAX_FIELDS, MAX_PACKED_BYTES, UNCOUNTED_BYTES, check_bounds
from services.common.wire import WireError
from shoal.v1 import experience_pb2, replay_pb2
from tests.fakes import SCHEMA, make_chunk

INSERT = replay_pb2.InsertRequest.DESCRIPTOR


def _request(**schema: int) -> Any:
    request = replay_pb2.InsertRequest()
    for _ in range(schema.get("tensors", 0)):
        request.schema.observation.add()
    request.chunk.reward = bytes(UNCOUNTED_BYTES)
    return request


@pytest.mark.parametrize(("tensors", "is_refused"), [(MAX_FIELDS - 4, False), (MAX_FIELDS + 1, True)])
def test_fields_are_counted_down_through_the_messages(tensors: int, is_refused: bool) -> None:
    data = _request(tensors=tensors).SerializeToString()
    if is_refused:
        with pytest.raises(WireError, match=f"more than {MAX_FIELDS} fields"):
            check_bounds(data, INSERT)
    else:
        check_bounds(data, INSERT)


def test_a_small_message_is_not_looked_at() -> None:
    check_bounds(b"\xff" * UNCOUNTED_BYTES, INSERT)


def test_bytes_are_no_numbers_and_numbers_are_bounded() -> None:
    request = replay_pb2.InsertRequest()
    request.chunk.reward = bytes(MAX_PACKED_BYTES + 1)
    check_bounds(request.SerializeToString(), INSERT)
    request.chunk.final.step.extend([1] * (MAX_PACKED_BYTES + 1))
    with pytest.raises(WireError, match="bytes of numbers"):
        check_bounds(request.SerializeToString(), INSERT)


def test_numbers_are_bounded_in_a_message_and_not_in_each_of_its_fields() -> None:
    most = replay_pb2.InsertRequest()
    most.chunk.final.step.extend([1] * MAX_PACKED_BYTES)
    data = most.SerializeToString()
    check_bounds(data, INSERT)
    further = replay_pb2.InsertRequest()
    further.chunk.final.step.append(1)
    with pytest.raises(WireError, match=f"more than {MAX_PACKED_BYTES} bytes of numbers in all"):
        check_bounds(data + further.SerializeToString(), INSERT)


def test_the_largest_chunk_of_ours_passes() -> None:
    from services.common.codec import encode_chunk

    request = replay_pb2.InsertRequest(chunk=encode_chunk(make_chunk(600, 40, schema=SCHEMA)))
    request.chunk.final.step.extend(range(1 << 20))
    data = request.SerializeToString()
    assert len(data) > 1 << 20
    check_bounds(data, INSERT)


@given(st.binary(max_size=200))
def test_any_bytes_are_counted_or_refused(noise: bytes) -> None:
    data = noise + experience_pb2.Peer(name="x" * UNCOUNTED_BYTES).SerializeToString()
    with contextlib.suppress(WireError):
        check_bounds(data, INSERT)
