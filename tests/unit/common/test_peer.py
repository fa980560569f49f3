from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.common.peer import PROTOCOL_VERSION, Peer, objection
from shoal.v1 import experience_pb2

PEER = Peer("run-a", experience_pb2.ROLE_ACTOR, "actor-0")


def test_a_peer_of_the_run_is_let_in_and_carries_its_digest() -> None:
    message = PEER.to_proto("0123456789abcdef")
    assert objection(message, "run-a") == ""
    assert message.schema_digest == "0123456789abcdef"
    assert message.protocol_version == PROTOCOL_VERSION
    assert message.incarnation == PEER.incarnation != 0


def test_every_life_has_an_incarnation_of_its_own() -> None:
    lives = {Peer("r", experience_pb2.ROLE_ACTOR, "a").incarnation for _ in range(100)}
    assert len(lives) == 100
    assert 0 not in lives


def test_another_version_is_told_with_both() -> None:
    message = PEER.to_proto()
    message.protocol_version = PROTOCOL_VERSION + 1
    sentence = objection(message, "run-a")
    assert f"actor-0 speaks protocol version {PROTOCOL_VERSION + 1}, this service {PROTOCOL_VERSION}" in sentence


def test_another_run_is_told_with_both() -> None:
    assert "actor-0 belongs to run 'run-a', this service to run 'run-b'" in objection(PEER.to_proto(), "run-b")


@pytest.mark.parametrize("missing", [{"name": ""}, {"incarnation": 0}])
def test_a_caller_must_introduce_itself(missing: Any) -> None:
    assert "must introduce itself" in objection(replace(PEER, **missing).to_proto(), "run-a")


def test_only_an_operator_may_look_at_any_run() -> None:
    assert objection(Peer("", experience_pb2.ROLE_OPERATOR, "").to_proto(), "run-a") == ""
    assert "belongs to run 'run-b'" in objection(Peer("run-b", experience_pb2.ROLE_OPERATOR, "x").to_proto(), "run-a")
    assert "belongs to run ''" in objection(Peer("", experience_pb2.ROLE_ACTOR, "x").to_proto(), "run-a")
