from __future__ import annotations

from typing import List

from services.common.peer import Peer
from services.learner.parameter_service import Readers
from shoal.v1 import experience_pb2, parameters_pb2
from tests.fakes import RUN_ID, FakeClock


def _saw(readers: Readers, name: str, *, version: int = 0, finished: bool = False) -> None:
    peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, name).to_proto()
    request = parameters_pb2.GetManifestRequest(peer=peer, running_version=version, running_digest="d")
    readers.saw(request, finished=finished)


def test_a_rung_is_kept_over_lives_and_shared_when_all_are_taken(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=3)
    rungs = [readers.lease_rung(name) for name in ("a", "b", "c", "a", "d", "b", "d")]
    assert rungs == [0, 1, 2, 0, 0, 1, 0]


def test_readers_live_as_long_as_they_ask(clock: FakeClock) -> None:
    readers = Readers(clock, num_actors=3)
    _saw(readers, "a", version=4)
    clock.now_s += 5
    _saw(readers, "b")
    assert [reader.peer.name for reader in readers.living(5.0)] == ["a", "b"]
    clock.now_s += 1
    assert [reader.peer.name for reader in readers.living(5.0)] == ["b"]
    _saw(readers, "a", version=5, finished=True)
    living: List[int] = [reader.version for reader in readers.living(5.0) if reader.told_finished]
    assert living == [5]
