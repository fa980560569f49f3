from __future__ import annotations

import threading
import time
from typing import Any, List

import numpy as np
import pytest

from services.common import parameter_download
from services.common.lifecycle import Lifecycle
from services.common.parameter_download import ParameterDownload
from services.common.parameter_set import ParameterShapes
from services.common.peer import Peer
from services.common.rpc import Caller, Refused, Stopped
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.fakes import RUN_ID, FakeChief, FakeLog

ADD = parameters_pb2_grpc.add_ParameterServiceServicer_to_server
PART = 1000


@pytest.fixture
def chief() -> FakeChief:
    return FakeChief()


@pytest.fixture
def download(chief: FakeChief, serve: Serve, lifecycle: Lifecycle, log: FakeLog) -> Any:
    caller = Caller("chief", serve(ADD, chief), lifecycle.stopping, log)
    yield ParameterDownload(
        caller,
        peer=Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "actor-0"),
        role=parameters_pb2.PARAMETER_ROLE_ACT,
        stopping=lifecycle.stopping,
        log=log,
        part_bytes=PART,
    )
    caller.close()


def test_the_first_set_must_fit_the_network_that_is_to_run_on_it(download: ParameterDownload, chief: FakeChief) -> None:
    download._shapes = ParameterShapes({"policy.bias": (3,)})
    chief.publish(1, 0.25, size=2)
    with pytest.raises(Refused) as caught:
        download.fetch()
    assert str(caught.value) == (
        "the chief's parameters do not fit this actor: 'policy.bias' is (2,) there, and (3,) here; start both with the "
        "same run file: [algorithm], the section of the algorithm, [normalization] and [env] must agree"
    )
    assert download.newest is None
    chief.publish(2, 0.5, size=3)  # another life of the chief
    download.fetch()
    assert _bias(download) == 0.5


def _bias(download: ParameterDownload) -> float:
    assert download.newest is not None
    return float(download.newest.parameters["policy.bias"][-1])


def test_a_small_set_takes_one_call_and_so_does_the_news_that_there_is_none(
    download: ParameterDownload, chief: FakeChief
) -> None:
    assert not download.fetch().available
    assert download.newest is None
    chief.publish(3, 0.25)
    manifest = download.fetch()
    assert (chief.manifests, chief.gets) == (2, 1)
    newest: Any = download.newest
    assert (newest.version, newest.updates, newest.chief_incarnation) == (3, 30, 1)
    assert newest.digest == manifest.digest
    assert _bias(download) == 0.25
    assert not download.fetch().available
    assert (chief.manifests, chief.gets) == (3, 1)
    assert download.newest is newest


def test_a_large_set_comes_in_parts(download: ParameterDownload, chief: FakeChief) -> None:
    chief.publish(1, 0.125, size=2000)
    download.fetch()
    assert chief.manifests == 1
    assert chief.gets == -(-len(chief.data) // PART)
    newest: Any = download.newest
    np.testing.assert_array_equal(newest.parameters["policy.bias"], np.full(2000, 0.125))


@pytest.mark.parametrize("damaged_part", [0, 1, 2])
def test_a_damaged_part_is_fetched_again(
    damaged_part: int, download: ParameterDownload, chief: FakeChief, log: FakeLog
) -> None:
    chief.publish(1, 0.125, size=600)
    chief.faults = [""] * damaged_part + ["damaged"]
    download.fetch()
    assert _bias(download) == 0.125
    assert log.events("warning") == ["a part of the parameters was damaged: fetched again"]
    assert chief.gets == 4


def test_a_superseded_set_is_left_for_the_newer_one(download: ParameterDownload, chief: FakeChief) -> None:
    chief.publish(1, 0.125, size=600)
    chief.faults = ["", "superseded"]
    download.fetch()
    assert _bias(download) == 0.125
    assert chief.manifests == 2


def test_only_the_newest_is_fetched(download: ParameterDownload, chief: FakeChief) -> None:
    for version in range(1, 50):  # nobody reads meanwhile
        chief.publish(version, version / 64)
    download.fetch()
    assert (chief.gets, _bias(download)) == (1, 49 / 64)


def test_a_set_that_changes_between_its_parts_is_never_half_applied(
    download: ParameterDownload, chief: FakeChief, lifecycle: Lifecycle
) -> None:
    stop = threading.Event()

    def publish() -> None:
        version = 0
        while not stop.is_set():
            version += 1
            chief.publish(version, version % 251, size=300)
            time.sleep(0.002)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        seen: List[int] = []
        while len(seen) < 20:
            download.fetch()
            newest: Any = download.newest
            if newest is not None:
                assert (newest.parameters["policy.bias"] == newest.version % 251).all()
                seen.append(newest.version)
        assert seen == sorted(seen)
    finally:
        stop.set()
        publisher.join()


def test_a_set_that_does_not_match_its_digest_is_fetched_again(
    download: ParameterDownload, chief: FakeChief, log: FakeLog
) -> None:
    chief.publish(1, 0.125)
    download.fetch()
    before = download.newest
    chief.publish(2, 0.5)
    chief.digest_faults = 1
    download.fetch()
    assert before is not None
    assert (before.version, _bias(download)) == (1, 0.5)
    assert (chief.manifests, chief.gets) == (3, 3)
    assert log.events("warning") == ["the parameters do not match their digest: fetched again"]


def test_a_stop_ends_a_download_of_a_set_that_stays_damaged(
    download: ParameterDownload, chief: FakeChief, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    chief.publish(1, 0.125)
    chief.digest_faults = 10**9
    raised: List[BaseException] = []

    def fetch() -> None:
        try:
            download.fetch()
        except Stopped as error:
            raised.append(error)

    fetching = threading.Thread(target=fetch)
    fetching.start()
    eventually(lambda: chief.manifests >= 2)
    lifecycle.stop("test")
    fetching.join(5)
    assert len(raised) == 1
    assert download.newest is None


def test_a_manifest_of_a_size_that_cannot_be_right_takes_no_memory(
    download: ParameterDownload, chief: FakeChief, monkeypatch: pytest.MonkeyPatch
) -> None:
    chief.publish(1, 0.125, size=600)
    monkeypatch.setattr(parameter_download, "MAX_SET_BYTES", 2000)
    with pytest.raises(Refused, match="announces parameters of 2480 bytes"):
        download.fetch()
    assert download.newest is None


def test_a_set_that_this_shoal_cannot_read_is_refused_and_not_fetched_for_ever(
    download: ParameterDownload, chief: FakeChief
) -> None:
    chief.version, chief.data = 1, b"a format of later"
    with pytest.raises(Refused, match=r"version 1 of the chief cannot be read: .* install the same version"):
        download.fetch()
    assert chief.manifests == 1
