from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Tuple

import grpc
import pytest

from shoal.v1 import experience_pb2, gradients_pb2
from tests.chaos.journaled_helper import JournaledStub
from tests.chaos.pushes import PushAnswer, PushWriter, push_faults, read_pushes

ACCEPTED, TOO_STALE = gradients_pb2.PUSH_STATUS_ACCEPTED, gradients_pb2.PUSH_STATUS_TOO_STALE
TAKEN = PushAnswer(life=7, chief=1, sequence=3, accepted=True, at_s=1.5)


class Chief:
    """Takes each sequence once, and answers the last one again as it did; `forgetful` takes whatever comes."""

    def __init__(self, forgetful: bool = False) -> None:
        self.forgetful = forgetful
        self.taken: List[int] = []
        self.lock = threading.Lock()

    def answer(self, request: Any) -> gradients_pb2.PushResponse:
        assert isinstance(request, gradients_pb2.PushRequest)
        assert request.sequence >= 1
        with self.lock:
            newest = max(self.taken, default=0)
            if request.sequence > newest or self.forgetful:
                self.taken.append(request.sequence)
        is_stale = request.sequence < newest and not self.forgetful
        return gradients_pb2.PushResponse(status=TOO_STALE if is_stale else ACCEPTED)


class Stub:
    """As the generated one."""

    Join = "as it is"

    def __init__(self, chief: Chief) -> None:
        self.chief = chief

    def Push(self, request: Any, timeout: float) -> gradients_pb2.PushResponse:  # noqa: N802 (gRPC's name)
        assert timeout > 0
        return self.chief.answer(request)


def journal_of(folder: Path, chief: Chief, resends: float) -> Tuple[JournaledStub, List[PushAnswer]]:
    stub = JournaledStub(Stub(chief), folder, resends, random.Random(1))
    for sequence in range(1, 30):
        peer = experience_pb2.Peer(name="helper-0", incarnation=7)
        request = gradients_pb2.PushRequest(peer=peer, sequence=sequence, chief_incarnation=1)
        assert stub.Push(request, timeout=1.0).status == ACCEPTED
    return stub, read_pushes(folder)


def test_what_was_answered_is_read_back_and_half_a_line_is_not(tmp_path: Path) -> None:
    other = replace(TAKEN, life=9, accepted=False, resent=True, behind=True)
    for push in (TAKEN, other):
        PushWriter(tmp_path, push.life).add(push)
    assert read_pushes(tmp_path) == [TAKEN, other]
    file = sorted(tmp_path.iterdir())[1]
    file.write_bytes(file.read_bytes()[:-1])
    assert read_pushes(tmp_path) == [TAKEN]


def test_each_gradient_has_one_line_and_other_calls_go_through(tmp_path: Path) -> None:
    stub, answers = journal_of(tmp_path, Chief(), resends=0.0)
    assert [push.sequence for push in answers] == list(range(1, 30))
    assert all(push.accepted and not push.resent and (push.life, push.chief) == (7, 1) for push in answers)
    assert stub.Join == "as it is"


def test_resends_of_each_kind_are_told_apart_and_a_careful_chief_passes(tmp_path: Path) -> None:
    chief = Chief()
    _, answers = journal_of(tmp_path, chief, resends=0.3)
    assert chief.taken == list(range(1, 30))
    assert {(push.resent, push.behind) for push in answers} == {(False, False), (True, False), (True, True)}
    assert push_faults(answers) == []


def test_a_chief_that_takes_a_gradient_behind_a_later_one_is_a_fault(tmp_path: Path) -> None:
    _, answers = journal_of(tmp_path, Chief(forgetful=True), resends=0.3)
    assert push_faults(answers)
    assert "behind a later one, and it was taken" in push_faults(answers)[0]


@pytest.mark.parametrize(
    ("answers", "faults"),
    [
        ([TAKEN, replace(TAKEN, resent=True)], 0),
        ([TAKEN, replace(TAKEN, accepted=False, resent=True, behind=True)], 0),
        ([TAKEN, replace(TAKEN, chief=2)], 0),  # another chief knows nothing of it
        ([TAKEN, TAKEN], 1),
        ([replace(TAKEN, resent=True, behind=True)], 1),
    ],
)
def test_what_must_not_be_said(answers: List[PushAnswer], faults: int) -> None:
    assert len(push_faults(answers)) == faults


def test_a_resend_that_is_not_answered_is_none(tmp_path: Path) -> None:
    class Lost(grpc.RpcError):
        pass

    class Away(Stub):
        def Push(self, request: Any, timeout: float) -> gradients_pb2.PushResponse:  # noqa: N802
            if threading.current_thread() is not threading.main_thread():
                raise Lost
            return super().Push(request, timeout)

    stub = JournaledStub(Away(Chief()), tmp_path, 1.0, random.Random(1))
    peer = experience_pb2.Peer(name="helper-0", incarnation=7)
    for sequence in (1, 2):
        stub.Push(gradients_pb2.PushRequest(peer=peer, sequence=sequence), timeout=1.0)
    assert [(push.sequence, push.resent) for push in read_pushes(tmp_path)] == [(1, False), (2, False)]
