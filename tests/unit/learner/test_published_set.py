from __future__ import annotations

import threading
from typing import Any, List

import google_crc32c
import numpy as np
import pytest

from services.common.parameter_download import PART_BYTES
from services.common.parameter_set import digest_of, encode_set
from services.learner import published_set
from services.learner.published_set import MAX_PART_BYTES, PublishedSet
from shoal.v1 import parameters_pb2

PARAMETERS = {"policy.bias": np.arange(700_000, dtype=np.float32)}  # two parts and a bit
ACT: Any = parameters_pb2.PARAMETER_ROLE_ACT


def _part(published: PublishedSet, offset: int, size: int) -> bytes:
    answer = parameters_pb2.GetParametersResponse.FromString(published.answer(offset, size))
    assert answer.crc32c == google_crc32c.value(answer.data)
    return answer.data


@pytest.mark.parametrize("size", [0, PART_BYTES, 999_999, MAX_PART_BYTES])
def test_parts_of_any_size_make_the_whole(size: int) -> None:
    published = PublishedSet(ACT, 3, 60, PARAMETERS, "float32")
    whole = encode_set(PARAMETERS)
    assert (published.size_bytes, published.digest) == (len(whole), digest_of(whole))
    got = b""
    while len(got) < len(whole):
        part = _part(published, len(got), size)
        assert 0 < len(part) <= (size or PART_BYTES)
        got += part
    assert got == whole == published.data
    assert _part(published, 3 * PART_BYTES, size) == _part(published, 10**12, size) == b""


def test_no_part_is_larger_than_the_chief_likes() -> None:
    published = PublishedSet(ACT, 3, 60, {"w": np.zeros(5 * PART_BYTES, np.uint8)}, "float32")
    assert len(_part(published, 0, 2**31)) == MAX_PART_BYTES


def test_readers_that_come_together_have_it_serialized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: List[Any] = []
    monkeypatch.setattr(published_set, "encode_set", lambda *given: encoded.append(given) or encode_set(*given))
    published = PublishedSet(ACT, 3, 60, PARAMETERS, "float32")
    assert not published.is_serialized
    begin = threading.Barrier(8)
    answers: List[bytes] = []

    def read() -> None:
        begin.wait()
        answers.append(published.answer(PART_BYTES, PART_BYTES))

    readers = [threading.Thread(target=read) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert published.is_serialized
    assert len(encoded) == 1
    assert len(answers) == 8
    assert all(answer is answers[0] for answer in answers), "each reader was given a copy"


def test_the_arrays_are_let_go_when_the_answers_are_there() -> None:
    import weakref

    array = np.zeros(10, np.float32)
    gone = weakref.ref(array)
    published = PublishedSet(ACT, 1, 0, {"w": array}, "float32")
    del array
    assert gone() is not None
    assert published.digest
    assert gone() is None
