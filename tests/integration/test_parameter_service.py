"""The chief's parameter service behind a real server, asked by hand, by an actor's client and by an evaluator's."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, List

import google_crc32c
import numpy as np
import pytest
import safetensors.numpy

from services.actor.parameter_client import ParameterClient
from services.common.config.values import WireDtype
from services.common.lifecycle import Lifecycle
from services.common.parameter_download import PART_BYTES, ParameterDownload
from services.common.parameter_set import digest_of
from services.common.peer import Peer
from services.common.rpc import Caller, Refused, call_once, connect
from services.common.run_folder import Progress, RunFolder
from services.learner.parameter_service import ParameterServicer, Status, add_to_server
from services.learner.parameter_store import ACT, AVERAGE, LEARN, ParameterStore
from services.learner.published_set import PublishedSet
from services.learner.readers import Readers
from services.learner.version_reservation import VersionReservation
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc
from tests.conftest import Serve
from tests.fakes import RUN_ID, FakeClock, FakeLog

ACTOR, EVALUATOR, OPERATOR = experience_pb2.ROLE_ACTOR, experience_pb2.ROLE_EVALUATOR, experience_pb2.ROLE_OPERATOR


class Chief:
    """The parts of the chief behind `ParameterService`, and a stub that asks them over a real connection."""

    def __init__(self, tmp_path: Path, clock: FakeClock, wire_dtype: WireDtype = "float32") -> None:
        self.folder = RunFolder(tmp_path)
        self.store = ParameterStore(VersionReservation(tmp_path / "versions.json"), wire_dtype=wire_dtype)
        self.log = FakeLog()
        self.status = Status(run_state=parameters_pb2.RUN_STATE_TRAINING, progress=Progress(50, 12.5, 4000))
        self.readers = Readers(clock, num_actors=2)
        self.stub: Any = None

    def servicer(self) -> ParameterServicer:
        return ParameterServicer(
            fail=pytest.fail,
            run_id=RUN_ID,
            incarnation=77,
            store=self.store,
            readers=self.readers,
            folder=self.folder,
            status=self.status,
            num_actors=2,
            max_updates=100,
            waiting_for=lambda: "waiting for the replay",
            log=self.log,
        )

    def publish(self, bias: float, updates: int = 0) -> PublishedSet:
        return self.store.publish({ACT: {"policy.bias": np.full(1000, bias, np.float32)}}, updates)

    def manifest(
        self, role: Any = ACTOR, name: str = "actor-0", newer_than: int = 0, parameters: Any = ACT, **running: Any
    ) -> Any:
        peer = Peer(RUN_ID, role, name, incarnation=7).to_proto()
        request = parameters_pb2.GetManifestRequest(peer=peer, role=parameters, newer_than=newer_than, **running)
        return call_once(self.stub.GetManifest, request, timeout_s=5)

    def get(self, version: int, offset: int = 0, size: int = 0) -> Any:
        request = parameters_pb2.GetParametersRequest(
            peer=Peer(RUN_ID, ACTOR, "actor-0").to_proto(),
            role=ACT,
            version=version,
            offset_bytes=offset,
            max_bytes=size,
        )
        return call_once(self.stub.Get, request, timeout_s=5)

    def report(self, published: PublishedSet, success: float, **changes: Any) -> Any:
        values = {
            "peer": Peer(RUN_ID, EVALUATOR, "evaluator").to_proto(),
            "version": published.version,
            "digest": published.digest,
            "episodes": 50,
            "success_rate": success,
            "mean_return": -1.0,
            "mean_episode_steps": 20.0,
            **changes,
        }
        request = parameters_pb2.ReportEvaluationRequest(**values)
        return call_once(self.stub.ReportEvaluation, request, timeout_s=5)

    def info(self) -> Any:
        peer = Peer("", OPERATOR, "shoal top").to_proto()
        return call_once(self.stub.GetInfo, parameters_pb2.GetLearnerInfoRequest(peer=peer), timeout_s=5)

    def best_bias(self) -> float:
        best: Any = self.folder.load_best()
        return float(best[0]["policy.bias"][0])


ADD = add_to_server


@pytest.fixture
def chief(tmp_path: Path, serve: Serve) -> Any:
    made = Chief(tmp_path, FakeClock())
    with connect(serve(ADD, made.servicer())) as channel:
        made.stub = parameters_pb2_grpc.ParameterServiceStub(channel)
        yield made


def test_a_manifest_names_the_newest_if_it_is_newer(chief: Chief) -> None:
    first = chief.manifest()
    assert not first.available
    assert (first.chief_incarnation, first.num_actors) == (77, 2)
    chief.publish(1.0, updates=0)
    published = chief.publish(2.0, updates=20)
    manifest = chief.manifest(newer_than=1)
    assert manifest.available
    assert (manifest.version, manifest.updates) == (2, 20)
    assert (manifest.size_bytes, manifest.digest) == (len(published.data), published.digest)
    assert not chief.manifest(newer_than=2).available


def test_actors_lease_rungs_and_evaluators_do_not(chief: Chief) -> None:
    assert chief.manifest(name="a").actor_index == 0
    assert chief.manifest(EVALUATOR, name="evaluator").actor_index == 0
    assert chief.manifest(name="b").actor_index == 1
    assert chief.manifest(name="a").actor_index == 0


def test_parts_make_the_whole_and_each_has_its_checksum(chief: Chief) -> None:
    published = chief.publish(0.5)
    data = b""
    while len(data) < len(published.data):
        part = chief.get(published.version, len(data), 999)
        assert google_crc32c.value(part.data) == part.crc32c
        assert 0 < len(part.data) <= 999
        data += part.data
    assert digest_of(data) == published.digest
    assert chief.get(published.version).data == published.data
    assert chief.get(published.version, len(data)).data == b""
    assert chief.get(published.version, PART_BYTES).data == b""


def test_an_older_version_is_superseded(chief: Chief) -> None:
    published = chief.publish(1.0)
    chief.publish(2.0)
    assert chief.get(published.version).data == published.data, "a download of several parts must come to its end"
    chief.publish(3.0)
    answer = chief.get(published.version)
    assert answer.superseded
    assert answer.data == b""


def test_what_an_evaluator_looks_at_is_held_until_it_looks_at_a_newer_one(chief: Chief) -> None:
    first = chief.publish(1.0)
    chief.manifest(EVALUATOR, "evaluator")
    chief.publish(2.0)
    third = chief.publish(3.0)
    assert chief.get(first.version).data == first.data
    assert chief.report(first, 0.5).best
    chief.manifest(EVALUATOR, "evaluator")
    assert chief.get(first.version).superseded
    assert chief.get(third.version).data == third.data


def test_the_best_is_kept_and_every_evaluation_is_noted(chief: Chief) -> None:
    answers: List[bool] = []
    for bias, success in ((1.0, 0.5), (2.0, 0.75), (3.0, 0.25)):
        published = chief.publish(bias, updates=int(bias))
        answers.append(chief.report(published, success).best)
    assert answers == [True, True, False]
    assert chief.best_bias() == 2.0
    curve = chief.folder.evaluations()
    assert [(e.version, e.updates, e.success_rate, e.env_steps) for e in curve] == [
        (1, 1, 0.5, 4000),
        (2, 2, 0.75, 4000),
        (3, 3, 0.25, 4000),
    ]
    info = chief.info()
    assert (info.best_version, info.best_success_rate) == (2, 0.75)
    assert (info.evaluated_version, info.success_rate) == (3, 0.25)


@pytest.mark.parametrize(("success", "best"), [(0.75, True), (0.25, False)])
def test_a_report_that_is_sent_again_counts_once_and_has_its_first_answer(
    chief: Chief, success: float, best: bool
) -> None:
    chief.report(chief.publish(1.0), 0.5)
    published, peer = chief.publish(2.0), Peer(RUN_ID, EVALUATOR, "evaluator", incarnation=7).to_proto()
    with ThreadPoolExecutor(3) as pool:  # the answer of the first was late
        answers = list(pool.map(lambda _: chief.report(published, success, peer=peer).best, range(3)))
    assert answers == [best] * 3
    assert [evaluation.version for evaluation in chief.folder.evaluations()] == [1, 2]
    chief.report(published, success, peer=peer, mean_return=-2.0)  # another judgement of the same version
    assert [evaluation.version for evaluation in chief.folder.evaluations()] == [1, 2, 2]


def test_the_best_of_an_earlier_life_counts(chief: Chief, serve: Serve) -> None:
    chief.report(chief.publish(1.0), 0.75)
    with connect(serve(ADD, chief.servicer())) as channel:
        chief.stub = parameters_pb2_grpc.ParameterServiceStub(channel)
        assert chief.info().best_success_rate == 0.75
        assert not chief.report(chief.publish(2.0), 0.5).best
        assert chief.report(chief.publish(3.0), 0.8).best
    assert chief.best_bias() == 3.0


def test_reports_that_do_not_fit_are_refused_and_leave_nothing(chief: Chief) -> None:
    published = chief.publish(1.0)
    chief.publish(2.0)
    newer = chief.publish(3.0)
    assert "version 1 is not held any more" in chief.report(published, 0.5).reason
    assert "version 9 is not held any more" in chief.report(newer, 0.5, version=9).reason
    assert "not held any more" in chief.report(newer, 0.5, digest="0" * 32).reason
    assert "must be finite" in chief.report(newer, float("nan")).reason
    assert "must be finite" in chief.report(newer, 0.5, mean_return=float("inf")).reason
    assert chief.folder.evaluations() == []
    assert chief.folder.load_best() is None


def test_peers_of_another_run_are_refused_by_every_call(chief: Chief) -> None:
    peer = Peer("other", ACTOR, "actor-0").to_proto()
    calls = {
        "GetManifest": parameters_pb2.GetManifestRequest(peer=peer, role=ACT),
        "Get": parameters_pb2.GetParametersRequest(peer=peer, role=ACT),
        "ReportEvaluation": parameters_pb2.ReportEvaluationRequest(peer=peer),
        "GetInfo": parameters_pb2.GetLearnerInfoRequest(peer=peer),
    }
    for name, request in calls.items():
        with pytest.raises(Refused, match="belongs to run 'other', this service to run 'test-run'"):
            call_once(getattr(chief.stub, name), request, timeout_s=5)


def test_info_tells_progress_and_who_runs_what(chief: Chief) -> None:
    chief.publish(1.0, updates=10)
    chief.publish(2.0, updates=30)
    chief.manifest(name="a", newer_than=1, running_version=1, running_digest="d1")
    info = chief.info()
    assert (info.run_id, info.version, info.updates, info.max_updates) == (RUN_ID, 2, 50, 100)
    assert info.waiting_for == "waiting for the replay"
    assert (info.training_seconds, info.env_steps) == (12.5, 4000)
    assert info.non_finite_updates == 0
    chief.status.non_finite_updates = 3
    assert chief.info().non_finite_updates == 3
    assert (info.success_rate, info.best_success_rate) == (-1.0, -1.0)
    (reader,) = info.readers
    assert (reader.name, reader.version, reader.digest) == ("a", 1, "d1")
    assert reader.lag_updates == 40  # 50 updates, and its version had 10


def test_the_end_is_told_and_noted(chief: Chief) -> None:
    chief.manifest(name="a")
    assert [reader.told_finished for reader in chief.readers.living(10)] == [False]
    chief.status.run_state = parameters_pb2.RUN_STATE_FINISHED
    assert chief.manifest(name="a").run_state == parameters_pb2.RUN_STATE_FINISHED
    assert [reader.told_finished for reader in chief.readers.living(10)] == [True]


def test_an_actors_client_gets_what_was_published(
    chief: Chief, serve: Serve, lifecycle: Lifecycle, log: FakeLog
) -> None:
    peer = Peer(RUN_ID, ACTOR, "actor-0")
    client = ParameterClient(serve(ADD, chief.servicer()), peer=peer, poll_period_s=1.0, lifecycle=lifecycle, log=log)
    try:
        for bias in (0.25, 0.5):
            published = chief.publish(bias)
            client.fetch()
            newest: Any = client.newest
            assert (newest.version, newest.digest) == (published.version, published.digest)
            for name, tensor in safetensors.numpy.load(published.data).items():
                np.testing.assert_array_equal(newest.parameters[name], tensor)
        client.fetch()
        (reader,) = chief.readers.living(10)
        assert (reader.version, reader.digest) == (2, published.digest)
    finally:
        client.close()


def test_a_damaged_best_is_replaced_by_the_next_evaluation(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "best.safetensors").write_bytes(b"rubbish")
    chief = Chief(tmp_path, FakeClock())
    with connect(serve(ADD, chief.servicer())) as channel:
        chief.stub = parameters_pb2_grpc.ParameterServiceStub(channel)
        chief.report(chief.publish(2.0), 0.1)
    assert chief.best_bias() == 2.0


def _download(chief: Chief, address: str, lifecycle: Lifecycle, role: Any, peer: Peer, part: int = 4096) -> Any:
    caller = Caller("chief", address, lifecycle.stopping, chief.log)
    return ParameterDownload(
        caller, peer=peer, role=role, stopping=lifecycle.stopping, log=chief.log, part_bytes=part
    ), caller


def test_a_helper_fetches_what_it_learns_from_after_every_update(
    chief: Chief, serve: Serve, lifecycle: Lifecycle
) -> None:
    peer = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "helper-0")
    download, caller = _download(chief, serve(ADD, chief.servicer()), lifecycle, LEARN, peer)
    try:
        for updates in range(1, 6):
            parameters = {"critics.bias": np.full(3000, updates, np.float32), "updates": np.array(updates, np.int64)}
            published = chief.store.publish_learn(parameters, updates)
            download.fetch()
            newest = download.newest
            assert (newest.version, newest.updates, newest.chief_incarnation) == (published.version, updates, 77)
            assert newest.parameters["updates"] == updates
            assert newest.parameters["updates"].dtype == np.int64
        chief.status.progress = Progress(updates=9)
        download.fetch()
        (reader,) = chief.info().readers
        assert (reader.name, reader.parameters, reader.lag_updates) == ("helper-0", LEARN, 4)
    finally:
        caller.close()


@pytest.mark.parametrize("wire_dtype", ["float32", "float16", "bfloat16"])
def test_actors_and_the_best_file_hold_float32_whatever_travelled(
    wire_dtype: WireDtype, tmp_path: Path, serve: Serve, lifecycle: Lifecycle
) -> None:
    chief = Chief(tmp_path, FakeClock(), wire_dtype)
    address = serve(ADD, chief.servicer())
    peer = Peer(RUN_ID, EVALUATOR, "evaluator")
    download, caller = _download(chief, address, lifecycle, ACT, peer)
    with connect(address) as channel:
        chief.stub = parameters_pb2_grpc.ParameterServiceStub(channel)
        published = chief.publish(1 / 3)
        download.fetch()
        acted = download.newest.parameters["policy.bias"]
        assert acted.dtype == np.float32
        np.testing.assert_allclose(acted, 1 / 3, rtol={"float32": 1e-7, "float16": 5e-4, "bfloat16": 4e-3}[wire_dtype])
        assert chief.report(published, 0.5, digest=download.newest.digest).best
    caller.close()
    best: Any = chief.folder.load_best()
    assert best[0]["policy.bias"].dtype == np.float32
    np.testing.assert_array_equal(best[0]["policy.bias"], acted)


def test_an_evaluator_may_judge_the_average_that_the_chief_published(
    chief: Chief, serve: Serve, lifecycle: Lifecycle
) -> None:
    peer = Peer(RUN_ID, EVALUATOR, "evaluator")
    download, caller = _download(chief, serve(ADD, chief.servicer()), lifecycle, AVERAGE, peer)
    sets = [{role: {"policy.bias": np.full(10, bias, np.float32)} for role, bias in ((ACT, 4.0), (AVERAGE, 1.0))}]
    chief.store.publish(sets[0], 10)
    download.fetch()
    caller.close()
    judged = download.newest
    assert judged.parameters["policy.bias"][0] == 1.0
    for updates in (20, 30, 40):
        chief.store.publish(sets[0], updates)
    average: Any = chief.store.find(AVERAGE, judged.version)
    assert chief.report(average, 0.75, digest=judged.digest).best
    assert chief.best_bias() == 1.0


def test_a_run_without_an_average_says_how_to_get_one(chief: Chief) -> None:
    assert not chief.manifest(EVALUATOR, "evaluator", parameters=AVERAGE).available  # nothing is published yet
    chief.publish(1.0)
    with pytest.raises(Refused, match=r"this run has none: set learner\.average_rate above 0"):
        chief.manifest(EVALUATOR, "evaluator", parameters=AVERAGE)


def test_a_reader_that_does_not_say_what_it_wants_is_refused(chief: Chief) -> None:
    with pytest.raises(Refused, match="actor-0 does not say which parameters it wants"):
        chief.manifest(parameters=parameters_pb2.PARAMETER_ROLE_UNSPECIFIED)


def test_a_reader_that_acts_with_other_weights_is_named_and_sent_the_right_ones(
    chief: Chief, serve: Serve, lifecycle: Lifecycle
) -> None:
    # As after a resume in other systems: the version is right, the weights are random.
    peer = Peer(RUN_ID, ACTOR, "actor-0")
    download, caller = _download(chief, serve(ADD, chief.servicer()), lifecycle, ACT, peer)
    published = chief.publish(0.25)
    download.fetch()
    assert not download.fetch().available
    random = {"policy.bias": np.full(1000, -3.0, np.float32)}
    download._newest = replace(download.newest, digest="0" * 32, parameters=random)
    manifest = download.fetch()
    caller.close()
    assert (manifest.available, manifest.version) == (True, published.version)
    assert download.newest.digest == published.digest
    assert download.newest.parameters["policy.bias"][0] == 0.25
    assert chief.log.events("warning") == [
        "a reader does not run the version that it says: it is sent the newest again"
    ]
    assert chief.log.lines[-1][2]["reader"] == "actor-0"
    (reader,) = chief.info().readers
    assert reader.digest_differs
    assert chief.readers.mismatches_total == 1


def test_after_a_restart_what_actors_run_is_not_known_and_no_reproach(chief: Chief) -> None:
    chief.publish(1.0)
    chief.manifest(running_version=950, running_digest="of an earlier life")
    assert chief.log.events("warning") == []
    assert not chief.info().readers[0].digest_differs


def test_actors_of_a_run_whose_folder_was_replaced_get_the_versions_that_began_anew(chief: Chief) -> None:
    published = chief.publish(1.0)
    manifest = chief.manifest(newer_than=950, running_version=950, running_digest="d")
    assert (manifest.available, manifest.version) == (True, published.version)


def test_however_many_versions_nobody_fetches_a_reader_gets_the_newest_in_one_call(
    chief: Chief, serve: Serve, lifecycle: Lifecycle
) -> None:
    for number in range(500):
        chief.publish(number)
    assert chief.store.num_sets == 2
    download, caller = _download(chief, serve(ADD, chief.servicer()), lifecycle, ACT, Peer(RUN_ID, ACTOR, "a"), 10**6)
    download.fetch()
    caller.close()
    assert download.newest.version == 500
    assert download.newest.parameters["policy.bias"][0] == 499


def test_an_actor_whose_weights_never_arrive_is_seen_falling_behind(chief: Chief) -> None:
    first = chief.publish(1.0, updates=0)
    lags = []
    steps = [50, 100, *range(200, 1000, 100), 5000]
    for updates in steps:
        chief.publish(2.0, updates)
        chief.status.progress = Progress(updates=updates)
        # It asks, so it lives, but what it runs stays the same.
        chief.manifest(newer_than=first.version, running_version=first.version, running_digest=first.digest)
        (reader,) = chief.info().readers
        lags.append(reader.lag_updates)
    assert lags == steps
    event = "a reader asks for newer parameters and goes on with old ones: what it is sent does not arrive whole"
    assert chief.log.events("warning") == [event]
    assert chief.log.lines[-1][2] == {"reader": "actor-0", "version": first.version, "lag_updates": 900}


def test_a_slow_reader_of_large_sets_gets_to_an_end_beside_a_fast_publisher(
    chief: Chief, serve: Serve, lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    servicer = chief.servicer()
    answer, calls = servicer.Get, itertools.count(1)

    def get(request: Any, context: Any) -> Any:
        if next(calls) % 5 == 0:
            chief.publish(1.0)
        return answer(request, context)

    monkeypatch.setattr(servicer, "Get", get)
    download, caller = _download(chief, serve(ADD, servicer), lifecycle, ACT, Peer(RUN_ID, ACTOR, "a"), 100)
    chief.publish(1.0)
    try:
        download.fetch()  # 42 parts, and many versions meanwhile
    finally:
        caller.close()
    newest: Any = chief.store.newest
    assert newest.version > download.newest.version + 2
    assert (download.newest.parameters["policy.bias"] == 1.0).all()
