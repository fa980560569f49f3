"""A chief that lies to its readers: they end with a sentence, and take nothing that cannot be."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable, Dict, Iterator, List

import google_crc32c
import grpc
import numpy as np
import pytest
import safetensors.numpy

from services.common.errors import Crash
from services.common.lifecycle import Lifecycle
from services.common.parameter_download import MAX_DAMAGED, MAX_SUPERSEDED, ParameterDownload
from services.common.parameter_set import digest_of
from services.common.peer import Peer
from services.common.rpc import Caller, Refused, Stopped
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, FakeLog


class LyingChief(parameters_pb2_grpc.ParameterServiceServicer):
    """Answers each Get with what `answer` makes."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.calls = 0
        self._answer = answer

    def Get(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.calls += 1
        return self._answer(request)


def _answer(data: bytes = b"", size: int = -1, version: int = 1, crc: int = -1) -> Any:
    manifest = parameters_pb2.GetManifestResponse(
        available=True, version=version, size_bytes=len(data) if size < 0 else size, digest=digest_of(data)
    )
    return parameters_pb2.GetParametersResponse(
        data=data, crc32c=google_crc32c.value(data) if crc < 0 else crc, manifest=manifest
    )


GOOD = safetensors.numpy.save({"policy.bias": np.ones(2, np.float32)})
LIES: Dict[str, Any] = {
    "a set of a terabyte": (_answer(GOOD, size=1 << 40), "more than can be right"),
    "a version beyond 64 bits": (_answer(GOOD, version=2**63), "more than can be right"),
    "values that are not finite": (
        _answer(safetensors.numpy.save({"policy.bias": np.full(2, np.nan, np.float32)})),
        "not finite",
    ),
    "no safetensors": (_answer(b"\xff" * 100), "cannot be read"),
    "a header of a terabyte": (_answer((1 << 40).to_bytes(8, "little") + b"{}"), "cannot be read"),
}


@pytest.fixture
def download(serve: Serve, lifecycle: Lifecycle, log: FakeLog) -> Iterator[Any]:
    callers: List[Caller] = []

    def make(chief: LyingChief) -> ParameterDownload:
        address = serve(parameters_pb2_grpc.add_ParameterServiceServicer_to_server, chief)
        callers.append(Caller("chief", address, lifecycle.stopping, log))
        peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0")
        return ParameterDownload(
            callers[-1], peer=peer, role=parameters_pb2.PARAMETER_ROLE_ACT, stopping=lifecycle.stopping, log=log
        )

    yield make
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("lie", sorted(LIES))
def test_an_actor_takes_no_set_that_cannot_be(lie: str, download: Any) -> None:
    answer, sentence = LIES[lie]
    client = download(LyingChief(lambda _request: answer))
    with pytest.raises(Refused, match=sentence):
        client.fetch()
    assert client.newest is None


def test_an_actor_takes_no_set_of_other_parameters_than_before(download: Any) -> None:
    other = safetensors.numpy.save({"policy.bias": np.ones(3, np.float32)})
    answers = [_answer(GOOD), _answer(other, version=2)]
    client = download(LyingChief(lambda _request: answers.pop(0)))
    client.fetch()
    with pytest.raises(Refused, match=r"'policy.bias' is \(3,\), and was \(2,\) before"):
        client.fetch()
    assert client.newest.version == 1


def test_damage_without_end_comes_to_an_end(download: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.common.parameter_download.RETRY_S", 0.0)
    client = download(LyingChief(lambda _request: _answer(GOOD, crc=1)))
    with pytest.raises(Crash, match=f"{MAX_DAMAGED} times in a row"):
        client.fetch()


def test_a_chief_that_supersedes_each_set_is_asked_no_oftener_than_ten_times_a_second(
    download: Any, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    def answer(request: Any) -> Any:
        if request.version:
            return parameters_pb2.GetParametersResponse(superseded=True)
        return _answer(GOOD[:8], size=len(GOOD))

    chief = LyingChief(answer)
    client = download(chief)
    thread = threading.Thread(target=_until_stopped, args=(client,))
    thread.start()
    eventually(lambda: chief.calls > 2 * MAX_SUPERSEDED)
    before, began_s = chief.calls, time.monotonic()
    time.sleep(1.0)
    assert chief.calls - before <= 2 * (10 * (time.monotonic() - began_s) + 2)
    lifecycle.stop("enough")
    thread.join(5)
    assert not thread.is_alive()


def _until_stopped(client: ParameterDownload) -> None:
    with contextlib.suppress(Stopped):
        client.fetch()
